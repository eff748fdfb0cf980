"""What is to be done, decided from values: the truth table of writing and reloading."""

from __future__ import annotations

import pytest

from toolkit_installer.engines.api import DesiredFile, DesiredState, EngineFile, Inspection, LiveState, Reload
from toolkit_installer.node.reading import FileIdentity, Found, Metadata
from toolkit_installer.planning import plan
from toolkit_installer.planning.installed import InstalledFile
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, OriginalFile
from toolkit_installer.settings import EngineName, ReloadMode
from toolkit_installer.toolkit.layout import ToolkitFile

PATH = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
SERVED = {"nvidia": PATH}


def live(handlers: dict[str, str | None], default: str | None) -> LiveState:
    return LiveState("28.0", handlers, default)


def work(content: bytes | None, target: bytes | None, now: LiveState | None, mode: ReloadMode, *, due: bool) -> str:
    found = None if content is None else Found("/etc/x", content, Metadata(0o644, 0, 0), FileIdentity(1, 2, 3, 4, 5))
    inspection = Inspection("/run/x.sock", (EngineFile("role", "/etc/x", found),), now)
    goals = DesiredState((DesiredFile(inspection.files[0], content, target),), SERVED, "nvidia")
    made = plan.build_engine_work(EngineName.DOCKER, inspection, goals, Reload(mode), reload_due=due)
    assert made.changes == (content != target)
    return made.reload_why


GOOD = live({"runc": None, "nvidia": PATH}, "nvidia")


def test_a_change_that_needs_a_restart_counts_only_if_the_engine_is_restarted() -> None:
    inspection = Inspection("/run/x.sock", (EngineFile("role", "/etc/x", None),), GOOD)
    goals = DesiredState((DesiredFile(inspection.files[0], None, None),), SERVED, "nvidia", restart_why="for CDI")
    for reload, why in (
        (Reload(ReloadMode.SYSTEMD, "docker.service", restarts=True), "for CDI"),
        (Reload(ReloadMode.SIGNAL), ""),
        (Reload(ReloadMode.NONE), ""),
    ):
        assert plan.build_engine_work(EngineName.DOCKER, inspection, goals, reload, reload_due=False).reload_why == why


@pytest.mark.parametrize(
    "content, target, now, mode, due, why",
    [
        (b"a", b"a", GOOD, ReloadMode.SIGNAL, False, ""),
        (b"a", b"b", GOOD, ReloadMode.SIGNAL, False, "its configuration changes"),
        (None, b"b", GOOD, ReloadMode.SYSTEMD, False, "its configuration changes"),
        (b"a", None, GOOD, ReloadMode.SYSTEMD, False, "its configuration changes"),
        (b"a", b"b", GOOD, ReloadMode.NONE, True, ""),
        (b"a", b"a", GOOD, ReloadMode.SIGNAL, True, "it was not reloaded after the last change"),
        (b"a", b"a", None, ReloadMode.SIGNAL, False, ""),
        (b"a", b"a", live({}, "nvidia"), ReloadMode.SIGNAL, False, "it does not list the handler nvidia"),
        (b"a", b"a", live({}, "nvidia"), ReloadMode.NONE, False, ""),
        (b"a", b"a", live(dict(SERVED), "runc"), ReloadMode.SIGNAL, False, "its default runtime is runc, not nvidia"),
        (b"a", b"a", live(dict(SERVED), None), ReloadMode.SIGNAL, False, ""),
        (b"a", b"a", live({"nvidia": None}, "nvidia"), ReloadMode.SIGNAL, False, ""),
        (
            b"a",
            b"a",
            live({"nvidia": "/old"}, "nvidia"),
            ReloadMode.SIGNAL,
            False,
            f"its handler nvidia runs /old, not {PATH}",
        ),
    ],
)
def test_an_engine_is_reloaded_only_for_a_reason(
    content: bytes | None,
    target: bytes | None,
    now: LiveState | None,
    mode: ReloadMode,
    *,
    due: bool,
    why: str,
) -> None:
    assert work(content, target, now, mode, due=due) == why


def test_a_default_that_nobody_asked_for_is_no_mismatch() -> None:
    assert plan.find_mismatches(live(dict(SERVED), "runc"), SERVED, None) == []


A, B = ToolkitFile("a", 0o755, content=b"a"), ToolkitFile("b", 0o755, target="a")
WANTED = {"a": InstalledFile(digest="1", mode=0o755), "b": InstalledFile(link="a")}


@pytest.mark.parametrize(
    "present, write",
    [
        ({}, (A, B)),
        (WANTED, ()),
        (WANTED | {"a": InstalledFile(digest="2", mode=0o755)}, (A,)),
        (WANTED | {"a": InstalledFile(digest="1", mode=0o644)}, (A,)),
        (WANTED | {"b": InstalledFile(link="elsewhere")}, (B,)),
        (WANTED | {"b": InstalledFile(digest="1", mode=0o755)}, (B,)),
    ],
)
def test_only_what_differs_is_written_in_the_order_given(
    present: dict[str, InstalledFile], write: tuple[ToolkitFile, ...]
) -> None:
    assert plan.build_toolkit_work("/t", (A, B), WANTED, present, ()).write == write


def test_only_what_we_recorded_and_is_still_there_is_removed() -> None:
    present = WANTED | {"old": InstalledFile(digest="9"), "theirs": InstalledFile(digest="9")}
    made = plan.build_toolkit_work("/t", (A, B), WANTED, present, ("old", "a", "gone"))
    assert made.remove == ("old",)


