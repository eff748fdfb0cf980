"""What is on the disk when: receipt before change, content before name, all of it before the engine reloads."""

from __future__ import annotations

import itertools
import posixpath

import pytest

from tests.node.engines.rules import started
from tests.node.faults import RENAMES, Call
from tests.node.sweeps import soundness
from tests.node.sweeps.matrix import (
    CLEANUP,
    DEEDS,
    INSTALL,
    REINSTALL,
    UNINSTALL,
    Bench,
    Command,
    Deed,
    World,
    brings,
    deed_of,
    interrupted,
    removes,
)
from tests.node.sweeps.ordering import ASKING, NAMES, disorder, on_the_node


def calls_of(made: Bench, deed: Deed) -> list[Call]:
    done = made.whole(made.after(made.original, *deed.before), deed.command)
    assert done.outcome.code == 0, done.outcome.output
    return on_the_node(done.outcome.trace, str(made.node.root))


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_no_power_cut_can_leave_a_change_without_its_record_or_a_name_without_its_content(
    made: Bench, deed: Deed
) -> None:
    calls = calls_of(made, deed)
    assert len(calls) > 10
    assert disorder(calls) == []


def test_nor_can_one_while_an_install_that_was_told_to_stop_is_taken_back(made: Bench) -> None:
    done = made.whole(made.original, interrupted(made))
    assert disorder(on_the_node(done.outcome.trace, str(made.node.root))) == []


@pytest.mark.parametrize("deed", [deed_of(INSTALL), deed_of(REINSTALL)], ids=str)
def test_what_a_killed_run_had_renamed_is_on_the_disk_before_the_next_one_has_an_engine_name_it(
    made: Bench, deed: Deed
) -> None:
    """What is in its place is not made again: only the entries of its folder may not be on the disk yet."""
    before = made.after(made.original, *deed.before)
    done, worlds = made.instants(before, deed.command)
    calls = done.outcome.trace
    switch = next((at for at, call in enumerate(calls) if _switches(made, call)), len(calls))
    # the last one of each folder: what comes after it has nothing more to do there
    last = {folder_of(call): at for at, call in enumerate(calls[:switch]) if call.name in RENAMES}
    last.pop(made.outside("/run"), None)  # it ends with the boot
    assert made.toolkit in last
    for folder, at in last.items():
        after = made.do(worlds[at + 1], deed.finishing).outcome.trace
        early = list(itertools.takewhile(lambda call: not _switches(made, call), after))
        assert Call("fsync", (folder,)) in early, f"killed after call {at}, {calls[at]}"


@pytest.mark.parametrize("command", [UNINSTALL, CLEANUP], ids=["uninstall", "cleanup"])
def test_what_a_killed_run_had_given_back_is_on_the_disk_before_the_next_one_removes_the_toolkit(
    made: Bench, command: Command
) -> None:
    """The engine's file that names the toolkit could come back after a power cut."""
    before = made.after(made.original, INSTALL)
    done, worlds = made.instants(before, command)
    calls = done.outcome.trace
    given_back = [at for at, call in enumerate(calls) if _switches(made, call) or _unlinks(made, call)]
    assert given_back
    for at in given_back:
        flushed = Call("fsync", (folder_of(calls[at]),))
        for instant in range(at + 1, calls.index(flushed, at) + 1):
            after = made.do(worlds[instant], UNINSTALL).outcome.trace
            early = list(itertools.takewhile(lambda call: not removes(call, made.toolkit), after))
            assert flushed in early, f"killed before call {instant}, {calls[instant]}"


def _unlinks(made: Bench, call: Call) -> bool:
    """Tell whether a call removes one of the engine's files."""
    return any(removes(call, made.outside(path)) for path in soundness.FILES[made.make.engine])


