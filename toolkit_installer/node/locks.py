"""Locks that allow one instance at a time: the PID file, the lock next to the receipt, and their holders.

A process that can open a file for reading can take a flock on it, so not every holder counts (trust.py). The kernel's
list (proc_locks(5)) names the process that took a lock. That process may have ended and left the lock to another, and
its PID may have been reused: so a holder is a process that has the file open with the lock on it (proc_pid_fdinfo(5)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence

from toolkit_installer.errors import AlreadyRunningError, ConfigurationError, InstallerError
from toolkit_installer.node import processes, trust
from toolkit_installer.node.files import Files
from toolkit_installer.node.queries import Query, is_pid_if_any
from toolkit_installer.node.root import NodeError, Tolerated, attempt, opened, refuse_if_others_write
from toolkit_installer.node.trust import TrustLevel
from toolkit_installer.node.writing import temporary_name

_LOCKS = "/proc/locks"
_LOCKED = "FLOCK"


def find_holder(fd: int, said: int | None) -> int | None:
    """Return the PID of a trusted process that holds a flock on the open file, None if there is none.

    `said`: the PID that the file contains. That process needs a lock on any file with this inode number, because some
    file systems (overlayfs, btrfs) report another device to stat(2) than in the list. Raises NodeError.
    """
    takers = _find_lock_takers(fd)
    places = {pid for pid, exact in takers.items() if exact}
    candidates = [said] if said in takers else sorted(places)
    for pid in candidates:
        standing = trust.find_trust_level(pid)
        if standing is TrustLevel.UNSEEN or (standing is TrustLevel.BELIEVED and any(_descriptors(pid, fd))):
            return pid
    if not places:
        return None
    return next((pid for pid in _find_lock_holders(fd) if trust.find_trust_level(pid) is TrustLevel.BELIEVED), None)


def describe_untrusted_holder(fd: int) -> str | None:
    """Return a description of an untrusted process that holds a flock on the open file, None if none is found.

    Raises NodeError.
    """
    if not any(_find_lock_takers(fd).values()):
        return None  # taken in another PID namespace: the process is unknown
    strangers = (pid for pid in _find_lock_holders(fd) if trust.find_trust_level(pid) is TrustLevel.STRANGER)
    return next((f"PID {pid} of user {tuple(sorted(trust.users_of(pid)))}" for pid in strangers), None)


def is_holder_ending(fd: int) -> bool:
    """Return whether a process that is ending, and no other process, holds a flock on the open file.

    The kernel first takes the memory from such a process, then all descriptors, and releases their locks after that; on
    a busy node it may be suspended in between. Raises NodeError.
    """
    takers = [pid for pid, exact in _find_lock_takers(fd).items() if exact]
    return any(_is_process_ending(pid) for pid in takers) and all(
        trust.is_ending(pid) for pid in _find_lock_holders(fd)
    )


def _is_process_ending(pid: int) -> bool:
    if trust.is_ending(pid):
        return True
    try:
        return not os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False  # the process and its lock are gone, or it may not be inspected


def _find_lock_takers(fd: int) -> dict[int, bool]:
    """Return the PIDs that took a flock on a file with this inode number, and whether the device is the same too."""
    status = os.fstat(fd)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with attempt("read it", _LOCKS), open(_LOCKS, encoding="ascii", newline="\n") as lines:
        held = [words for words in map(str.split, lines) if "->" not in words and words[1] == _LOCKED]
    return {int(words[4]): words[5] == place for words in held if words[5].endswith(f":{status.st_ino}")}


def _find_lock_holders(fd: int) -> Iterator[int]:
    """Yield the processes that have the file open with a flock on it, as far as they can be inspected."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        for number in _descriptors(int(name), fd):
            try:
                place = f"/proc/{name}/fdinfo/{number}"
                with open(place, encoding="ascii", errors="replace", newline="\n") as lines:
                    held = any(line.startswith("lock:") and _LOCKED in line for line in lines)
            except OSError:
                continue  # it was closed, or its process ended
            if held:
                yield int(name)
                break


def _descriptors(pid: int, fd: int) -> Iterator[str]:
    """Yield the descriptor numbers under which a process has the file open."""
    ours = os.fstat(fd)
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), ours):
                    yield number


_PID_LIMIT = 64
"""Bytes; no PID is longer."""
_PID_MODE = 0o600
"""No other user may open the file: a process that could would lock it as well, and be taken for an instance."""
_PRIVATE = 0o700
_REPLACEMENTS = 100
_ATTEMPTS = 10
"""How often the PID file's folder is created again because another run creates or removes it at the same time."""