def test_a_plan_with_anything_to_do_is_not_empty() -> None:
    nothing = plan.build_toolkit_work("/t", (A, B), WANTED, WANTED, ())
    assert plan.Plan(nothing, ()).empty
    assert not plan.Plan(plan.build_toolkit_work("/t", (A, B), WANTED, {}, ()), ()).empty
    assert not plan.Plan(plan.build_toolkit_work("/t", (), {}, {"x": InstalledFile()}, ("x",)), ()).empty


OLD = "/usr/bin/nvidia-container-runtime"
LEFT = "it still lists the handler nvidia"


@pytest.mark.parametrize(
    "before, now, wrong",
    [
        (live({"runc": None}, "runc"), live({"runc": None}, "runc"), []),
        (live({"runc": None}, "runc"), live({"runc": None, "nvidia": PATH}, "runc"), [LEFT]),
        (None, live({"nvidia": PATH}, "runc"), [LEFT]),
        # an engine that tells no path: it is ours, as it was not there before
        (live({}, None), live({"nvidia": None}, None), [LEFT]),
        # somebody registered the same name meanwhile, with another program
        (live({}, "runc"), live({"nvidia": OLD}, "runc"), []),
        # it was there before: its old path is back, or the engine tells none
        (live({"nvidia": OLD}, "runc"), live({"nvidia": OLD}, "runc"), []),
        (live({"nvidia": None}, "runc"), live({"nvidia": None}, "runc"), []),
        (live({"nvidia": OLD}, "runc"), live({"nvidia": PATH}, "runc"), [LEFT]),
        (live({"nvidia": OLD}, "runc"), live({"nvidia": None}, "runc"), []),
        (live({"nvidia": None}, "runc"), live({"nvidia": PATH}, "runc"), []),
        (live({"nvidia": PATH}, "runc"), live({"nvidia": PATH}, "runc"), []),
        (live({}, "runc"), live({"nvidia": PATH}, "nvidia"), [LEFT, "its default runtime is still nvidia"]),
        (live({}, "runc"), live({}, "nvidia"), ["its default runtime is still nvidia"]),
        # another one than ours is somebody else's, and what was so before is as before
        (live({}, "runc"), live({}, "crun"), []),
        (live({"nvidia": OLD}, "nvidia"), live({"nvidia": OLD}, "nvidia"), []),
        (None, live({}, "nvidia"), []),
    ],
)
def test_an_engine_has_forgotten_a_change_once_it_serves_nothing_of_it(
    before: LiveState | None, now: LiveState, wrong: list[str]
) -> None:
    inspection = Inspection("/run/x.sock", (), before)
    made = plan.EngineWork(EngineName.DOCKER, inspection, DesiredState((), SERVED, "nvidia"))
    assert plan.find_unreverted(now, made) == wrong


def test_what_a_distribution_registers_by_itself_is_no_leftover() -> None:
    now = LiveState("1", {"nvidia": PATH}, None, own=frozenset({"nvidia"}))
    made = plan.EngineWork(
        EngineName.CONTAINERD, Inspection("/run/x", (), live({}, None)), DesiredState((), SERVED, "")
    )
    assert plan.find_unreverted(now, made) == []


# --- engines whose files are others now ---

NEW, OLD_PLACE = "/etc/new/config.toml", "/etc/old/config.toml"
THEIRS, OURS, EDITED = "a" * 64, "b" * 64, "c" * 64


def recorded(path: str, before: str | None, *written: str, name: EngineName = EngineName.CONTAINERD) -> EngineRecord:
    known = OriginalFile(before, 0o644, 0, 0) if before is not None else None
    return EngineRecord(name, "/run/x", None, (), None, (FileRecord("root", path, known, written),))


def configured_in(path: str) -> plan.EngineWork:
    file = EngineFile("root", path, None)
    goals = DesiredState((DesiredFile(file, None, b"ours"),), SERVED, None)
    return plan.EngineWork(EngineName.CONTAINERD, Inspection("/run/x", (file,), None), goals)


@pytest.mark.parametrize(
    "record, is_moved",
    [
        pytest.param(recorded(OLD_PLACE, None, OURS), True, id="it was made for us"),
        pytest.param(recorded(OLD_PLACE, THEIRS, OURS), True, id="we edited it"),
        pytest.param(recorded(OLD_PLACE, THEIRS, THEIRS, EDITED), True, id="it may be as it was, or ours"),
        pytest.param(recorded(OLD_PLACE, THEIRS, THEIRS), False, id="only an older installer's entries went from it"),
        pytest.param(recorded(OLD_PLACE, None), False, id="nothing of ours was ever written"),
        pytest.param(recorded(OLD_PLACE, THEIRS), False, id="it was only looked at"),
        pytest.param(recorded(NEW, None, OURS), False, id="it is the same file"),
        pytest.param(recorded(OLD_PLACE, None, OURS, name=EngineName.CRIO), False, id="it is another engine's"),
    ],
)
def test_an_engine_counts_as_moved_if_a_file_it_no_longer_has_may_hold_our_entries(
    record: EngineRecord, *, is_moved: bool
) -> None:
    assert plan.find_moved_engine([record], [configured_in(NEW)]) == (record if is_moved else None)


def test_the_folders_of_files_that_change_are_named_once() -> None:
    assert plan.list_changed_folders([configured_in(NEW), configured_in("/etc/new/b"), configured_in(OLD_PLACE)]) == [
        "/etc/new",
        "/etc/old",
    ]
    untouched = EngineFile("root", NEW, None)
    goals = DesiredState((DesiredFile(untouched, None, None),), SERVED, None)
    assert (
        plan.list_changed_folders([plan.EngineWork(EngineName.CRIO, Inspection("/run/x", (untouched,), None), goals)])
        == []
    )
