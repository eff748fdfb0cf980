"""The calls that change the node do as their callers rely on: names that are free, no symlink, no signal lost."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit_installer.node import calls as module
from toolkit_installer.node.calls import SystemCalls

CALLS = SystemCalls()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("old")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("name", ["old", "link"])
def test_no_new_file_takes_a_name_that_another_has(tmp_path: Path, folder: int, name: str) -> None:
    made = CALLS.create_unnamed(0o600, folder)
    for create in (
        lambda: CALLS.create(name, 0o600, folder),
        lambda: CALLS.link(made, name, folder),
        lambda: CALLS.symlink("x", name, folder),
        lambda: CALLS.mkdir(name, 0o700, folder),
        lambda: CALLS.rename_new("old", name, folder),
    ):
        with pytest.raises(FileExistsError):
            create()
    os.close(made)
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["link", "old"]


def test_a_lock_file_is_not_opened_through_a_symlink(folder: int) -> None:
    with pytest.raises(OSError, match="Too many levels"):
        CALLS.open_or_create("link", 0o644, folder)
    for name in ("old", "new"):
        fd = CALLS.open_or_create(name, 0o644, folder)
        assert os.pread(fd, 9, 0) == (b"old" if name == "old" else b"")
        os.close(fd)


def test_a_pipe_in_a_lock_files_place_makes_nobody_wait(tmp_path: Path, folder: int) -> None:
    os.mkfifo(tmp_path / "pipe")
    fd = CALLS.open_or_create("pipe", 0o644, folder)
    assert stat.S_ISFIFO(os.fstat(fd).st_mode)
    os.close(fd)


@pytest.mark.parametrize(
    "create",
    [
        lambda folder: CALLS.create("new", 0o600, folder),
        lambda folder: CALLS.create_unnamed(0o600, folder),
        lambda folder: CALLS.open_or_create("new", 0o600, folder),
    ],
    ids=["named", "unnamed", "lock"],
)
def test_no_program_that_is_started_inherits_a_new_file(folder: int, create: Callable[[int], int]) -> None:
    fd = create(folder)
    assert not os.get_inheritable(fd)
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    os.close(fd)


def test_a_file_has_no_name_until_it_is_linked(tmp_path: Path, folder: int) -> None:
    fd = CALLS.create_unnamed(0o600, folder)
    CALLS.write(fd, b"whole")
    assert not (tmp_path / "new").exists()
    CALLS.link(fd, "new", folder)
    os.close(fd)
    assert (tmp_path / "new").read_text() == "whole"


def test_two_names_are_swapped_and_both_must_be_there(tmp_path: Path, folder: int) -> None:
    (tmp_path / "other").write_text("other")
    CALLS.exchange("old", "other", folder)
    assert ((tmp_path / "old").read_text(), (tmp_path / "other").read_text()) == ("other", "old")
    with pytest.raises(FileNotFoundError) as raised:
        CALLS.exchange("old", "absent", folder)
    assert raised.value.filename == "absent"


def test_a_c_library_without_renameat2_is_told_as_a_kernel_without_it(
    folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_libc_renameat2", lambda: None)
    for call in (CALLS.rename_new, CALLS.exchange):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)) as raised:
            call("old", "new", folder)
        assert raised.value.errno == errno.ENOSYS


def test_a_rename_that_a_signal_interrupts_is_tried_again(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [errno.EINTR, errno.EINTR, errno.EXDEV]

    def interrupted(*_: object) -> int:
        ctypes.set_errno(errors.pop(0))
        return -1

    monkeypatch.setattr(module, "_libc_renameat2", lambda: interrupted)
    with pytest.raises(OSError, match=os.strerror(errno.EXDEV)):
        CALLS.exchange("old", "link", folder)
    assert errors == []


def test_a_signal_reaches_the_process_of_the_descriptor_and_no_later_one() -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    pidfd = os.pidfd_open(child)
    CALLS.signal(pidfd, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        CALLS.signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