_INTERPRETER = "python"
"""Prefix of the name of the program that executes this installer."""

_NOT_HERE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors when another installer's PID file cannot be created: the folder is not the node's, or not writable."""

_ENDING_TRIES = 200
_ENDING_SECONDS = 0.05
"""How often, and with what pauses, to wait for a process of which the kernel has nothing left but its lock."""

_NO_FILE = {errno.ELOOP: "is a symlink", errno.EISDIR: "is a folder", errno.ENXIO: "is a socket or a device"}
"""Why a path cannot be opened as a file, by the errors of open(2)."""


class PidFile:
    """The locked PID file. Locked before it is truncated, so that a loser never erases the winner's PID.

    `others` are PID files of other installers that are locked with it.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        fd: int,
        created_folders: tuple[str, ...],
        others: tuple[PidFile, ...] = (),
    ) -> None:
        self.files = files
        self.path = path
        self.fd = fd
        self.created_folders = created_folders
        self.others = others

    @classmethod
    def acquire(cls, files: Files, path: str, usual: Sequence[str] = (), always: Sequence[str] = ()) -> PidFile:
        """Lock the file and write our PID into it; a stale file is taken over.

        `usual` are the PID files of all installers: if `path` is one of them, the others are locked as well, in the
        order of `usual`, so that of two installers that start at once one wins. Others that cannot be created here (a
        read-only file system) are skipped. `always` are locked after these, whatever `path` is. Raises
        AlreadyRunningError naming the holder, ConfigurationError if the existing file cannot be our PID file,
        NodeError.
        """
        own = files.in_folder(path)
        order = _in_order(files, own, usual, always)
        others: list[PidFile] = []
        locked: PidFile | None = None
        try:
            for each in order:
                if each == own:
                    locked = cls._acquire_one(files, path)
                else:
                    others += cls._acquire_other(files, each, [*others, *([locked] if locked is not None else [])])
        except InstallerError:
            for lock in (*others, *([locked] if locked is not None else [])):
                lock.release()
            raise
        assert locked is not None  # noqa: S101  # its path is in the order
        locked.others = tuple(others)
        return locked

    @classmethod
    def _acquire_other(cls, files: Files, path: str, held: Sequence[PidFile]) -> list[PidFile]:
        """Lock the PID file of another installer; return none if it cannot be created here. Raises as `acquire` does.

        Returns none as well for a file that is in `held` under another name, through a second mount of its folder.
        """
        if any(files.is_at(path, lock.fd) for lock in held):
            return []
        try:
            return [cls._acquire_one(files, path)]
        except NodeError as error:
            if error.number in _NOT_HERE:
                return []
            raise

    def hold_others(self, usual: Sequence[str], always: Sequence[str] = ()) -> None:
        """Lock the PID files that `acquire` locks with this one and that are not locked yet.

        For a run that another release started, which used only one lock. Raises AlreadyRunningError, NodeError.
        """
        held = [self, *self.others]
        for path in _in_order(self.files, self.path, usual, always):
            held += self._acquire_other(self.files, path, held)
        self.others = tuple(held[1:])

    @classmethod
    def _acquire_one(cls, files: Files, path: str) -> PidFile:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(_FolderGoneError):
                return cls._acquire(files, path)
        return cls._acquire(files, path)

    @classmethod
    def _acquire(cls, files: Files, path: str) -> PidFile:
        ours = files.folders_of_ours(os.path.dirname(path))
        try:
            created = files.make_folders(os.path.dirname(path))
        except NodeError as error:
            if error.number in (errno.ENOENT, errno.EEXIST):
                raise _FolderGoneError(error.reason, path=error.path, hint="start again") from error
            raise
        try:
            canonical = files.in_folder(path)
            return cls(files, canonical, _acquired(files, canonical), ours)
        except InstallerError:
            for folder in reversed(created):
                files.remove_folder(folder)
            raise

    def adopt_folders(self, folders: tuple[str, ...]) -> None:
        """Make `release` also remove these folders, which an earlier run created for the file."""
        self.created_folders = tuple(dict.fromkeys([*folders, *self.created_folders]))

    def release(self) -> None:
        """Remove the file, the folders that were created for it, and the lock. Another program's file stays."""
        for other in self.others:
            other.release()
        if self.files.is_at(self.path, self.fd):
            self.files.remove(self.path)
        for folder in reversed(self.created_folders):
            if not self.files.made_by_others(folder):  # a folder of a later boot only has the same name
                self.files.remove_folder(folder)
        os.close(self.fd)


