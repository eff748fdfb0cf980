"""Replacing files of the node: whole or not at all, whatever fails, and nothing of it left lying about."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests.unit.noted_calls import Calls
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import reading
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import ChangedMeanwhileError, Files
from toolkit_installer.node.reading import Found, Metadata
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.node.writing import own_metadata, temporary_name

PATH = "/etc/daemon.json"
OLD, NEW = b'{"old": 1}', b'{"new": 2}' * 1000


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def files(tmp_path: Path, calls: Calls) -> Files:
    (tmp_path / "etc").mkdir()
    return Files(Root(str(tmp_path)), calls)


def place(files: Files, path: str = PATH) -> Path:
    return Path(files.root.outside(path))


def present(files: Files) -> Found:
    found = files.read_file(PATH)
    assert found is not None
    return found


def names(files: Files) -> list[str]:
    return sorted(os.listdir(place(files).parent))


def test_a_replaced_file_keeps_mode_owner_and_attributes(files: Files) -> None:
    place(files).write_bytes(OLD)
    place(files).chmod(0o4640)
    os.setxattr(place(files), "user.note", b"\x00\xff")
    if os.geteuid() == 0:
        os.chown(place(files), 12, 34)
        place(files).chmod(0o4640)
    before = place(files).stat()
    found = files.read_file(PATH)
    assert found is not None
    files.replace(PATH, NEW, found.metadata, found)
    after = place(files).stat()
    assert place(files).read_bytes() == NEW
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert os.getxattr(place(files), "user.note") == b"\x00\xff"
    assert names(files) == ["daemon.json"]


def test_content_is_durable_before_it_is_renamed_and_the_name_afterwards(files: Files, calls: Calls) -> None:
    files.replace(PATH, NEW, own_metadata(0o600), None)
    assert calls.noted == ["create_unnamed", "write", "chmod", "fsync", "link", "rename_new", "fsync"]


def test_a_new_file_has_no_name_until_it_is_whole_and_has_its_mode(files: Files, calls: Calls) -> None:
    seen: list[list[str]] = []
    calls.before["chmod"] = calls.before["link"] = lambda: seen.append(names(files))
    files.replace(PATH, NEW, own_metadata(0o644), None)
    assert seen == [[], []]
    assert stat.S_IMODE(place(files).stat().st_mode) == 0o644


def test_without_unnamed_files_a_new_one_is_closed_to_others_until_it_has_its_mode(files: Files, calls: Calls) -> None:
    calls.errors["create_unnamed"] = errno.EOPNOTSUPP
    seen: list[int] = []
    temporary = place(files).with_name(temporary_name("daemon.json"))
    calls.before["chmod"] = lambda: seen.append(stat.S_IMODE(temporary.stat().st_mode))
    files.replace(PATH, NEW, own_metadata(0o644), None)
    assert seen == [0o600]


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EPERM, errno.EXDEV])
def test_where_a_file_without_a_name_cannot_get_one_it_is_made_with_one(
    files: Files, calls: Calls, tmp_path: Path, error: int
) -> None:
    calls.errors["link"] = error
    files.replace(PATH, NEW, own_metadata(0o644), None)
    assert place(files).read_bytes() == NEW
    source = tmp_path / "source"
    source.write_bytes(NEW)
    files.copy(str(source), "/etc/copy", own_metadata(0o755), lambda _: None)
    assert place(files, "/etc/copy").read_bytes() == NEW
    assert names(files) == ["copy", "daemon.json"]
    assert calls.noted.count("create") == 2


def test_a_temporary_file_of_another_run_is_left_to_it(files: Files, calls: Calls) -> None:
    temporary = place(files).with_name(temporary_name("daemon.json"))
    calls.before["link"] = lambda: temporary.write_bytes(b"theirs")
    with pytest.raises(NodeError):
        files.replace(PATH, NEW, own_metadata(0o600), None)
    assert temporary.read_bytes() == b"theirs"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["create_unnamed", "write", "chmod", "fsync", "link", "rename_new", "exchange"])
def test_a_call_that_fails_leaves_the_old_file_and_no_temporary_one(
    files: Files, calls: Calls, call: str, error: int
) -> None:
    place(files).write_bytes(OLD)
    expected = present(files)
    calls.errors[call] = error
    with pytest.raises(NodeError) as raised:
        files.replace(PATH, NEW, own_metadata(0o600), expected)
    assert raised.value.number == error
    assert raised.value.path == PATH
    assert raised.value.hint
    assert place(files).read_bytes() == OLD
    assert names(files) == ["daemon.json"]


def test_an_owner_that_cannot_be_given_leaves_the_old_file(files: Files, calls: Calls) -> None:
    place(files).write_bytes(OLD)
    calls.errors["chown"] = errno.EPERM
    with pytest.raises(NodeError):
        files.replace(PATH, NEW, Metadata(0o600, os.geteuid() + 1, os.getegid()), present(files))
    assert place(files).read_bytes() == OLD
    assert names(files) == ["daemon.json"]


def test_an_attribute_that_cannot_be_given_leaves_the_old_file(files: Files, calls: Calls) -> None:
    calls.errors["setxattr"] = errno.ENOSPC
    with pytest.raises(NodeError):
        files.replace(PATH, NEW, Metadata(0o600, os.geteuid(), os.getegid(), (("user.a", b"1"),)), None)
    assert names(files) == []


def edit(files: Files) -> None:
    place(files).write_bytes(b"theirs")


def swap(files: Files) -> None:
    other = place(files).with_name("other")
    other.write_bytes(OLD)
    os.rename(other, place(files))


@pytest.mark.parametrize("deed", [edit, swap, lambda files: place(files).unlink()], ids=["edit", "swap", "remove"])
def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(
    files: Files, calls: Calls, deed: Callable[[Files], None]
) -> None:
    place(files).write_bytes(OLD)
    expected = present(files)
    theirs: list[bytes | None] = []

    def meanwhile() -> None:
        deed(files)
        theirs.append(place(files).read_bytes() if place(files).exists() else None)

    calls.before["fsync"] = meanwhile  # the last call before the rename
    with pytest.raises(ChangedMeanwhileError) as raised:
        files.replace(PATH, NEW, own_metadata(0o600), expected)
    assert raised.value.path == PATH
    assert theirs == [place(files).read_bytes() if place(files).exists() else None]
    assert not any(name.startswith(".") for name in names(files))


def test_a_file_that_appeared_meanwhile_is_not_overwritten(files: Files, calls: Calls) -> None:
    calls.before["fsync"] = lambda: edit(files)
    with pytest.raises(ChangedMeanwhileError):
        files.replace(PATH, NEW, own_metadata(0o600), None)
    assert place(files).read_bytes() == b"theirs"


def test_a_file_that_changed_is_not_removed(files: Files) -> None:
    place(files).write_bytes(OLD)
    expected = present(files)
    swap(files)
    with pytest.raises(ChangedMeanwhileError):
        files.remove_expected(expected)
    assert place(files).exists()


def test_removing_is_durable_and_what_is_gone_already_is_no_error(files: Files, calls: Calls) -> None:
    place(files).write_bytes(OLD)
    files.remove(PATH)
    assert calls.noted == ["unlink", "fsync"]
    files.remove(PATH)
    files.remove("/no/such/folder/file")
    assert names(files) == []


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_a_temporary_file_of_a_killed_run_is_replaced_and_not_written_through(
    files: Files, tmp_path: Path, kind: str
) -> None:
    temporary = place(files).with_name(temporary_name("daemon.json"))
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    if kind == "file":
        temporary.write_bytes(b"half")
    else:
        temporary.symlink_to(victim)
    files.replace(PATH, NEW, own_metadata(0o600), None)
    assert place(files).read_bytes() == NEW
    assert victim.read_bytes() == b"precious"
    assert names(files) == ["daemon.json"]


def test_a_temporary_file_of_a_killed_run_is_swept(files: Files) -> None:
    place(files).with_name(temporary_name("daemon.json")).write_bytes(b"half")
    files.sweep(PATH)
    assert names(files) == []
    files.sweep(PATH)


def test_a_folder_that_everybody_can_write_to_is_refused_before_anything_is_written(files: Files) -> None:
    place(files).parent.chmod(0o777)
    for write in (
        lambda: files.replace(PATH, NEW, own_metadata(0o600), None),
        lambda: files.overwrite(PATH, NEW, own_metadata(0o600)),
        lambda: files.symlink("x", PATH),
        lambda: files.make_folders("/etc/sub"),
    ):
        with pytest.raises(ConfigurationError, match="writable by everybody"):
            write()
    assert names(files) == []


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/cwd/{os.path.relpath(path)}" if len(str(path)) > 100 else str(path))


@pytest.mark.parametrize(
    "make, word",
    [(Path.mkdir, "a folder"), (os.mkfifo, "a named pipe"), (make_socket, "a socket, not a regular file")],
    ids=["folder", "pipe", "socket"],
)
def test_what_is_no_regular_file_is_refused_and_called_what_it_is(
    files: Files, make: Callable[[Path], None], word: str
) -> None:
    make(place(files))
    with pytest.raises(ConfigurationError, match=word) as raised:
        files.read_file(PATH)
    assert raised.value.path == PATH


def test_a_file_larger_than_any_program_is_no_toolkits_and_is_not_read_to_its_end(files: Files) -> None:
    with place(files).open("wb") as stream:
        stream.truncate(8 * 1024**4)
    with mock.patch.object(reading, "_LARGEST", 16 * 1024**2):
        assert files.digest(PATH) is None


def test_a_device_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a device"):
        Files(Root("/"), SystemCalls()).read_file("/dev/null")


def test_a_file_beyond_all_reason_is_refused(files: Files) -> None:
    place(files).write_bytes(b"x" * 101)
    with pytest.raises(ConfigurationError, match="larger than 100 bytes"):
        files.read_file(PATH, limit=100)
    assert files.read_file(PATH, limit=101) is not None


def test_an_interrupted_write_goes_on_where_it_stopped(
    files: Files, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemCalls, "write", lambda _self, fd, data: os.write(fd, data[:7]))
    files.replace(PATH, NEW, own_metadata(0o600), None)
    assert place(files).read_bytes() == NEW
    assert calls.noted.count("write") > 1


# --- copies ---

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


@pytest.mark.parametrize("number", MIDDLE_ERRORS)
def test_an_error_in_the_middle_of_a_configuration_leaves_the_old_one(
    files: Files, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    place(files).write_bytes(OLD)
    written: list[int] = []

    def write(_self: SystemCalls, fd: int, data: bytes | memoryview) -> int:
        if written:
            raise OSError(number, os.strerror(number))
        written.append(os.write(fd, data[: len(data) // 2]))
        return written[-1]

    monkeypatch.setattr(SystemCalls, "write", write)
    found = present(files)
    with pytest.raises(NodeError, match=os.strerror(number)) as failed:
        files.replace(PATH, NEW, found.metadata, found)
    assert failed.value.hint
    assert place(files).read_bytes() == OLD
    assert names(files) == ["daemon.json"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_configuration_that_cannot_be_read_to_its_end_is_not_taken_for_a_short_one(
    files: Files, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    place(files).write_bytes(NEW * 200)
    real = os.read
    pieces: list[bytes] = []

    def read(fd: int, count: int) -> bytes:
        if pieces:
            raise OSError(number, os.strerror(number))
        pieces.append(real(fd, count))
        return pieces[-1]

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(NodeError, match=os.strerror(number)) as failed:
        files.read_file(PATH)
    assert failed.value.hint


# --- symlinks and folders ---


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


def test_the_links_of_a_folder_are_told_from_all_else_in_it_wherever_they_lead(files: Files) -> None:
    folder = Path(files.root.outside("/etc/links"))
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_text("")
    for name, target in {"to-file": "file", "to-folder": "folder", "dangling": "/nowhere", "loop": "loop"}.items():
        (folder / name).symlink_to(target)
    Path(files.root.outside("/etc/link-to-links")).symlink_to("links")
    assert files.links("/etc/links") == ["dangling", "loop", "to-file", "to-folder"]
    assert files.links("/etc/link-to-links") == files.links("/etc/links")
    with pytest.raises(NodeError):
        files.links("/etc/links/loop")


def test_digests_and_lists_of_what_is_not_there_are_none(files: Files) -> None:
    assert files.digest(PATH) is None
    assert files.list("/nowhere") == []
    assert files.links("/nowhere") == []
    assert files.read_file("/nowhere/at/all") is None
    place(files).write_bytes(b"")
    assert files.digest(PATH) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
