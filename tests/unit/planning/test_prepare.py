"""What a run refuses before its first write, and what it keeps the originals and the handlers of."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from toolkit_installer.engines.api import (
    DesiredFile,
    DesiredState,
    EngineFile,
    EngineSilentError,
    Inspection,
    LiveState,
    Reload,
)
from toolkit_installer.errors import ConfigurationError, EngineDownError, EngineRejectedError
from toolkit_installer.node import files
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.node.root import NodeError
from toolkit_installer.planning import prepare
from toolkit_installer.planning.plan import EngineWork, Plan, ToolkitWork
from toolkit_installer.planning.prepare import Prepared, handlers_of_ours
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import FILE, FOLDER, EngineRecord
from toolkit_installer.settings import EngineName, NriSettings, ReloadMode, Settings
from toolkit_installer.toolkit.layout import ToolkitFile

TOOLKIT = "/usr/local/nvidia/toolkit"
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"
CONFIG = "/etc/docker/daemon.json"
LIVE = LiveState("28.0", {"nvidia": RUNTIME}, "nvidia")
SIGNAL = Reload(ReloadMode.SIGNAL)


class MortalLiveState(LiveState, frozen=True):
    """The state of an engine that a signal ends if it reads this one content."""

    def refuse_signal(self, content: bytes | None, seen: bytes | None = None) -> None:
        if content == b"deadly":
            raise ConfigurationError(f"ends at a signal, now with {seen!r}")


def found(content: bytes) -> Found:
    return Found(CONFIG, content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))


def work(
    now: bytes = b"now",
    base: bytes | None = b"base",
    target: bytes | None = b"target",
    live: LiveState | None = LIVE,
    **more: Any,
) -> EngineWork:
    """Return an engine's change of one file, of which these are the contents."""
    file = EngineFile("config", CONFIG, found(now))
    inspection = Inspection("/run/docker.sock", (file,), live, "connection refused")
    desired = DesiredState((DesiredFile(file, base, target),), {"nvidia": RUNTIME}, "nvidia")
    values = {"reload": SIGNAL, "reload_why": "its configuration changes", **more}
    return EngineWork(EngineName.DOCKER, inspection, desired, **values)


def plan(*engines: EngineWork) -> Plan:
    return Plan(ToolkitWork(TOOLKIT, (), (), ()), engines)


def facts(**more: Any) -> Any:
    return SimpleNamespace(**{"receipt": None, "originals": {}, "engines": (), "generated": None, **more})


# --- what is prepared ---


def test_the_originals_of_all_files_are_kept_by_their_digests() -> None:
    engines = (work(base=b"base"), work(base=None))
    specification: Any = SimpleNamespace(base=b"of a specification")
    made = msgspec.structs.replace(plan(*engines), specifications=(specification,))
    target: Any = SimpleNamespace(driver_away=False)
    originals = Prepared(target, facts(originals={"0": b"kept"}), made).originals
    digests = {file_records.digest_of(content): content for content in (b"base", b"of a specification")}
    assert originals == {"0": b"kept", **digests}


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("failure", [None, "no driver"])
def test_a_driver_is_away_if_none_is_found_or_it_generates_nothing(failure: str | None, *, away: bool) -> None:
    target: Any = SimpleNamespace(driver_away=away)
    generated = SimpleNamespace(failure=failure)
    assert Prepared(target, facts(generated=generated), plan()).driver_away is (away or failure is not None)
    assert Prepared(target, facts(), plan()).driver_away is away


# --- handlers of ours ---


def test_handlers_are_ours_by_their_path_or_by_the_record_where_no_path_is_reported() -> None:
    handlers: dict[str, str | None] = {
        "nvidia": RUNTIME,
        "distributions": f"{TOOLKIT}/x",
        "theirs": "/usr/bin/nvidia-container-runtime",
        "recorded": None,
        "unknown": None,
    }
    live = LiveState("1", handlers, None, own=frozenset({"distributions"}))
    record = EngineRecord(EngineName.CRIO, "/s", None, (("recorded", RUNTIME), ("theirs", RUNTIME)), None, ())
    assert handlers_of_ours(TOOLKIT, record)(live) == {"nvidia", "recorded"}
    assert handlers_of_ours(TOOLKIT, None)(live) == {"nvidia"}
    assert handlers_of_ours(TOOLKIT, record, staying=["nvidia"])(live) == {"recorded"}


class Answers:
    """An adapter that answers so, and notes what it was called for."""

    def __init__(self, pods: Sequence[str] = (), error: Exception | None = None) -> None:
        self.pods = tuple(pods)
        self.error = error
        self.calls: list[str] = []

    def stranded(self, *_: object) -> tuple[str, ...]:
        self.calls.append("stranded")
        if self.error is not None:
            raise self.error
        return self.pods

    def try_out(self, *_: object) -> None:
        self.calls.append("try_out")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(str(tmp_path))


def strand(monkeypatch: pytest.MonkeyPatch, node: Node, adapter: Answers) -> None:
    monkeypatch.setattr(prepare, "get_adapter", lambda _name: adapter)
    prepare.refuse_stranding(node, work(), handlers_of_ours(TOOLKIT, None), "then run again")


