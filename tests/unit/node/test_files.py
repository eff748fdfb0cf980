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

from tests.unit.node.etc_folder import PATH, names, place, present
from tests.unit.noted_calls import Calls
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import reading
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import ChangedMeanwhileError, Files
from toolkit_installer.node.reading import Metadata
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.node.writing import own_metadata, temporary_name

OLD, NEW = b'{"old": 1}', b'{"new": 2}' * 1000


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


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE])
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
