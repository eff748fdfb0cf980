"""What `plan` prints of a planned run: its summary, the order of the changes, and secrets masked."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from toolkit_installer import __version__
from toolkit_installer.cli import show_plan
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.engines.api import DesiredFile, DesiredState, EngineFile, Inspection, LiveState, Reload
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.planning.installed import SpecificationWork
from toolkit_installer.planning.method import Choice, RejectedMethod
from toolkit_installer.planning.plan import EngineWork, Plan, ToolkitWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt, State
from toolkit_installer.settings import EngineName, Method, NriSettings, ReloadMode, Settings
from toolkit_installer.toolkit import wrappers
from toolkit_installer.toolkit.layout import ToolkitFile

TOOLKIT = "/usr/local/nvidia/toolkit"
CONFIG = "/etc/containerd/config.toml"
LIVE = LiveState("2.1.4", {}, None)
NO_RELOAD = Reload(ReloadMode.NONE)
DEFAULTS = Settings()
A, B, LINK = (
    ToolkitFile("a", 0o755, content=b"a"),
    ToolkitFile("b", 0o755, source="usr/bin/b"),
    ToolkitFile("c", 0o755, target="a"),
)


def file_of(now: bytes | None, path: str = CONFIG) -> EngineFile:
    found = None if now is None else Found(path, now, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    return EngineFile("config", path, found)


def engine(
    name: EngineName = EngineName.CONTAINERD,
    target: bytes = b"oom_score = 2\n",
    reload: Reload = NO_RELOAD,
    why: str = "",
    live: LiveState | None = LIVE,
    default: str | None = None,
) -> EngineWork:
    file = file_of(b"oom_score = 1\n")
    desired = DesiredState((DesiredFile(file, None, target),), {}, default, notes=("a note",), faults=("a fault",))
    return EngineWork(name, Inspection("/run/x.sock", (file,), live), desired, reload, why)


def prepared(
    *engines: EngineWork,
    write: tuple[ToolkitFile, ...] = (),
    remove: tuple[str, ...] = (),
    receipt: Receipt | None = None,
    settings: Settings = DEFAULTS,
    requested: bool = True,
    **more: Any,
) -> Prepared:
    target: Any = SimpleNamespace(settings=settings, engines=(1,) if requested else (), driver_away=False)
    facts: Any = SimpleNamespace(receipt=receipt)
    return Prepared(target, facts, Plan(ToolkitWork(TOOLKIT, (A, B, LINK), write, remove), engines, **more))


def record(name: EngineName, path: str = CONFIG, default: str | None = None) -> EngineRecord:
    return EngineRecord(name, "/s", None, (), default, (FileRecord("config", path, None, ("0" * 64,)),))


def installed(*engines: EngineRecord) -> Receipt:
    return Receipt(State.INSTALLED, "1", TOOLKIT, (), (), "/run/toolkit.pid", (), engines)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(str(tmp_path))


def texts(node: Node, seen: Prepared) -> list[str]:
    return [line.text if isinstance(line, DiffLine) else line for line in show_plan.lines(node, seen)]


def test_where_nothing_is_to_be_done_the_method_alone_is_told(node: Node) -> None:
    seen = prepared(engine(target=b"oom_score = 1\n"))
    assert texts(node, seen) == ["Nothing to do: the node is as it should be.", "Method: handlers (the default)"]
    assert texts(node, prepared(requested=False)) == ["Nothing to do: the node is as it should be."]
    assert show_plan.as_value(node, Settings(), seen, None).nothing_to_do


def test_the_summary_counts_what_is_written_and_names_what_becomes_of_each_engine(node: Node) -> None:
    seen = prepared(
        engine(default="nvidia"),
        write=(A,),
        remove=("old", "older"),
        receipt=installed(record(EngineName.CRIO), record(EngineName.CONTAINERD, default="runc")),
    )
    assert texts(node, seen)[0] == (
        "1 file installed, 2 files removed, 1 file of the engine edited, containerd is not reloaded, "
        "crio is given back, nvidia becomes the default runtime of containerd."
    )
    same = prepared(engine(default="nvidia"), receipt=installed(record(EngineName.CONTAINERD, default="nvidia")))
    assert "default" not in texts(node, same)[0]


@pytest.mark.parametrize(
    "reload, why, live, words",
    [
        (Reload(ReloadMode.SIGNAL), "x", LIVE, "containerd will be reloaded (nothing is restarted)"),
        (Reload(ReloadMode.SIGNAL, restarts=True), "x", LIVE, "containerd will be RESTARTED (containers keep running)"),
        (
            Reload(ReloadMode.SYSTEMD, "c.service"),
            "x",
            msgspec.structs.replace(LIVE, containers_outlive_it=False),
            "containerd will be RESTARTED (its containers END, as live-restore is off)",
        ),
        (
            Reload(ReloadMode.SYSTEMD, "c.service"),
            "x",
            None,
            "containerd will be RESTARTED (its containers end unless live-restore is on)",
        ),
        (
            Reload(ReloadMode.NONE, watched_by="k0s"),
            "x",
            LIVE,
            "containerd will be RESTARTED by k0s (containers keep running)",
        ),
        (Reload(ReloadMode.SYSTEMD), "", LIVE, "containerd is not reloaded"),
    ],
)
def test_an_engine_that_restarts_is_told_with_the_fate_of_its_containers(
    reload: Reload, why: str, live: LiveState | None, words: str
) -> None:
    assert show_plan._describe_reload(engine(reload=reload, why=why, live=live)) == words
    unchanged = engine(target=b"oom_score = 1\n")
    assert show_plan._describe_reload(unchanged) == ""


@pytest.mark.parametrize(
    "reload, words",
    [
        (Reload(ReloadMode.NONE, by_itself=True), "takes the change over by itself"),
        (Reload(ReloadMode.NONE), "serves the change after its next restart"),
        (Reload(ReloadMode.SIGNAL), "serves this already"),
    ],
)
def test_a_change_without_a_reload_says_when_the_engine_serves_it(node: Node, reload: Reload, words: str) -> None:
    lines = texts(node, prepared(engine(reload=reload)))
    start = lines.index("Engine containerd:")
    assert lines[start + 1 : start + 3] == ["  a fault", "  a note"]
    assert lines[start + 3 :][:1] == [f"--- {CONFIG}"]
    assert "-oom_score = 1" in lines
    assert lines[-1].startswith("  No reload: ")
    assert words in lines[-1]


def test_files_of_the_toolkit_are_listed_with_what_is_done_to_each(node: Node) -> None:
    lines = texts(node, prepared(write=(A, B, LINK), remove=("old",)))
    start = lines.index(f"Toolkit in {TOOLKIT}: 3 of 3 files to write")
    assert lines[start + 1 :] == ["  write  a", "  copy   b from usr/bin/b", "  link   c -> a", "  remove old"]


def test_engines_that_lose_their_handlers_are_told_of_in_the_order_of_the_run(node: Node) -> None:
    moved = record(EngineName.CONTAINERD, "/etc/other.toml")
    lines = texts(node, prepared(engine(), receipt=installed(moved, record(EngineName.CRIO, "/etc/crio.conf"))))
    first = lines.index("Engine containerd: the handlers are taken back first, from /etc/other.toml")
    last = lines.index("Engine crio: the handlers are taken back at last, from /etc/crio.conf")
    assert first < lines.index("Engine containerd:") < last


def test_a_value_of_somebody_else_in_our_own_file_is_masked_and_ours_are_not(node: Node, tmp_path: Path) -> None:
    place = tmp_path / TOOLKIT.lstrip("/") / wrappers.CONFIG_NAME
    place.parent.mkdir(parents=True)
    place.write_text('note = "hunter22"\n')
    config = ToolkitFile(wrappers.CONFIG_NAME, 0o644, content=b'odd = "ours"\n')
    (planned,) = show_plan.as_value(node, Settings(), prepared(write=(config,)), None).files
    assert planned.path == f"{TOOLKIT}/{wrappers.CONFIG_NAME}"
    assert '+odd = "ours"' in planned.diff
    assert "hunter22" not in planned.diff
    assert '+odd = "ours"' in texts(node, prepared(write=(config,)))


def test_specifications_device_nodes_and_the_plugin_are_part_of_the_plan(node: Node) -> None:
    cdi = file_of(None, "/var/run/cdi/a.yaml")
    same = file_of(b"same", "/var/run/cdi/b.yaml")
    works = (SpecificationWork(cdi, None, b"kind: x\n", note="kept"), SpecificationWork(same, None, b"same"))
    choice = Choice(Method.CDI, "it works", (RejectedMethod(Method.HANDLERS, "no runtime"),))
    settings = Settings(nri=NriSettings(("gpu-operator",), "/run/nri.sock"))
    seen = prepared(settings=settings, specifications=works, device_nodes=("/dev/nvidiactl",), choice=choice)
    lines = texts(node, seen)
    assert "1 CDI specification written." in lines[0]
    assert "CDI specification: /var/run/cdi/a.yaml: kept" in lines
    assert "Device nodes to create: /dev/nvidiactl" in lines
    assert "Method: cdi (it works; not handlers: no runtime)" in lines
    nri = next(line for line in lines if line.startswith("NRI plugin"))
    assert nri == "NRI plugin: served on /run/nri.sock while `run` waits; the engine's files stay as they are."
    value = show_plan.as_value(node, settings, seen, None)
    assert [each.path for each in value.files] == ["/var/run/cdi/a.yaml"]
    assert (value.nri_socket, value.device_nodes) == ("/run/nri.sock", ("/dev/nvidiactl",))
    assert value.method == show_plan.PlannedMethod("cdi", "it works", choice.passed_over)


def test_what_would_stop_the_run_comes_first_and_is_no_part_of_the_exit(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    stops = ConfigurationError("no shell", path="/bin/sh")
    seen = prepared(engine())
    lines = show_plan.as_lines(node, seen, stops)
    assert lines[:2] == ["`run` would stop before it does any of this: no shell", ""]
    assert str(lines[-1]).startswith("GPUs of the node: ")
    show_plan.show(node, Settings(), seen, stops, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["stops"], shown["version"]) == ("/bin/sh: no shell", __version__)
    assert [each["name"] for each in shown["engines"]] == ["containerd"]
    assert shown["engines"][0]["reload"] is None
    assert shown["engines"][0]["notes"] == ["a fault", "a note"]


def test_a_node_that_is_left_alone_has_a_plan_without_any_change(node: Node) -> None:
    value = show_plan.as_value(node, Settings(), None, None)
    assert value.nothing_to_do
    assert value.toolkit_folder == Settings().toolkit.folder
    assert "--without-gpu idle" in str(show_plan.as_lines(node, None, None)[0])
