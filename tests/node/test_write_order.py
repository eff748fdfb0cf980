"""What is on the disk when: receipt before change, content before name, all of it before the engine reloads."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable

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
from toolkit_installer.toolkit import layout


def calls_of(made: Bench, deed: Deed) -> list[Call]:
    done = made.whole(made.after(made.original, *deed.before), deed.command)
    assert done.outcome.code == 0, done.outcome.output
    return on_the_node(done.outcome.trace, str(made.node.root))


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_no_power_cut_leaves_a_change_without_its_record_or_a_name_without_content(made: Bench, deed: Deed) -> None:
    calls = calls_of(made, deed)
    assert len(calls) > 10
    assert disorder(calls) == []


def test_nor_can_one_while_an_install_that_was_told_to_stop_is_taken_back(made: Bench) -> None:
    done = made.whole(made.original, interrupted(made))
    assert disorder(on_the_node(done.outcome.trace, str(made.node.root))) == []


@pytest.mark.parametrize("deed", [deed_of(INSTALL), deed_of(REINSTALL)], ids=str)
def test_a_killed_runs_renames_are_on_disk_before_an_engine_names_the_files(made: Bench, deed: Deed) -> None:
    """What is in its place is not made again: only the entries of its folder may not be on the disk yet."""
    before = made.after(made.original, *deed.before)
    done, worlds = made.instants(before, deed.command)
    calls = done.outcome.trace
    switch = next((at for at, call in enumerate(calls) if _switches(made, call)), len(calls))
    # the last one of each folder: what comes after it has nothing more to do there
    last = {folder_of(call): at for at, call in enumerate(calls[:switch]) if call.name in RENAMES}
    boot = made.outside("/run")  # what is in it ends with the boot
    last = {folder: at for folder, at in last.items() if folder != boot and not folder.startswith(f"{boot}/")}
    assert made.toolkit in last
    for folder, at in last.items():
        after = made.do(worlds[at + 1], deed.finishing).outcome.trace
        early = list(itertools.takewhile(lambda call: not _switches(made, call), after))
        assert Call("fsync", (folder,)) in early, f"killed after call {at}, {calls[at]}"


@pytest.mark.parametrize("command", [UNINSTALL, CLEANUP], ids=["uninstall", "cleanup"])
def test_a_killed_runs_reverts_are_on_disk_before_the_next_one_removes_the_toolkit(
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


def test_a_first_install_flushes_a_folder_once_for_consecutive_files_in_it(made: Bench) -> None:
    """Nobody refers to them before the engine's file does: flushed one by one they cost as many waits for the disk."""
    calls = calls_of(made, deed_of(INSTALL))
    named = [at for at, call in enumerate(calls) if _brings_a_file_of_the_toolkit(call)]
    folders = [folder_of(calls[at]) for at in named]
    stretches = [folder for folder, _ in itertools.groupby(folders)]
    assert len(folders) > 10
    assert len(stretches) == 3  # the libraries, the configuration, the programs
    since = calls[named[0] : named[-1] + 2]
    assert [call.paths[0] for call in since if call.name == "fsync" and call.paths[0] in folders] == stretches


def removed_by_somebody(made: Bench) -> World:
    """The engine's file names what is gone."""
    installed = made.after(made.original, INSTALL)
    tree = {path: entry for path, entry in installed.tree.items() if not f"{path}/".startswith(f"{soundness.TOOLKIT}/")}
    return World(tree, installed.served)


def killed_before_the_toolkit(made: Bench) -> World:
    done, worlds = made.instants(made.original, INSTALL)
    return worlds[next(at for at, call in enumerate(done.outcome.trace) if brings(call, made.toolkit))]


def killed_amid_the_toolkit(made: Bench) -> World:
    done, worlds = made.instants(made.original, INSTALL)
    at = [at for at, call in enumerate(done.outcome.trace) if brings(call, f"{made.toolkit}/nvidia-container-runtime")]
    return worlds[at[0]]


def left_by_an_older_installer(made: Bench) -> World:
    """A file is there, and no receipt: who else knows of it is not known, either."""
    tree = made.after(made.original, INSTALL).tree
    older = {path: tree[path] for path in ("/usr/local/nvidia", soundness.TOOLKIT)}
    library = next(path for path in tree if path.startswith(f"{soundness.TOOLKIT}/libnvidia-container.so.1."))
    return World({**made.original.tree, **older, library: tree[library]}, made.original.served)


@pytest.mark.parametrize(
    "start",
    [
        lambda made: made.after(made.original, INSTALL),
        removed_by_somebody,
        killed_before_the_toolkit,
        killed_amid_the_toolkit,
        left_by_an_older_installer,
    ],
    ids=["installed", "removed", "killed before", "killed amid", "older"],
)
def test_in_a_toolkit_in_use_each_file_is_flushed_before_the_next_is_named(
    made: Bench, start: Callable[[Bench], World]
) -> None:
    """After a power cut, a new wrapper would stand beside the old program, or none, that it calls."""
    done = made.do(start(made), REINSTALL)
    assert done.outcome.code == 0, done.outcome.output
    calls = on_the_node(done.outcome.trace, str(made.node.root))
    named = [at for at, call in enumerate(calls) if _brings_a_file_of_the_toolkit(call)]
    assert len(named) > 2
    for at in named:
        assert calls[at + 1] == Call("fsync", (folder_of(calls[at]),))


def _brings_a_file_of_the_toolkit(call: Call) -> bool:
    """Tell whether a call has a file of the toolkit get its name; its folders get theirs in the same way."""
    folders = {soundness.TOOLKIT, *(f"{soundness.TOOLKIT}/{folder}" for folder in layout.FOLDERS)}
    return call.name in RENAMES and _in_place(call.paths[-1]) and call.paths[-1] not in folders


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
def test_a_live_engine_reloads_after_its_file_and_before_removals_of_what_it_named(made: Bench, deed: Deed) -> None:
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
def test_an_engine_that_others_reverted_is_reloaded_only_if_it_serves_the_handlers(
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