def test_pods_that_could_not_be_stopped_any_more_refuse_the_change(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    strand(monkeypatch, node, Answers())
    with pytest.raises(ConfigurationError) as refused:
        strand(monkeypatch, node, Answers([f"pod{number}" for number in range(10)]))
    assert refused.value.reason.endswith("pod8, pod9")
    assert str(refused.value.hint).endswith("then run again")
    with pytest.raises(ConfigurationError, match="pod9 and 2 more"):
        strand(monkeypatch, node, Answers([f"pod{number}" for number in range(12)]))


def test_an_engine_that_does_not_list_its_pods_is_left_alone(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    with pytest.raises(EngineDownError, match="no answer: they may need a handler") as refused:
        strand(monkeypatch, node, Answers(error=EngineSilentError("no answer", path="/run/crio.sock")))
    assert refused.value.path == "/run/crio.sock"


# --- the preflight ---


@pytest.mark.parametrize(
    "made, calls",
    [
        (work(), ["stranded", "try_out"]),
        (work(live=None), ["try_out"]),
        (work(target=b"now"), ["try_out"]),
        (work(target=b"now", reload_why=""), []),
    ],
    ids=["changes", "is down", "is reloaded", "stays"],
)
def test_only_a_change_can_strand_pods_and_only_what_is_read_is_tried_out(
    monkeypatch: pytest.MonkeyPatch, node: Node, made: EngineWork, calls: list[str]
) -> None:
    adapter = Answers()
    monkeypatch.setattr(prepare, "get_adapter", lambda _name: adapter)
    target: Any = SimpleNamespace(settings=Settings(), driver=SimpleNamespace(seen_at="", root="/"))
    request = SimpleNamespace(target=SimpleNamespace(name=EngineName.DOCKER), toolkit_folder=TOOLKIT)
    seen: Any = facts(engines=(SimpleNamespace(request=request, recorded=None),))
    prepare.preflight(node, target, seen, plan(made))
    assert adapter.calls == calls


@pytest.mark.parametrize("place", ["now", "base", "target"])
def test_no_signal_is_sent_to_an_engine_that_one_of_its_files_would_end(place: str) -> None:
    live = MortalLiveState("28.0", {}, None)
    contents: dict[str, Any] = {place: b"deadly"}
    with pytest.raises(ConfigurationError, match="ends at a signal, now with") as refused:
        prepare._refuse_deadly_signal(work(live=live, **contents))
    assert refused.value.path == CONFIG
    for harmless in (
        work(live=live, reload_why="", **contents),
        work(live=live, reload=Reload(ReloadMode.SYSTEMD), **contents),
        work(live=None, **contents),
        work(live=live),
    ):
        prepare._refuse_deadly_signal(harmless)


OTHER = LiveState("28.0", {}, "runc")


def test_an_engine_that_has_to_be_live_must_answer_and_serve_in_the_end() -> None:
    with pytest.raises(EngineRejectedError, match="does not answer on its socket: connection refused"):
        prepare._require_live(work(live=None))
    left_alone = Reload(ReloadMode.NONE)
    with pytest.raises(EngineRejectedError, match="as it is not reloaded: it does not list the handler nvidia"):
        prepare._require_live(work(live=OTHER, reload=left_alone))
    for served in (
        work(live=OTHER),
        work(live=OTHER, reload=Reload(ReloadMode.NONE, by_itself=True)),
        work(live=LIVE, reload=left_alone),
    ):
        prepare._require_live(served)


# --- contradictions ---


def engine_facts(elsewhere: str = "", process: Process | None = None, content: bytes = b"") -> Any:
    live = LiveState("2.1.4", {}, None, process)
    inspection = Inspection("/s", (EngineFile("config", CONFIG, found(content)),), live, elsewhere=elsewhere)
    target = SimpleNamespace(name=EngineName.CONTAINERD, config=CONFIG)
    return SimpleNamespace(request=SimpleNamespace(target=target), inspection=inspection)


def contradict(node: Node, *engines: Any, generated: Any = None, specifications: Any = None) -> None:
    toolkit = SimpleNamespace(folder=TOOLKIT)
    seen = facts(engines=engines, toolkit=toolkit, generated=generated, specifications=specifications)
    prepare.refuse_contradictions(node, seen)


def test_a_file_that_the_running_engine_does_not_read_is_not_edited(node: Node) -> None:
    process = Process(812, "containerd", "/usr/bin/containerd", ("containerd",), 1.0, "containerd.service")
    with pytest.raises(ConfigurationError, match=r"\(PID 812\) reads /etc/other.toml, and not this file") as refused:
        contradict(node, engine_facts("/etc/other.toml", process))
    assert refused.value.path == CONFIG
    contradict(node, engine_facts("/etc/other.toml"), engine_facts("", process))


def test_a_file_that_names_another_installation_is_not_edited(node: Node, tmp_path: Path) -> None:
    content = b'BinaryName = "/opt/nv/toolkit/nvidia-container-runtime"\n'
    generated = SimpleNamespace(path="/cdi/a.yaml")
    specifications = SimpleNamespace(files={"/cdi/a.yaml": ("/cdi/a.yaml", found(content))})
    contradict(node, engine_facts(content=content), generated=generated, specifications=specifications)
    receipt = tmp_path / "opt/nv" / FOLDER / FILE
    receipt.parent.mkdir(parents=True)
    receipt.touch()
    with pytest.raises(ConfigurationError, match="names programs of another installation, in /opt/nv") as refused:
        contradict(node, engine_facts(content=content))
    assert refused.value.path == CONFIG
    assert "uninstall /opt/nv" in str(refused.value.hint)
    with pytest.raises(ConfigurationError) as refused:
        contradict(node, generated=generated, specifications=specifications)
    assert refused.value.path == "/cdi/a.yaml"
    specifications.files["/cdi/a.yaml"] = ("/cdi/a.yaml", None)
    contradict(node, generated=generated, specifications=specifications)


# --- what a node must allow ---


def test_a_system_without_a_shell_is_refused_and_a_few_folders_are_not(node: Node, tmp_path: Path) -> None:
    prepare._refuse_no_shell(node)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").touch()
    with pytest.raises(ConfigurationError, match="the node has no shell"):
        prepare._refuse_no_shell(node)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sh").touch(mode=0o755)
    prepare._refuse_no_shell(node)


@pytest.mark.parametrize("hint", [None, "chattr -i"])
def test_a_place_that_cannot_be_written_is_refused_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, node: Node, hint: str | None
) -> None:
    obstacle = NodeError.of(OSError(errno.EROFS, ""), "/etc/x/.", "replace it")
    obstacle.hint = hint
    monkeypatch.setattr(files, "find_obstacle", lambda _root, path: obstacle if path == "/etc/x/." else None)
    prepare._refuse_obstacle(node, "/etc/y", "choose another")
    with pytest.raises(NodeError) as refused:
        prepare._refuse_obstacle(node, "/etc/x/.", "choose another")
    assert refused.value.path == "/etc/x"
    assert refused.value.hint == "; ".join(["nothing was changed", *([hint] if hint else []), "choose another"])


@pytest.mark.parametrize("by_cdi", [False, True])
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("nri", [None, NriSettings(("gpu-operator",))])
def test_a_shell_is_needed_only_where_wrappers_are_written(
    node: Node, tmp_path: Path, nri: NriSettings | None, *, writes: bool, by_cdi: bool
) -> None:
    (tmp_path / "bin").mkdir()
    target: Any = SimpleNamespace(settings=Settings(nri=nri), driver=SimpleNamespace(seen_at="", root="/"))
    write = (ToolkitFile("a", 0o755, content=b"a"),) if writes else ()
    record = EngineRecord(EngineName.CONTAINERD, "/s", None, (), None, ())
    made = Plan(ToolkitWork(TOOLKIT, write, write, ()), (), cdi=(record,) if by_cdi else ())
    wrapped = not by_cdi and nri is None
    for unchanged in (False, True):
        if wrapped and (writes or unchanged):
            with pytest.raises(ConfigurationError, match="the node has no shell"):
                prepare.require_places(node, target, made, unchanged=unchanged)
        else:
            prepare.require_places(node, target, made, unchanged=unchanged)


def test_only_files_that_change_must_be_writable_unless_all_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    tried: list[str] = []

    def note(path: str) -> None:
        tried.append(path)

    monkeypatch.setattr(files, "find_obstacle", lambda _root, path: note(path))
    target: Any = SimpleNamespace(settings=Settings(), driver=SimpleNamespace(seen_at="", root="/"))
    same: Any = SimpleNamespace(path="/cdi/same.yaml", changes=False)
    new: Any = SimpleNamespace(path="/cdi/new.yaml", changes=True)
    made = msgspec.structs.replace(plan(work(), work(target=b"now")), specifications=(same, new))
    folders = [f"{TOOLKIT}/.", "/usr/local/nvidia/."]
    prepare.require_places(node, target, made)
    assert tried == [*folders, CONFIG, new.path]
    tried.clear()
    prepare.require_places(node, target, made, unchanged=True)
    assert tried == [*folders, CONFIG, CONFIG, same.path, new.path]


def test_the_preflight_finds_a_signal_that_would_end_the_engine(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    monkeypatch.setattr(prepare, "get_adapter", lambda _name: Answers())
    target: Any = SimpleNamespace(settings=Settings(), driver=SimpleNamespace(seen_at="", root="/"))
    request = SimpleNamespace(target=SimpleNamespace(name=EngineName.DOCKER), toolkit_folder=TOOLKIT)
    seen: Any = facts(engines=(SimpleNamespace(request=request, recorded=None),))
    with pytest.raises(ConfigurationError, match="ends at a signal"):
        prepare.preflight(node, target, seen, plan(work(target=b"deadly", live=MortalLiveState("28.0", {}, None))))
