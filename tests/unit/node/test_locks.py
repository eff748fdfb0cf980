"""The PID file and the folder's lock: one instance at a time, and a loser that spoils nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.quick import Few
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError
from toolkit_installer.node import locks, trust
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.locks import PidFile, find_instance, lock_folder
from toolkit_installer.node.root import NodeError, Root

PATH = "/run/nvidia/toolkit.pid"
USUAL = (PATH, "/run/nvidia/toolkit/toolkit.pid")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "run").mkdir()
    return Files(Root(str(tmp_path)), SystemCalls())


def place(files: Files) -> Path:
    return Path(files.root.outside(PATH))


def put(files: Files, text: str) -> None:
    place(files).parent.mkdir(exist_ok=True)
    place(files).write_text(text)


def test_the_file_holds_our_pid_and_goes_with_the_folders_made_for_it(files: Files) -> None:
    taken = PidFile.acquire(files, PATH)
    assert place(files).read_text() == f"{os.getpid()}\n"
    assert find_instance(files, PATH) == os.getpid()
    taken.release()
    assert not place(files).parent.exists()
    assert find_instance(files, PATH) is None


def test_a_folder_that_was_there_stays(files: Files) -> None:
    place(files).parent.mkdir()
    PidFile.acquire(files, PATH).release()
    assert os.listdir(place(files).parent) == []


def test_the_loser_names_the_winner_and_leaves_its_pid_untouched(files: Files) -> None:
    put(files, "4711\n")
    before = place(files).stat()
    with place(files).open() as winner:
        fcntl.flock(winner, fcntl.LOCK_EX)
        with pytest.raises(AlreadyRunningError, match=f"PID {os.getpid()}") as raised:
            PidFile.acquire(files, PATH)
        after = place(files).stat()
    assert raised.value.exit_code == 4
    assert (after.st_ino, after.st_mtime_ns, place(files).read_text()) == (before.st_ino, before.st_mtime_ns, "4711\n")


@pytest.mark.parametrize("text", ["", "nonsense", "-5\n", "0"])
def test_a_winner_that_has_not_written_its_pid_yet_is_respected_all_the_same(files: Files, text: str) -> None:
    put(files, text)
    with place(files).open() as winner:
        fcntl.flock(winner, fcntl.LOCK_EX)
        with pytest.raises(AlreadyRunningError, match=f"PID {os.getpid()}"):
            PidFile.acquire(files, PATH)
        assert find_instance(files, PATH) == os.getpid()
    assert place(files).read_text() == text
    assert find_instance(files, PATH) is None


def test_a_holder_that_the_kernel_does_not_show_here_is_named_by_the_file(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(files, "4711\n")
    monkeypatch.setattr(locks, "find_holder", lambda _fd, _said: None)  # as in another PID namespace
    with place(files).open() as winner:
        fcntl.flock(winner, fcntl.LOCK_EX)
        with pytest.raises(AlreadyRunningError, match="PID 4711"):
            PidFile.acquire(files, PATH)


def test_a_pid_file_longer_than_any_pid_is_no_reason_to_fail(files: Files) -> None:
    put(files, "x" * 100_000)
    assert find_instance(files, PATH) is None
    with place(files).open() as winner:
        fcntl.flock(winner, fcntl.LOCK_EX)
        assert find_instance(files, PATH) == os.getpid()


def test_a_stale_file_is_taken_over_whole(files: Files) -> None:
    put(files, "99999999\nand much more than that")
    assert find_instance(files, PATH) is None
    taken = PidFile.acquire(files, PATH)
    assert place(files).read_text() == f"{os.getpid()}\n"
    taken.release()


def test_a_file_that_its_holder_unlinked_while_we_waited_is_not_taken_for_the_lock(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(files, "1\n")
    opened: list[int] = []
    real = SystemCalls.open_or_create

    def open_then_lose(self: SystemCalls, name: str, mode: int, folder: int) -> int:
        fd = real(self, name, mode, folder)
        opened.append(os.fstat(fd).st_ino)
        if len(opened) == 1:  # between our open and our flock the holder removes its file and goes
            place(files).unlink()
        return fd

    monkeypatch.setattr(SystemCalls, "open_or_create", open_then_lose)
    taken = PidFile.acquire(files, PATH)
    assert len(opened) == 2
    assert place(files).read_text() == f"{os.getpid()}\n"
    assert os.fstat(taken.fd).st_ino == place(files).stat().st_ino
    taken.release()


def symlink(path: Path) -> None:
    path.symlink_to("victim")
    path.with_name("victim").write_text("precious")


def hard_link(path: Path) -> None:
    path.with_name("victim").write_text("precious")
    path.hardlink_to(path.with_name("victim"))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, symlink, hard_link])
def test_a_pid_file_that_is_something_else_is_refused_and_not_written_to(files: Files, make: Any) -> None:
    place(files).parent.mkdir()
    make(place(files))
    with pytest.raises(ConfigurationError) as raised:
        PidFile.acquire(files, PATH)
    assert raised.value.path == PATH
    assert find_instance(files, PATH) is None
    if make in (symlink, hard_link):
        assert place(files).with_name("victim").read_text() == "precious"


STRANGER = 65534

LOCKER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)  # anybody who may read it can lock it
user = int(sys.argv[2])
os.setresuid(user, user, user)
if sys.argv[3] == "left":
    if os.fork():
        os._exit(0)
fcntl.flock(fd, fcntl.LOCK_EX)
if sys.argv[3] == "passed on" and os.fork():
    os._exit(0)  # the list names a process that is gone
print(os.getpid(), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked_by(locked: Path, user: int, how: str = "", *words: str) -> Iterator[int]:
    command = [sys.executable, "-I", "-S", "-c", LOCKER, str(locked), str(user), how, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as locker:
        assert locker.stdout is not None
        pid = int(locker.stdout.readline())
        if pid != locker.pid:  # the child's, which goes on when its parent has ended
            os.waitid(os.P_PID, locker.pid, os.WEXITED | os.WNOWAIT)
        yield pid
        assert locker.stdin is not None
        locker.stdin.close()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@as_root
@pytest.mark.parametrize("how", ["", "left", "passed on"])
def test_a_lock_that_somebody_else_holds_is_no_instance_and_its_file_is_replaced(files: Files, how: str) -> None:
    put(files, "1\n")
    old = place(files).stat().st_ino
    with locked_by(place(files), STRANGER, how, "toolkit"):
        assert find_instance(files, PATH) is None
        taken = PidFile.acquire(files, PATH)
        assert find_instance(files, PATH) == os.getpid()
        assert place(files).stat().st_ino != old
        assert place(files).stat().st_mode & 0o777 == 0o600
        assert place(files).read_text() == f"{os.getpid()}\n"
        with pytest.raises(AlreadyRunningError, match=f"PID {os.getpid()}"):
            PidFile.acquire(files, PATH)
        taken.release()
    assert not place(files).parent.exists() or os.listdir(place(files).parent) == []


STARTER = """
import sys, time
from toolkit_installer.errors import AlreadyRunningError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.root import Root
sys.stdout.write("r"); sys.stdout.flush()
sys.stdin.read(1)
try:
    PidFile.acquire(Files(Root(sys.argv[1]), SystemCalls()), sys.argv[2])
    sys.stdout.write("w")
