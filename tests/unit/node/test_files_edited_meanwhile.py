"""Files that others write as well: an edit made at the very instant of our own is found, and never lost."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable

import pytest

from tests.unit.node.etc_folder import PATH, names, place, present
from tests.unit.noted_calls import Calls
from toolkit_installer.node.files import KEPT_SUFFIX, ChangedMeanwhileError, Files, Recovered, swap_name
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.writing import own_metadata, temporary_name

OLD, NEW, THEIRS = b'{"old": 1}', b'{"new": 2}', b'{"own": 3}'


@pytest.fixture
def files(files: Files) -> Files:
    place(files).write_bytes(OLD)
    return files


def in_place(files: Files) -> None:
    """Write as many bytes over it, and set the time back: only the content tells."""
    status = place(files).stat()
    place(files).write_bytes(THEIRS)
    os.utime(place(files), ns=(status.st_atime_ns, status.st_mtime_ns))


def by_rename(files: Files) -> None:
    place(files, "other").write_bytes(THEIRS)
    place(files, "other").rename(place(files))


def by_symlink(files: Files) -> None:
    place(files, "elsewhere").write_bytes(OLD)
    place(files).unlink()
    place(files).symlink_to("elsewhere")


def by_folder(files: Files) -> None:
    place(files).unlink()
    place(files).mkdir()


def by_fifo(files: Files) -> None:
    place(files).unlink()
    os.mkfifo(place(files))


def by_mode(files: Files) -> None:
    place(files).chmod(0o604)


def by_owner(files: Files) -> None:
    os.setxattr(place(files), "user.note", b"theirs")


DEEDS = [in_place, by_rename, by_symlink, by_folder, by_fifo, by_mode, by_owner]


def seen(files: Files) -> tuple[list[str], int, bytes | None]:
    status = place(files).lstat()
    return names(files), status.st_mode, place(files).read_bytes() if place(files).is_file() else None


@pytest.mark.parametrize("deed", DEEDS)
def test_an_edit_between_the_last_look_and_the_exchange_is_given_back(
    files: Files, calls: Calls, deed: Callable[[Files], None]
) -> None:
    expected = present(files)
    theirs = []

    def meanwhile() -> None:
        deed(files)
        theirs.append(seen(files))

    calls.before["exchange"] = meanwhile
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), expected)
    left, mode, content = theirs[0]
    left.remove(swap_name("daemon.json"))
    assert seen(files) == (left, mode, content)


def test_a_file_that_vanishes_at_the_exchange_stays_away(files: Files, calls: Calls) -> None:
    expected = present(files)
    calls.before["exchange"] = lambda: place(files).unlink()
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), expected)
    assert names(files) == []


def test_of_two_edits_in_a_row_the_later_one_stays(files: Files, calls: Calls) -> None:
    expected = present(files)

    def again() -> None:
        place(files).write_bytes(b"later")

    def first() -> None:
        by_rename(files)
        calls.before["exchange"] = again

    calls.before["exchange"] = first
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), expected)
    assert place(files).read_bytes() == b"later"
    assert names(files) == ["daemon.json"]


def test_of_two_renames_in_a_row_the_later_one_stays(files: Files, calls: Calls) -> None:
    expected = present(files)

    def again() -> None:
        place(files, "other").write_bytes(b"later")
        place(files, "other").rename(place(files))

    def first() -> None:
        by_rename(files)
        calls.before["exchange"] = again

    calls.before["exchange"] = first
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), expected)
    assert place(files).read_bytes() == b"later"


def test_a_file_that_appears_at_the_very_rename_is_not_overwritten(files: Files, calls: Calls) -> None:
    place(files).unlink()
    calls.before["rename_new"] = lambda: by_rename(files)
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), None)
    assert place(files).read_bytes() == THEIRS
    assert names(files) == ["daemon.json"]


@pytest.mark.parametrize("deed", DEEDS)
def test_an_edit_between_the_last_look_and_the_removal_is_given_back(
    files: Files, calls: Calls, deed: Callable[[Files], None]
) -> None:
    expected = present(files)
    theirs = []

    def meanwhile() -> None:
        deed(files)
        theirs.append(seen(files))

    calls.before["rename_new"] = meanwhile
    with pytest.raises(ChangedMeanwhileError):
        files.remove_expected(expected)
    assert seen(files) == theirs[0]


def test_what_was_read_is_removed_and_nothing_is_left_beside_it(files: Files, calls: Calls) -> None:
    files.remove_expected(present(files))
    assert names(files) == []
    assert calls.noted == ["rename_new", "unlink", "fsync"]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS])
def test_where_names_cannot_be_exchanged_files_are_replaced_and_removed_all_the_same(
    files: Files, calls: Calls, error: int
) -> None:
    calls.errors |= {"exchange": error, "rename_new": error}
    files.replace(PATH, NEW, own_metadata(0o600), present(files))
    assert place(files).read_bytes() == NEW
    files.remove_expected(present(files))
    assert names(files) == []
    files.replace(PATH, NEW, own_metadata(0o600), None)
    assert names(files) == ["daemon.json"]
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), None)


def test_a_disk_that_fails_at_the_unlink_leaves_the_new_version_and_says_so(files: Files, calls: Calls) -> None:
    calls.errors["unlink"] = errno.EIO
    with pytest.raises(NodeError):
        files.replace(PATH, NEW, own_metadata(0o600), present(files))
    assert place(files).read_bytes() == NEW
    calls.errors.clear()
    assert files.recover(PATH, {digest(OLD)}) is Recovered.REMOVED
    assert names(files) == ["daemon.json"]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


OURS = frozenset({digest(OLD), digest(NEW)})


@pytest.mark.parametrize(
    "stands, swap, recovered, result",
    [
        (OLD, None, Recovered.NOTHING, OLD),
        (OLD, NEW, Recovered.REMOVED, OLD),
        (NEW, OLD, Recovered.REMOVED, NEW),
        (NEW, THEIRS, Recovered.RETURNED, THEIRS),
        (None, NEW, Recovered.REMOVED, None),
        (None, THEIRS, Recovered.RETURNED, THEIRS),
        (b"newer", THEIRS, Recovered.KEPT, b"newer"),
        (b"newer", NEW, Recovered.REMOVED, b"newer"),
    ],
)
def test_what_a_killed_run_left_beside_a_file_is_tidied_up_and_no_edit_is_lost(
    files: Files, stands: bytes | None, swap: bytes | None, recovered: Recovered, result: bytes | None
) -> None:
    place(files).unlink()
    for name, content in (("daemon.json", stands), (swap_name("daemon.json"), swap)):
        if content is not None:
            place(files, name).write_bytes(content)
    place(files, temporary_name("daemon.json")).write_bytes(b"half")
    assert files.recover(PATH, OURS) is recovered
    assert (place(files).read_bytes() if place(files).exists() else None) == result
    kept = place(files, f"daemon.json{KEPT_SUFFIX}")
    assert kept.exists() == (recovered is Recovered.KEPT)
    if recovered is Recovered.KEPT:
        assert kept.read_bytes() == THEIRS
        kept.unlink()
    assert names(files) == ([] if result is None else ["daemon.json"])
    assert files.recover(PATH, OURS) is Recovered.NOTHING


def test_where_every_file_of_the_folder_counts_a_version_that_is_kept_lies_elsewhere(files: Files) -> None:
    place(files).write_bytes(b"newer")
    aside = place(files).parents[1] / "aside"
    aside.mkdir()
    for _killed_once_it_was_saved in range(2):
        place(files, swap_name("daemon.json")).write_bytes(THEIRS)
        assert files.recover(PATH, OURS, "/aside") is Recovered.QUARANTINED
        assert names(files) == ["daemon.json"]
        (kept,) = aside.iterdir()
        assert kept.name.endswith(KEPT_SUFFIX)
        assert kept.read_bytes() == THEIRS
    place(files, swap_name("daemon.json")).write_bytes(b"another")
    assert files.recover(PATH, OURS, "/aside") is Recovered.QUARANTINED
    assert {kept.read_bytes() for kept in aside.iterdir()} == {THEIRS, b"another"}
    place(files).unlink()
    place(files, swap_name("daemon.json")).write_bytes(THEIRS)
    assert files.recover(PATH, OURS, "/aside") is Recovered.RETURNED
    assert place(files).read_bytes() == THEIRS


def test_another_runs_half_written_file_under_our_temporary_name_is_never_installed(files: Files, calls: Calls) -> None:
    def overtake() -> None:
        place(files, temporary_name("daemon.json")).unlink()
        place(files, temporary_name("daemon.json")).write_bytes(b"hal")

    calls.before["rename_new"] = overtake
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), present(files))
    assert place(files).read_bytes() == OLD


def test_a_symlink_at_the_name_of_the_exchange_is_not_followed(files: Files) -> None:
    place(files, "elsewhere").write_bytes(THEIRS)
    place(files, swap_name("daemon.json")).symlink_to("elsewhere")
    files.recover(PATH, OURS)
    assert names(files) == ["daemon.json", "elsewhere"]
    assert place(files, "elsewhere").read_bytes() == THEIRS


def test_what_waits_at_the_name_of_the_exchange_is_not_overwritten(files: Files) -> None:
    place(files, swap_name("daemon.json")).write_bytes(THEIRS)
    with pytest.raises(NodeError):
        files.replace(PATH, NEW, own_metadata(0o600), present(files))
    assert place(files, swap_name("daemon.json")).read_bytes() == THEIRS
    assert place(files).read_bytes() == OLD
