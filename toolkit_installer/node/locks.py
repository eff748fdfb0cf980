"""One instance at a time: the PID file and the lock beside the receipt."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

from toolkit_installer.errors import AlreadyRunningError, ConfigurationError, InstallerError
from toolkit_installer.node.files import Files
from toolkit_installer.node.root import NodeError, refuse_if_others_write

_PID_LIMIT = 64
"""Bytes; no PID is longer."""


class PidFile:
    """The locked PID file. Locked before it is truncated, so that a loser never erases the winner's PID."""

    def __init__(self, files: Files, path: str, fd: int, created_folders: tuple[str, ...]) -> None:
        self.files = files
        self.path = path
        self.fd = fd
        self.created_folders = created_folders

    @classmethod
    def acquire(cls, files: Files, path: str) -> PidFile:
        """Lock the file and write our PID into it; a stale one is taken over.

        Raises AlreadyRunningError naming the holder, ConfigurationError if the path is no regular file, NodeError.
        """
        ours = files.folders_of_ours(os.path.dirname(path))
        created = files.make_folders(os.path.dirname(path))
        try:
            canonical = files.in_folder(path)
            return cls(files, canonical, _acquired(files, canonical), ours)
        except InstallerError:
            for folder in reversed(created):
                files.remove_folder(folder)
            raise

    def adopt_folders(self, folders: tuple[str, ...]) -> None:
        """Let `release` also remove these folders, which an earlier run made for the file."""
        self.created_folders = tuple(dict.fromkeys([*folders, *self.created_folders]))

    def release(self) -> None:
        """Remove the file, the folders that were made for it, and the lock."""
        self.files.remove(self.path)
        for folder in reversed(self.created_folders):
            self.files.remove_folder(folder)
        os.close(self.fd)


def _acquired(files: Files, path: str) -> int:
    """Return the descriptor of the locked PID file with our PID in it. Raises as `PidFile.acquire` does."""
    while True:
        fd = _open(files, path)
        try:
            _lock(fd, path)
            status = files.own_status(path)
            # the holder before us unlinks it on exit: then this descriptor locks a file that nobody else sees
            if status is not None and (status.st_dev, status.st_ino) == _identity(fd):
                _write_pid(files, fd, path)
                return fd
        except InstallerError:
            os.close(fd)
            raise
        os.close(fd)


def _write_pid(files: Files, fd: int, path: str) -> None:
    try:
        files.calls.truncate(fd, 0)
        files.calls.write(fd, f"{os.getpid()}\n".encode())
    except OSError as error:
        files.remove(path)  # it is ours by now, and says nothing
        raise NodeError.of(error, path, "write the PID file") from error


def holder(files: Files, path: str) -> int | None:
    """Return the PID of the instance that holds the PID file, or None if nobody does. Raises NodeError.

    Asks the kernel's list of locks: trying the lock would make an instance that starts just now believe in another.
    """
    found = files.find(path, _PID_LIMIT)
    if found is None or not _locked(found.identity.inode):
        return None
    return _pid(found.content)


def _locked(inode: int) -> bool:
    """Tell whether somebody holds a flock on the file with this inode (proc_locks(5))."""
    try:
        with open("/proc/locks", encoding="ascii") as lines:
            return any(
                words[1] == "FLOCK" and words[-3].endswith(f":{inode}")
                for words in (line.split() for line in lines)
                if "->" not in words
            )
    except OSError as error:
        raise NodeError.of(error, "/proc/locks", "read it") from error


def lock_folder(files: Files, path: str) -> int:
    """Lock the folder at the canonical `path`; return the descriptor that holds the lock.

    Raises AlreadyRunningError, NodeError. A folder needs no file in it to be a lock, so nothing is left behind.
    """
    try:
        fd = os.open(files.root.outside(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NodeError.of(error, path, "open the folder") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise AlreadyRunningError(
            "another instance with another PID file works on this install folder", path=path, hint="stop it first"
        ) from error
    return fd


def _open(files: Files, path: str) -> int:
    try:
        with files.root.parent(path) as (folder, name):
            refuse_if_others_write(folder, path)
            fd = files.calls.open_or_create(name, 0o644, folder)
    except OSError as error:
        raise NodeError.of(error, path, "open the PID file") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigurationError("the PID file is not a regular file", path=path, hint="remove it")
    return fd


def _lock(fd: int, path: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = _written_pid(fd)
        raise AlreadyRunningError(
            f"another instance is running with PID {pid}" if pid else "another instance is running",
            path=path,
            hint="stop it first, or run `toolkit-installer uninstall`, which asks it to clean up and leave",
        ) from error


def _written_pid(fd: int) -> int | None:
    return _pid(os.pread(fd, _PID_LIMIT, 0))


def _pid(content: bytes) -> int | None:
    with contextlib.suppress(ValueError):
        pid = int(content.decode("ascii", errors="replace").strip())
        return pid if pid > 0 else None
    return None


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