def _switches(made: Bench, call: Call) -> bool:
    """Tell whether a call has one of the engine's files be another one."""
    return any(brings(call, made.outside(path)) for path in soundness.FILES[made.make.engine])


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_without_any_one_of_its_fsyncs_the_order_is_found_to_be_wrong(made: Bench, deed: Deed) -> None:
    calls = calls_of(made, deed)
    syncs = [at for at, call in enumerate(calls) if call.name == "fsync"]
    unnoticed = [at for at in syncs if not disorder([*calls[:at], *calls[at + 1 :]])]
    assert syncs
    for at in unnoticed:
        # there was nothing to be made durable, or the next one of the same folder does for both
        assert not changes_of(calls[:at], calls[at].paths[0]) or doubled(calls, at)


def changes_of(calls: list[Call], path: str) -> list[Call]:
    """Return the changes of a file or folder since its last fsync."""
    last = max((at for at, call in enumerate(calls) if call == Call("fsync", (path,))), default=0)
    return [call for call in calls[last:] if call.name != "fsync" and path in (*call.paths, folder_of(call))]


def doubled(calls: list[Call], at: int) -> bool:
    """Tell whether another fsync of the same folder comes before any entry elsewhere is changed."""
    later = calls[at + 1 :]
    folders = {folder_of(call) for call in later[: later.index(calls[at])] if call.name in NAMES}
    return folders <= {calls[at].paths[0]}


def folder_of(call: Call) -> str:
    return posixpath.dirname(call.paths[-1]) if call.paths else ""


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_a_receipt_that_comes_too_late_or_goes_too_early_is_found(made: Bench, deed: Deed) -> None:
    calls = calls_of(made, deed)
    receipts = [call for call in calls if any(path.startswith(soundness.STORE) for path in call.paths)]
    others = [call for call in calls if call not in receipts]
    assert disorder([*others, *receipts]) != []
    assert disorder([*receipts, *others]) != []


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_a_live_engine_is_asked_to_reload_after_its_file_and_before_what_it_no_longer_names_goes(
    made: Bench, deed: Deed
) -> None:
    calls = calls_of(made, deed)
    asked = [at for at, call in enumerate(calls) if call.name in ASKING]
    renames = [at for at, call in enumerate(calls) if call.name in RENAMES]
    switched = [at for at in renames if set(soundness.FILES[made.make.engine]) & set(calls[at].paths)]
    removed = [at for at, call in enumerate(calls) if call.name == "unlink" and _in_place(call.paths[0])]
    if made.live is None or not switched:
        assert not asked
        return
    assert len(asked) == 1
    assert min(switched) < asked[0]
    assert all(at > asked[0] for at in removed)


@pytest.mark.parametrize("command", [UNINSTALL, CLEANUP], ids=["uninstall", "cleanup"])
@pytest.mark.parametrize("reloaded", [True, False], ids=["reloaded", "not reloaded"])
def test_an_engine_whose_file_somebody_else_gave_back_is_reloaded_only_if_it_still_serves_the_handlers(
    made: Bench, command: Command, *, reloaded: bool
) -> None:
    installed = made.after(made.original, INSTALL)
    ours = soundness.FILES[made.make.engine]
    tree = {path: entry for path, entry in installed.tree.items() if path not in ours}
    tree |= {path: entry for path, entry in made.original.tree.items() if path in ours}
    forgetful = made.live is not None and reloaded
    done = made.do(World(tree, started(made.make.engine, tree) if forgetful else installed.served), command)
    assert done.outcome.code == 0, done.outcome.output
    asked = [call for call in done.outcome.trace if call.name in ASKING]
    assert len(asked) == (1 if made.live is not None and not reloaded else 0)
    assert soundness.TOOLKIT not in done.world.tree
    assert {path: done.world.tree.get(path) for path in ours} == {path: made.original.tree.get(path) for path in ours}


def _in_place(path: str) -> bool:
    return path.startswith(f"{soundness.TOOLKIT}/") and not soundness.temporary(path)