class _FolderGoneError(NodeError):
    """The folder of the PID file was removed just now, or another run creates it as well."""


def _acquired(files: Files, path: str) -> int:
    """Return the descriptor of the locked PID file with our PID in it. Raises as `PidFile.acquire` does."""
    for _ in range(_REPLACEMENTS):
        fd = _open(files, path)
        try:
            _lock(fd, path)
            if files.is_at(path, fd):  # else its last holder unlinked it on exit
                _write_pid(files, fd, path)
                return fd
        except _UntrustedLockError:
            ours = _replace_untrusted(files, path, fd)
            if ours is not None:
                return ours
            continue  # the descriptor is closed
        except InstallerError:
            os.close(fd)
            raise
        os.close(fd)
    raise AlreadyRunningError(
        "others take and give up the PID file all the time", path=path, hint="look at who does (lsof), then start again"
    )


def _in_order(files: Files, own: str, usual: Sequence[str], always: Sequence[str]) -> list[str]:
    """Return the PID files that a run with the PID file `own` locks, in the order in which every run locks them."""
    known = list(map(files.in_folder, usual))
    return list(dict.fromkeys([*(known if own in known else [own]), *map(files.in_folder, always)]))


def _replace_untrusted(files: Files, path: str, held: int) -> int | None:
    """Replace a PID file that an untrusted process holds by a locked one of ours; None if another run has replaced it.

    The run that replaces it locks the new file, under its temporary name, before it checks whether the untrusted
    process's file is still there: so no other run can have replaced it since, and one rename is enough. `held`, the
    descriptor of the old file, is closed. Raises NodeError, AlreadyRunningError.
    """
    stranger = os.fstat(held)
    os.close(held)
    temporary = os.path.join(os.path.dirname(path), temporary_name(os.path.basename(path)))
    try:
        fd = _open(files, temporary)
        try:
            _lock(fd, temporary)
            if not files.is_at(temporary, fd):
                os.close(fd)
                return None  # its creator renamed or removed it: another file is at the path by now
            status = files.own_status(path)
            if status is not None and os.path.samestat(status, stranger):
                _write_pid(files, fd, temporary)
                with files.root.parent(path) as (folder, name):
                    files.calls.rename(os.path.basename(temporary), name, folder)
                return fd
            files.remove(temporary)
        except BaseException:
            os.close(fd)
            raise
    except _UntrustedLockError:
        return None  # the replaced file, which is about to disappear
    except OSError as error:
        raise NodeError.of(error, path, "replace the PID file") from error
    os.close(fd)
    return None


def _write_pid(files: Files, fd: int, path: str) -> None:
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != _PID_MODE:
            files.calls.chmod(fd, _PID_MODE)  # created by an older package
        files.calls.truncate(fd, 0)
        files.calls.write(fd, f"{os.getpid()}\n".encode())
    except OSError as error:
        files.remove(path)  # it is ours by now, and contains no PID
        raise NodeError.of(error, path, "write the PID file") from error


@Query(is_valid=is_pid_if_any)
def find_instance(files: Files, path: str) -> int | None:
    """Return the PID of the instance that holds the PID file, None if none does. Raises NodeError.

    An untrusted process's lock makes no instance. The kernel's list of holders is read: trying the lock would make an
    instance that starts at that moment report another instance.
    """
    with _open_for_inspection(files, path) as fd:
        return None if fd is None else find_holder(fd, read_open_pid_file(fd))


def read_pid(files: Files, path: str) -> int | None:
    """Return the PID that the PID file contains, None if it contains none or is absent. Raises NodeError."""
    with _open_for_inspection(files, path) as fd:
        return None if fd is None else read_open_pid_file(fd)


@contextlib.contextmanager
def _open_for_inspection(files: Files, path: str) -> Iterator[int | None]:
    """Open the PID file to inspect it; yield None if it is absent, or no file that an instance would have locked."""
    with contextlib.ExitStack() as stack:
        fd = None
        with (
            attempt("open the PID file", path),
            Tolerated(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO),
            files.root.parent(files.in_folder(path)) as (folder, name),
        ):
            fd = stack.enter_context(opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, folder))
        yield fd if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode) else None


