"""Whether a file could be replaced, told without trying: what the kernel would refuse is known beforehand."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from toolkit_installer.node.disk.root import NodeError, Root, Tolerated, attempt, mount_id, opened

_GETFLAGS = 0x80086601
"""ioctl request FS_IOC_GETFLAGS of linux/fs.h, on 64-bit machines."""
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20
"""Attributes of linux/fs.h, as chattr(1) sets them: `i` and `a`."""
_NO_FLAGS = (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EACCES, errno.EPERM)
_LONG = struct.Struct("l")


def obstacle(root: Root, path: str) -> NodeError | None:
    """Return what stands in the way of replacing, or creating, the file at the canonical `path`; None if nothing does.

    Raises NodeError where the node cannot be looked at.
    """
    folder = os.path.dirname(path)
    while folder != "/" and not os.path.lexists(root.outside(folder)):
        folder = os.path.dirname(folder)
    with attempt("look at it", path):
        number = _refusal(root, folder, path)
    return NodeError.of(OSError(number, ""), path, "replace it") if number else None


def _refusal(root: Root, folder: str, path: str) -> int:
    """Return the errno that a rename onto `path` would end with, 0 if it would not."""
    place = root.for_writers(folder)
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return errno.EROFS
    if _attributes(place):  # who may do everything is kept out by an attribute only
        return errno.EPERM
    # who writes as root may do all that root may; who only looks may have been given less
    may = (root.only_looks and os.geteuid() == 0) or os.access(place, os.W_OK | os.X_OK, effective_ids=True)
    if not may:
        return errno.EACCES
    if not os.path.lexists(root.outside(path)):
        return 0
    there = root.for_writers(path)
    if _mount(there) != _mount(place):
        return errno.EBUSY
    return errno.EPERM if _attributes(there) else 0


def _attributes(place: str) -> int:
    """Return the attributes that keep a file or folder as it is, 0 where the file system has none."""
    with Tolerated(*_NO_FLAGS), opened(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW) as fd:
        flags: int = _LONG.unpack(fcntl.ioctl(fd, _GETFLAGS, bytes(_LONG.size)))[0]
        return flags & (_IMMUTABLE | _APPEND_ONLY)
    return 0


def _mount(place: str) -> int:
    with opened(place, os.O_PATH | os.O_NOFOLLOW) as fd:
        return mount_id(fd)
