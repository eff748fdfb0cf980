"""What is on the disk when: receipt before change, content before name, all of it before the engine reloads."""

from __future__ import annotations

import posixpath

import pytest

from tests.node.faults import RENAMES, Call
from tests.node.sweeps import soundness
from tests.node.sweeps.matrix import DEEDS, Bench, Deed, interrupted
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


def _in_place(path: str) -> bool:
    return path.startswith(f"{soundness.TOOLKIT}/") and not soundness.temporary(path)
