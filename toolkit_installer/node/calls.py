"""The system calls that change the node: all of them go through `SystemCalls`.

Tests replace it to record the order of calls, to make one fail, or to die before or after one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import signal
from collections.abc import Callable

FICLONE = 0x40049409
"""ioctl request of linux/fs.h: make the destination share the source's blocks."""

_NOREPLACE = 1
_EXCHANGE = 2
"""Flags of renameat2(2), as in linux/fs.h."""


class SystemCalls:
    """Thin wrappers: each method is one system call. All raise OSError."""

    def mkdir(self, name: str, mode: int, folder: int) -> None:
        """Create a folder beneath the folder descriptor."""
        os.mkdir(name, mode, dir_fd=folder)

    def rmdir(self, name: str, folder: int) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=folder)

    def create(self, name: str, mode: int, folder: int) -> int:
        """Create a file that must not exist, and return its descriptor."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, mode, dir_fd=folder)

    def create_unnamed(self, mode: int, folder: int) -> int:
        """Create a file that has no name yet, and return its descriptor. EOPNOTSUPP, EISDIR: not supported here."""
        return os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, mode, dir_fd=folder)

    def link(self, fd: int, name: str, folder: int) -> None:
        """Give a name, which must be free, to an open file without one."""
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=folder, follow_symlinks=True)

    def open_or_create(self, name: str, mode: int, folder: int) -> int:
        """Open a file for reading and writing, created if absent, never through a symlink."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(name, flags, mode, dir_fd=folder)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write some of `data`; return the number of bytes written."""
        return os.write(fd, data)

    def truncate(self, fd: int, length: int) -> None:
        """Cut a file to `length` bytes."""
        os.ftruncate(fd, length)

    def clone(self, source: int, target: int) -> None:
        """Make `target` share all blocks of `source` (reflink)."""
        fcntl.ioctl(target, FICLONE, source)

    def copy_range(self, source: int, target: int, count: int) -> int:
        """Have the kernel copy up to `count` bytes between two files; return the number of bytes copied."""
        return os.copy_file_range(source, target, count)

    def chmod(self, fd: int, mode: int) -> None:
        """Set the permission bits."""
        os.fchmod(fd, mode)

    def chown(self, fd: int, uid: int, gid: int) -> None:
        """Set owner and group."""
        os.fchown(fd, uid, gid)

    def setxattr(self, fd: int, name: str, value: bytes) -> None:
        """Set one extended attribute."""
        os.setxattr(fd, name, value)

    def removexattr(self, fd: int, name: str) -> None:
        """Remove one extended attribute."""
        os.removexattr(fd, name)

    def fsync(self, fd: int) -> None:
        """Make a file's content, or a folder's entries, survive a power cut."""
        os.fsync(fd)

    def rename(self, source: str, target: str, folder: int) -> None:
        """Rename within one folder, replacing the target."""
        os.rename(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def rename_new(self, source: str, target: str, folder: int) -> None:
        """Rename within one folder to a name that must be free. EINVAL, ENOSYS: not supported here."""
        _renameat2(source, target, folder, _NOREPLACE)

    def exchange(self, one: str, other: str, folder: int) -> None:
        """Swap the names of two entries of one folder atomically. EINVAL, ENOSYS: not supported here."""
        _renameat2(one, other, folder, _EXCHANGE)

    def unlink(self, name: str, folder: int) -> None:
        """Remove a file or a symlink."""
        os.unlink(name, dir_fd=folder)

    def symlink(self, target: str, name: str, folder: int) -> None:
        """Create a symlink."""
        os.symlink(target, name, dir_fd=folder)

    def signal(self, pidfd: int, number: signal.Signals) -> None:
        """Send a signal to the process behind `pidfd`, never to a later process with the same PID."""
        signal.pidfd_send_signal(pidfd, number)

    def restart_unit(self, command: list[str]) -> None:
        """Mark the moment before a program of the node restarts a unit; does nothing itself."""

    def make_device_nodes(self, command: list[str]) -> None:
        """Mark the moment before a program of the toolkit creates device nodes; does nothing itself."""


def _renameat2(source: str, target: str, folder: int, flags: int) -> None:
    call = _libc_renameat2()
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), target)
    while call(folder, os.fsencode(source), folder, os.fsencode(target), flags):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), target)


@functools.cache
def _libc_renameat2() -> Callable[..., int] | None:
    """Return the C library's renameat2, or None if glibc is older than 2.28. Python does not wrap it."""
    found = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return found