def lock_folder(files: Files, path: str, *, private: bool = False) -> int:
    """Lock the folder at the canonical `path`; return the descriptor that holds the lock.

    A folder can be locked without a file in it, so nothing is left behind. With `private`, a folder that others could
    open is closed to them. Raises AlreadyRunningError naming the holder, NodeError, also if the folder is removed
    meanwhile.
    """
    with attempt("open the folder", path), files.root.parent(path) as (folder, name):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077 and private:
            files.calls.chmod(fd, _PRIVATE)
        _flock(fd)
        if not files.is_at(path, fd):
            # its last holder removed it: this descriptor locks a folder that no other process can open
            raise NodeError.of(FileNotFoundError(errno.ENOENT, ""), path, "lock the folder")
    except BlockingIOError as error:
        pid = find_holder(fd, None)
        if pid is None and describe_untrusted_holder(fd) is not None:
            return fd  # no instance holds that lock, and from now on no other user can open the folder
        who = f" (PID {pid})" if pid else ""
        os.close(fd)
        raise AlreadyRunningError(
            f"another instance with another PID file{who} works on this install folder", path=path, hint="stop it first"
        ) from error
    except InstallerError:
        os.close(fd)
        raise
    return fd


def _open(files: Files, path: str) -> int:
    try:
        with files.root.parent(path) as (folder, name):
            refuse_if_others_write(folder, path)
            fd = files.calls.open_or_create(name, _PID_MODE, folder)
    except FileNotFoundError as error:
        raise _FolderGoneError.of(error, path, "open the PID file") from error
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _refused(_NO_FILE[error.errno], path) from error
        raise NodeError.of(error, path, "open the PID file") from error
    wrong = _find_file_defect(os.fstat(fd))
    if wrong is not None:
        os.close(fd)
        raise _refused(wrong, path)
    return fd


def _refused(why: str, path: str) -> ConfigurationError:
    return ConfigurationError(
        f"the PID file {why}", path=path, hint="look at who made it; remove it if it is not this installer's"
    )


def _find_file_defect(status: os.stat_result) -> str | None:
    """Return the reason why this cannot be an installer's PID file, None if it can: the file will be written to."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_nlink > 1:
        return "has another name as well: it may be somebody else's file"
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to somebody else (user {status.st_uid})"
    return None


def _lock(fd: int, path: str) -> None:
    """Lock the open file. Raises AlreadyRunningError naming the holder, _UntrustedLockError."""
    try:
        _flock(fd)
    except BlockingIOError as error:
        pid = find_holder(fd, None)
        stranger = describe_untrusted_holder(fd) if pid is None else None
        if stranger is not None:
            raise _UntrustedLockError(f"{stranger} holds a lock on it", path=path) from error
        raise _make_running_error(pid or read_open_pid_file(fd), path) from error


def _flock(fd: int) -> None:
    """Lock the open file or folder; wait for a holder that is ending. Raises BlockingIOError, NodeError."""
    for _ in range(_ENDING_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not is_holder_ending(fd):
            break
        time.sleep(_ENDING_SECONDS)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _make_running_error(pid: int | None, path: str) -> AlreadyRunningError:
    """Return the error that names the instance that holds the lock."""
    process = processes.inspect_process(pid) if pid else None
    program = os.path.basename(process.executable) if process is not None else ""
    if pid and program and not program.startswith(_INTERPRETER):
        return AlreadyRunningError(
            f"another installer, {program}, is running with PID {pid}",
            path=path,
            hint="stop it first: delete its pod, or disable the toolkit in what deploys it",
        )
    return AlreadyRunningError(
        f"another instance is running with PID {pid}" if pid else "another instance is running",
        path=path,
        hint="stop it first, or run `toolkit-installer uninstall`, which asks it to clean up and leave",
    )


def remove_stale(files: Files, path: str) -> None:
    """Remove the PID file of a killed run, if there is one.

    Raises AlreadyRunningError if the run was not killed, ConfigurationError, NodeError.
    """
    if files.own_status(path) is not None:
        PidFile.acquire(files, path).release()


def require_free(files: Files, path: str) -> None:
    """Raise AlreadyRunningError naming the instance that holds the PID file, NodeError. Nothing is locked."""
    pid = find_instance(files, path)
    if pid is not None:
        raise _make_running_error(pid, path)


class _UntrustedLockError(InstallerError):
    """An untrusted process holds the lock: every process that could read the file could take it."""


def read_open_pid_file(fd: int) -> int | None:
    """Return the PID that an open PID file contains, None if it contains none."""
    with contextlib.suppress(ValueError):
        pid = int(os.pread(fd, _PID_LIMIT, 0).decode("ascii", errors="replace").strip())
        return pid if pid > 0 else None
    return None
