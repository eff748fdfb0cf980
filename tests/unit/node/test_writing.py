"""Files wholly ours, copies, symlinks and folders: whole or not at all, and known as ours."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.node.etc_folder import PATH, names, place
from tests.unit.noted_calls import Calls
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.writing import TEMPORARY_SUFFIX, own_metadata, temporary_name

OLD, NEW = b'{"old": 1}', b'{"new": 2}' * 1000


def test_a_file_of_ours_takes_the_place_of_a_symlink_and_not_of_its_target(files: Files) -> None:
    place(files, "elsewhere").write_bytes(OLD)
    place(files).symlink_to("elsewhere")
    files.overwrite(PATH, NEW, own_metadata(0o640))
    assert not place(files).is_symlink()
    assert (place(files).read_bytes(), stat.S_IMODE(place(files).stat().st_mode)) == (NEW, 0o640)
    assert place(files, "elsewhere").read_bytes() == OLD


@pytest.mark.parametrize("flush", [True, False])
def test_a_name_is_flushed_at_once_unless_the_caller_flushes_the_folder(
    files: Files, calls: Calls, *, flush: bool
) -> None:
    files.overwrite(PATH, NEW, own_metadata(0o600), flush=flush)
    files.symlink("elsewhere", "/etc/link", flush=flush)
    assert calls.noted.count("fsync") == (3 if flush else 1), "the content, and each name"
    files.flush_folder("/etc")
    assert calls.noted[-1] == "fsync"


def test_what_is_removed_already_or_lay_in_a_folder_that_is_gone_is_no_error(files: Files) -> None:
    files.overwrite(PATH, NEW, own_metadata(0o600))
    for _ in range(2):
        files.remove(PATH)
        assert names(files) == []
    files.remove("/nowhere/at/all")


def test_in_a_folder_of_ours_temporary_names_alone_are_swept(files: Files) -> None:
    theirs = [".hidden", f"visible{TEMPORARY_SUFFIX}"]
    for name in (*theirs, temporary_name("a")):
        place(files, name).write_bytes(b"half")
    place(files, temporary_name("b")).mkdir()
    assert sorted(files.half_made("/etc")) == [temporary_name("a"), temporary_name("b")]
    files.sweep_folder("/etc")
    assert names(files) == theirs
    files.sweep_folder("/etc")


def test_a_temporary_file_of_a_killed_run_is_swept(files: Files) -> None:
    place(files).with_name(temporary_name("daemon.json")).write_bytes(b"half")
    files.sweep(PATH)
    assert names(files) == []
    files.sweep(PATH)
    place(files).with_name(temporary_name("daemon.json")).mkdir()  # as one that was to be a folder
    files.sweep(PATH)
    assert names(files) == []


SPARSE = 3 * 1024 * 1024 + 17


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    with path.open("wb") as stream:
        stream.write(b"head")
        stream.seek(SPARSE - 4)
        stream.write(b"tail")
    return path


@pytest.fixture
def told() -> list[int]:
    """How long the pieces were that the copy told of."""
    return []


@pytest.mark.parametrize("clone", [None, errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL])
@pytest.mark.parametrize("copy_range", [None, errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS, errno.EPERM])
def test_a_copy_is_whole_whatever_the_kernel_can_do(
    files: Files, calls: Calls, source: Path, clone: int | None, copy_range: int | None, told: list[int]
) -> None:
    calls.errors |= {name: number for name, number in (("clone", clone), ("copy_range", copy_range)) if number}
    files.copy(str(source), PATH, own_metadata(0o755), told.append)
    assert place(files).read_bytes() == source.read_bytes()
    assert stat.S_IMODE(place(files).stat().st_mode) == 0o755
    assert names(files) == ["daemon.json"]
    assert sum(told) == SPARSE


def test_where_the_file_system_shares_blocks_nothing_is_copied(
    files: Files, calls: Calls, source: Path, monkeypatch: pytest.MonkeyPatch, told: list[int]
) -> None:
    def clone(_self: SystemCalls, origin: int, target: int) -> None:
        os.copy_file_range(origin, target, SPARSE, 0, 0)

    monkeypatch.setattr(SystemCalls, "clone", clone)
    files.copy(str(source), PATH, own_metadata(0o755), told.append)
    assert place(files).read_bytes() == source.read_bytes()
    assert not {"copy_range", "write"} & set(calls.noted)
    assert told == [SPARSE]


def no_reflink(*_arguments: object) -> None:
    raise OSError(errno.ENOTTY, "")


def test_a_copy_that_the_kernel_gives_up_half_way_continues_in_memory(
    files: Files, source: Path, monkeypatch: pytest.MonkeyPatch, told: list[int]
) -> None:
    asked: list[int] = []
    written: list[int] = []

    def copy_range(_self: SystemCalls, origin: int, target: int, _count: int) -> int:
        asked.append(1)
        if len(asked) > 2:
            raise OSError(errno.EXDEV, "")
        return os.copy_file_range(origin, target, 100_000)

    def write(_self: SystemCalls, fd: int, data: bytes | memoryview) -> int:
        written.append(os.write(fd, data))
        return written[-1]

    monkeypatch.setattr(SystemCalls, "copy_range", copy_range)
    monkeypatch.setattr(SystemCalls, "write", write)
    monkeypatch.setattr(SystemCalls, "clone", no_reflink)
    files.copy(str(source), PATH, own_metadata(0o644), told.append)
    assert place(files).read_bytes() == source.read_bytes()
    assert sum(written) == SPARSE - 200_000
    assert told[:2] == [100_000, 100_000]
    assert sum(told) == SPARSE
    assert max(told) <= 1 << 20


def test_a_kernel_that_copies_nothing_and_says_no_error_leaves_no_empty_file(
    files: Files, source: Path, monkeypatch: pytest.MonkeyPatch, told: list[int]
) -> None:
    monkeypatch.setattr(SystemCalls, "copy_range", lambda *_: 0)
    monkeypatch.setattr(SystemCalls, "clone", no_reflink)
    files.copy(str(source), PATH, own_metadata(0o644), told.append)
    assert place(files).read_bytes() == source.read_bytes()


def shorter(source: Path) -> None:
    before = source.stat()
    os.truncate(source, 150_000)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # what a file system's coarse clock comes to


def longer(source: Path) -> None:
    with source.open("ab") as stream:
        stream.write(b"more")


def another_of_the_same_length(source: Path) -> None:
    with source.open("r+b") as stream:
        stream.write(b"HEAD")
    os.utime(source, (1, 1))  # the clock of a file system may not have moved on since the test made the file


@pytest.mark.parametrize("change", [shorter, longer, another_of_the_same_length])
@pytest.mark.parametrize("by_kernel", [True, False], ids=["by the kernel", "through memory"])
def test_a_file_that_somebody_changes_while_it_is_copied_is_not_put_in_place(
    files: Files,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    told: list[int],
    *,
    by_kernel: bool,
) -> None:
    """The first version's beginning and the second one's end are neither."""
    place(files).write_bytes(OLD)
    changes = [change]

    def copy_range(_self: SystemCalls, origin: int, target: int, _count: int) -> int:
        copied = os.copy_file_range(origin, target, 100_000)
        while changes:
            changes.pop()(source)
        if not by_kernel:
            raise OSError(errno.EOPNOTSUPP, "")
        return copied

    monkeypatch.setattr(SystemCalls, "copy_range", copy_range)
    monkeypatch.setattr(SystemCalls, "clone", no_reflink)
    with pytest.raises(ConfigurationError, match="changed while it was copied") as raised:
        files.copy(str(source), PATH, own_metadata(0o644), told.append)
    assert raised.value.path == str(source)
    assert place(files).read_bytes() == OLD
    assert names(files) == ["daemon.json"]


@pytest.mark.parametrize("call", ["clone", "copy_range", "write"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_copy_on_a_full_or_broken_disk_fails_and_leaves_what_was_there(
    files: Files, calls: Calls, source: Path, call: str, number: int, told: list[int]
) -> None:
    place(files).write_bytes(OLD)
    calls.errors = {"clone": errno.EOPNOTSUPP, "copy_range": errno.EXDEV, call: number}
    with pytest.raises(NodeError, match=os.strerror(number)):
        files.copy(str(source), PATH, own_metadata(0o644), told.append)
    assert place(files).read_bytes() == OLD
    assert names(files) == ["daemon.json"]


MIDDLE_ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE]


@pytest.mark.parametrize("call", ["copy_range", "write"])
@pytest.mark.parametrize("number", MIDDLE_ERRORS)
def test_an_error_in_the_middle_of_a_copy_leaves_what_was_there(
    files: Files, source: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, told: list[int]
) -> None:
    place(files).write_bytes(OLD)
    real = getattr(SystemCalls, call)

    def fails_later(self: SystemCalls, *arguments: int) -> int:
        if sum(told):
            raise OSError(number, os.strerror(number))
        return int(real(self, *arguments))

    monkeypatch.setattr(SystemCalls, "clone", no_reflink)
    if call == "write":
        monkeypatch.setattr(SystemCalls, "copy_range", lambda *_: 0)
    monkeypatch.setattr(SystemCalls, call, fails_later)
    with pytest.raises(NodeError, match=os.strerror(number)) as failed:
        files.copy(str(source), PATH, own_metadata(0o644), told.append)
    assert sum(told) == 1 << 20
    assert (failed.value.number, failed.value.path) == (number, PATH)
    assert failed.value.hint
    assert place(files).read_bytes() == OLD
    assert names(files) == ["daemon.json"]


@pytest.mark.parametrize("number", MIDDLE_ERRORS)
def test_a_source_that_cannot_be_read_to_its_end_is_the_one_that_is_named(
    files: Files, source: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: list[int]
) -> None:
    place(files).write_bytes(OLD)
    real = os.read

    def read(fd: int, count: int) -> bytes:
        if sum(told):
            raise OSError(number, os.strerror(number))
        return real(fd, count)

    monkeypatch.setattr(SystemCalls, "clone", no_reflink)
    monkeypatch.setattr(SystemCalls, "copy_range", lambda *_: 0)
    monkeypatch.setattr(os, "read", read)
    with pytest.raises(NodeError, match=os.strerror(number)) as failed:
        files.copy(str(source), PATH, own_metadata(0o644), told.append)
    assert (failed.value.number, failed.value.path) == (number, str(source))
    assert place(files).read_bytes() == OLD
    assert names(files) == ["daemon.json"]


def test_a_symlink_takes_the_place_of_a_file_at_once(files: Files, calls: Calls) -> None:
    place(files).write_bytes(OLD)
    files.symlink("elsewhere", PATH)
    assert os.readlink(place(files)) == "elsewhere"
    assert calls.noted == ["symlink", "rename", "fsync"]
    assert files.link_target(PATH) == "elsewhere"


def test_a_symlink_that_cannot_be_renamed_leaves_no_temporary_one(files: Files, calls: Calls) -> None:
    calls.errors["rename"] = errno.EIO
    with pytest.raises(NodeError):
        files.symlink("elsewhere", PATH)
    assert names(files) == []


def test_folders_are_made_outermost_first_and_told(files: Files) -> None:
    assert files.missing_folders("/etc/a/b/c") == ("/etc/a", "/etc/a/b", "/etc/a/b/c")
    assert files.make_folders("/etc/a/b/c", 0o700) == ("/etc/a", "/etc/a/b", "/etc/a/b/c")
    assert files.make_folders("/etc/a/b/c") == ()
    assert stat.S_IMODE(place(files, "/etc/a/b").stat().st_mode) == 0o700


def test_a_strict_umask_does_not_close_the_toolkits_folder_to_others(files: Files) -> None:
    old = os.umask(0o077)
    try:
        files.make_folders("/etc/a")
    finally:
        os.umask(old)
    assert stat.S_IMODE(place(files, "/etc/a").stat().st_mode) == 0o755


def test_a_folder_that_others_use_is_left(files: Files) -> None:
    place(files).write_bytes(OLD)
    assert files.remove_folder("/etc") is False
    files.remove(PATH)
    assert files.remove_folder("/etc") is True
    assert files.remove_folder("/etc") is True


def test_a_folder_that_we_made_is_known_as_ours_without_any_record(files: Files) -> None:
    place(files, "theirs").mkdir()
    files.make_folders("/etc/theirs/a/b")
    assert files.folders_of_ours("/etc/theirs/a/b/c") == ("/etc/theirs/a", "/etc/theirs/a/b", "/etc/theirs/a/b/c")
    assert files.folders_of_ours("/etc/theirs") == ()


def test_only_a_folder_that_could_have_our_mark_and_lacks_it_is_somebody_elses(files: Files) -> None:
    files.make_folders("/etc/ours")
    place(files, "theirs").mkdir()
    assert files.made_by_others("/etc/theirs")
    assert not files.made_by_others("/etc/ours")
    assert not files.made_by_others("/etc/absent")


def test_a_folder_that_cannot_get_its_name_leaves_no_temporary_one(files: Files, calls: Calls) -> None:
    calls.errors["rename_new"] = errno.ENOSPC
    with pytest.raises(NodeError, match="cannot create the folder"):
        files.make_folders("/etc/a")
    assert names(files) == []


@pytest.mark.parametrize("error", [errno.EBUSY, errno.ENOTEMPTY])
def test_a_mount_point_stays_and_a_disk_error_is_told(files: Files, calls: Calls, error: int) -> None:
    files.make_folders("/etc/a")
    calls.errors["rmdir"] = error
    assert files.remove_folder("/etc/a") is False
    calls.errors["rmdir"] = errno.EIO
    with pytest.raises(NodeError, match="cannot remove the folder") as raised:
        files.remove_folder("/etc/a")
    assert raised.value.path == "/etc/a"


def test_a_folder_beneath_one_of_somebody_elses_is_not_taken_for_a_chain_of_ours(files: Files) -> None:
    files.make_folders("/etc/ours")
    place(files, "ours").joinpath("theirs").mkdir()
    assert files.folders_of_ours("/etc/ours/theirs/new") == ("/etc/ours/theirs/new",)


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EPERM])
def test_a_file_system_without_attributes_is_no_reason_to_fail(files: Files, calls: Calls, error: int) -> None:
    calls.errors["setxattr"] = error
    assert files.make_folders("/etc/a") == ("/etc/a",)
    assert files.folders_of_ours("/etc/a") == ()


def test_a_folder_that_somebody_else_makes_meanwhile_is_not_ours(files: Files, calls: Calls) -> None:
    calls.before["rename_new"] = lambda: place(files, "a").mkdir()
    assert files.make_folders("/etc/a") == ()
    assert names(files) == ["a"]


def test_a_folder_appears_with_its_mode_and_its_mark_at_once(files: Files, calls: Calls) -> None:
    modes = []
    calls.before["rename_new"] = lambda: modes.append(place(files, temporary_name("a")).stat().st_mode & 0o777)
    files.make_folders("/etc/a", 0o700)
    assert modes == [0o700]
    assert calls.noted[-4:] == ["setxattr", "fsync", "rename_new", "fsync"]


def test_an_unfinished_folder_of_a_killed_run_is_made_anew_or_removed(files: Files) -> None:
    place(files, temporary_name("a")).mkdir()
    assert files.make_folders("/etc/a") == ("/etc/a",)
    place(files, temporary_name("a")).mkdir()
    assert files.remove_folder("/etc/a") is True
    assert names(files) == []