except AlreadyRunningError:
    sys.stdout.write("l")
sys.stdout.flush()
sys.stdin.read(1)
"""


@as_root
def test_of_many_that_replace_a_strangers_file_at_once_one_wins_and_has_the_file(files: Files, few: Few) -> None:
    for _ in few(range(8), most=2):
        put(files, "1\n")
        place(files).chmod(0o644)
        with locked_by(place(files), STRANGER), contextlib.ExitStack() as stack:
            command = [sys.executable, "-c", STARTER, files.root.folder, PATH]
            starters = [
                stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                for _ in range(5)
            ]
            streams = [(each.stdin, each.stdout) for each in starters]
            for _, said in streams:
                assert said is not None
                assert said.read(1) == b"r"
            for given, _ in streams:
                assert given is not None
                given.write(b"g")
                given.flush()
            outcomes = sorted(said.read(1) for _, said in streams if said is not None)
            assert outcomes == [b"l"] * 4 + [b"w"]
            winner = find_instance(files, PATH)
            assert winner in {each.pid for each in starters}
            assert os.listdir(place(files).parent) == ["toolkit.pid"]
        place(files).unlink()


@as_root
@pytest.mark.parametrize("how", ["", "passed on"])
def test_a_lock_of_roots_is_an_instance_whoever_took_it(files: Files, how: str) -> None:
    put(files, "1\n")
    with locked_by(place(files), 0, how) as pid:
        assert find_instance(files, PATH) == pid
        with pytest.raises(AlreadyRunningError, match=f"PID {pid}"):
            PidFile.acquire(files, PATH)


@as_root
def test_a_foreign_lock_on_the_receipts_folder_is_no_instance_and_is_closed(files: Files) -> None:
    folder = Path(files.root.outside("/run"))
    folder.chmod(0o755)
    command = [sys.executable, "-I", "-S", "-c", LOCKER, str(folder), str(STRANGER), ""]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as locker:
        assert locker.stdout is not None
        locker.stdout.readline()
        os.close(lock_folder(files, "/run", private=True))
        assert locker.stdin is not None
        locker.stdin.close()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_pid_file_that_somebody_else_made_is_refused(files: Files) -> None:
    put(files, "1\n")
    os.chown(place(files), 4321, 0)
    with pytest.raises(ConfigurationError, match="user 4321"):
        PidFile.acquire(files, PATH)
    assert place(files).read_text() == "1\n"


def test_a_stale_pid_file_that_anybody_can_write_to_is_closed_to_others(files: Files) -> None:
    put(files, "1\n")
    place(files).chmod(0o666)
    taken = PidFile.acquire(files, PATH)
    assert place(files).stat().st_mode & 0o777 == 0o600
    taken.release()


def test_a_pid_file_that_replaced_ours_is_not_removed_with_ours(files: Files) -> None:
    taken = PidFile.acquire(files, PATH)
    place(files).unlink()
    put(files, "4711\n")
    taken.release()
    assert place(files).read_text() == "4711\n"


def test_a_folder_that_the_last_holder_removes_just_now_is_made_again(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(files).parent.mkdir()
    real = SystemCalls.open_or_create
    removed: list[Path] = []

    def remove_then_open(self: SystemCalls, name: str, mode: int, folder: int) -> int:
        if not removed:
            removed.append(place(files).parent)
            removed[0].rmdir()
        return real(self, name, mode, folder)

    monkeypatch.setattr(SystemCalls, "open_or_create", remove_then_open)
    taken = PidFile.acquire(files, PATH)
    assert place(files).read_text() == f"{os.getpid()}\n"
    taken.release()
    assert not place(files).parent.exists()


def test_a_folder_that_its_holder_removed_before_we_locked_it_is_no_lock(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def lose_then_lock(fd: int, operation: int) -> None:
        Path(files.root.outside("/run")).rmdir()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", lose_then_lock)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NodeError) as raised:
        lock_folder(files, "/run")
    assert raised.value.number == errno.ENOENT
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_pid_file_where_anybody_could_swap_it_is_refused(files: Files) -> None:
    place(files).parent.mkdir()
    place(files).parent.chmod(0o777)
    with pytest.raises(ConfigurationError, match="writable by everybody"):
        PidFile.acquire(files, PATH)


def test_refused_attempts_leave_no_descriptor_open(files: Files) -> None:
    put(files, "1\n")
    with place(files).open() as winner:
        fcntl.flock(winner, fcntl.LOCK_EX)
        before = os.listdir("/proc/self/fd")
        for _ in range(5):
            with pytest.raises(AlreadyRunningError):
                PidFile.acquire(files, PATH)
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_two_instances_with_two_pid_files_meet_at_the_folders_lock(files: Files) -> None:
    fd = lock_folder(files, "/run")
    with pytest.raises(AlreadyRunningError, match=rf"another PID file \(PID {os.getpid()}\)"):
        lock_folder(files, "/run")
    os.close(fd)
    os.close(lock_folder(files, "/run"))
    assert os.listdir(files.root.outside("/run")) == []


def test_who_only_looks_at_the_pid_file_takes_no_lock_that_a_starting_run_would_meet(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = PidFile.acquire(files, PATH)

    def flock(fd: int, operation: int) -> None:
        raise AssertionError(f"flock({fd}, {operation}) while looking")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        assert find_instance(files, PATH) == os.getpid()
    held.release()
    put(files, "4711\n")
    assert find_instance(files, PATH) is None


@pytest.mark.parametrize("vanishes, tries", [(9, 10), (99, 10)], ids=["in the end it is there", "it never is"])
def test_a_folder_that_keeps_vanishing_is_made_ten_times_and_then_reported_as_gone(
    files: Files, monkeypatch: pytest.MonkeyPatch, vanishes: int, tries: int
) -> None:
    made: list[str] = []
    real = Files.make_folders

    def make(self: Files, path: str, *arguments: Any) -> tuple[str, ...]:
        made.append(path)
        if len(made) <= vanishes:
            raise NodeError.of(OSError(errno.ENOENT, "No such file or directory"), path, "make it")
        return real(self, path, *arguments)

    monkeypatch.setattr(Files, "make_folders", make)
    if vanishes < tries:
        PidFile.acquire(files, PATH).release()
    else:
        with pytest.raises(ConfigurationError, match="cannot make it: No such file or directory"):
            PidFile.acquire(files, PATH)
    assert len(made) == tries


# --- who holds a lock, and is at its end ---


@contextlib.contextmanager
def a_lock_that_outlives_its_holder(place: Path) -> Iterator[socket.socket]:
    """Lock a file or folder by a process that ends, and leave the lock on its way to nobody: yield who has the way."""
    ours, theirs = socket.socketpair()
    with ours:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                fd = os.open(place, os.O_RDONLY)
                fcntl.flock(fd, fcntl.LOCK_EX)
                socket.send_fds(theirs, [b"."], [fd])
            os._exit(0)
        theirs.close()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it stays, as one that ends does, without descriptors
        try:
            yield ours
        finally:
            os.waitpid(pid, 0)


def of_an_instance(files: Files, lock: str) -> Path:
    """Write the PID file of another instance; return what that one has locked."""
    put(files, "4711\n")
    place(files).chmod(0o600)
    return place(files) if lock == "pid file" else place(files).parent


def take(files: Files, lock: str) -> None:
    """Take the lock, and give it up."""
    if lock == "pid file":
        PidFile.acquire(files, PATH).release()
    else:
        os.close(lock_folder(files, os.path.dirname(PATH)))


@pytest.mark.parametrize("lock", ["pid file", "folder"])
def test_an_instance_that_is_being_killed_is_waited_for(
    files: Files, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    locked = of_an_instance(files, lock)
    pauses: list[float] = []
    with a_lock_that_outlives_its_holder(locked) as way:

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            way.close()  # the kernel lets go of the lock

        monkeypatch.setattr("time.sleep", pause)
        assert find_instance(files, PATH) is None
        take(files, lock)
    assert len(pauses) == 1


@pytest.mark.parametrize("lock", ["pid file", "folder"])
def test_an_instance_whose_memory_alone_is_gone_is_waited_for_as_well(
    files: Files, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    locked = of_an_instance(files, lock)
    pauses: list[float] = []
    with locked_by(locked, os.geteuid()) as pid:
        its, real_status, real_stat = os.stat(f"/proc/{pid}"), trust._status, os.stat

        def status(folder: int) -> bytes:
            found = real_status(folder)
            return found.replace(b"\nVmSize:", b"\nGone:") if os.path.samestat(os.fstat(folder), its) else found

        def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
            if path == "exe" and dir_fd is not None and os.path.samestat(os.fstat(dir_fd), its):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return real_stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

        monkeypatch.setattr(trust, "_status", status)
        monkeypatch.setattr(os, "stat", stat)
        monkeypatch.setattr("time.sleep", pause)
        assert find_instance(files, PATH) is None
        take(files, lock)
    assert len(pauses) == 1


def test_one_that_does_not_end_in_time_is_told_as_any_other(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    put(files, "4711\n")
    place(files).chmod(0o600)
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    with a_lock_that_outlives_its_holder(place(files)), pytest.raises(AlreadyRunningError, match="PID 4711"):
        PidFile.acquire(files, PATH)
    assert 1 < sum(pauses) < 60, "seconds"


def test_an_ended_taker_whose_lock_a_child_of_its_has_is_not_waited_for(files: Files) -> None:
    put(files, "")
    kept = os.open(place(files), os.O_RDONLY)
    pid = os.fork()
    if pid == 0:
        fcntl.flock(kept, fcntl.LOCK_EX)  # of the open file, which we have as well
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    looking = os.open(place(files), os.O_RDONLY)
    try:
        assert not locks.is_holder_ending(looking)
    finally:
        os.close(kept)
        os.close(looking)
        os.waitpid(pid, 0)


# --- the PID files of all installers ---


def is_locked(files: Files, path: str) -> bool:
    """Try the lock as another installer does: it opens the file for writing, and truncates it before."""
    with open(files.root.outside(path), "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("path", USUAL)
def test_who_holds_one_of_the_usual_files_holds_all_and_leaves_none(files: Files, path: str) -> None:
    taken = PidFile.acquire(files, path, USUAL)
    assert taken.path == path
    assert [find_instance(files, each) for each in USUAL] == [os.getpid()] * 2
    assert [is_locked(files, each) for each in USUAL] == [True, True]
    assert [find_instance(files, each) for each in USUAL] == [
        os.getpid()
    ] * 2  # also of a file that was truncated since
    taken.release()
    assert not place(files).parent.exists()


def test_a_file_of_another_name_is_held_alone(files: Files) -> None:
    taken = PidFile.acquire(files, "/run/mine/toolkit.pid", USUAL)
    assert taken.others == ()
    assert not place(files).exists()
    taken.release()


def test_who_is_too_late_for_one_of_them_holds_none(files: Files) -> None:
    first = PidFile.acquire(files, USUAL[1])
    with pytest.raises(AlreadyRunningError, match=f"PID {os.getpid()}"):
        PidFile.acquire(files, PATH, USUAL)
    assert not place(files).exists()
    first.release()


def test_the_other_file_is_left_out_where_it_cannot_be_created(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Files.make_folders

    def refuse(self: Files, path: str, mode: int = 0o755) -> tuple[str, ...]:
        if path == os.path.dirname(USUAL[1]):
            raise NodeError.of(OSError(errno.EROFS, "Read-only file system"), path, "create the folder")
        return make(self, path, mode)

    monkeypatch.setattr(Files, "make_folders", refuse)
    taken = PidFile.acquire(files, PATH, USUAL)
    assert taken.others == ()
    taken.release()


def test_one_file_under_two_names_is_locked_once(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have the same folder mounted twice."""
    monkeypatch.setattr(Files, "is_at", lambda *_: True)
    taken = PidFile.acquire(files, PATH, USUAL)
    assert taken.others == ()
    taken.release()


def test_a_run_that_knew_one_lock_takes_the_other_when_it_is_woken(files: Files) -> None:
    older = PidFile.acquire(files, PATH)
    assert not is_locked_by_another(files)
    older.hold_others(USUAL)
    assert [lock.path for lock in older.others] == [USUAL[1]]
    older.hold_others(USUAL)
    assert [lock.path for lock in older.others] == [USUAL[1]]
    older.release()
    assert not place(files).parent.exists()


def is_locked_by_another(files: Files) -> bool:
    return find_instance(files, USUAL[1]) is not None
