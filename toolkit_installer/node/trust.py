"""Decides which processes and programs of the node are trusted: those of root and of the installer's own user.

The owner of a process chooses its name and arguments, and so the files that it names and the sockets that it listens
on. So a process is evidence only if all of its users are root or ours, and if no other user can control it: the owner
of its user namespace could (user_namespaces(7)), and a user who calls a program with the set-user-ID bit chooses its
name and arguments (execve(2)). A program of the node is run only if no other user could have written it; the file that
was checked is the one that is run, by its descriptor.

Untrusted processes are ignored, with a log line at the level debug.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import functools
import os
import stat
import struct
from collections.abc import Iterator

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import (
    Root,
    attempt,
    find_other_writers,
    list_trusted_groups,
    list_trusted_users,
    opened,
    refuse_if_others_write,
)

_GET_OWNER = 0xB704
"""ioctl request NS_GET_OWNER_UID of linux/nsfs.h: returns which user created the user namespace of a descriptor."""
_USER = struct.Struct("I")
_STATUS_LIMIT = 64 * 1024
_OUR_NAMESPACE = "/proc/self/ns/user"
_OUR_MOUNTS = "/proc/self/ns/mnt"
_OUR_CLOCK = "/proc/self/ns/time"


class TrustLevel(enum.Enum):
    """How far a process is trusted."""

    BELIEVED = "believed"
    STRANGER = "a stranger's"
    UNSEEN = "root's, and not to be looked at by who we are"
    GONE = "gone"


def pin_process(pid: int) -> contextlib.AbstractContextManager[int]:
    """Open /proc/PID as a descriptor that stands for this process only, never for a later one with the same PID.

    Raises FileNotFoundError, ProcessLookupError.
    """
    return opened(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)


@Query()
def find_trust_level(pid: int) -> TrustLevel:
    """Return how far the process `pid` is trusted."""
    try:
        with pin_process(pid) as folder:
            return find_pinned_trust_level(folder, pid)
    except OSError:
        return TrustLevel.GONE


def find_pinned_trust_level(folder: int, pid: int) -> TrustLevel:
    """Return how far the process behind `folder`, its open /proc/PID, is trusted."""
    try:
        name, users = _identity(folder)
        stranger = next(iter(sorted(users - list_trusted_users())), None)
        why = "it belongs to somebody else"
        if stranger is None:
            stranger = _find_other_controller(folder)
            why = "somebody else made its user namespace, or called its set-user-ID program"
    except PermissionError:
        return TrustLevel.UNSEEN
    except (OSError, ValueError):
        return TrustLevel.GONE  # or a kernel thread, which has no such data
    if stranger is None:
        return TrustLevel.BELIEVED
    _log_ignored(pid, name, stranger, why)
    return TrustLevel.STRANGER


def _find_other_controller(folder: int) -> int | None:
    """Return the other user who controls a process of root's, or ours; None if there is none. Raises OSError."""
    with opened("ns/user", os.O_RDONLY, folder) as fd:
        if not os.path.samestat(os.stat(_OUR_NAMESPACE), os.fstat(fd)):
            owner: int = _USER.unpack(fcntl.ioctl(fd, _GET_OWNER, bytes(_USER.size)))[0]
            if owner not in list_trusted_users():
                return owner
    status = os.stat("exe", dir_fd=folder)
    return status.st_uid if status.st_mode & stat.S_ISUID else None


def is_dead(folder: int) -> bool:
    """Return whether the process behind `folder` is a zombie. Raises OSError."""
    return (_read_field(_status(folder), "State") or "").startswith(("Z", "X"))


def state_of(pid: int) -> str:
    """Return the letter of a process's state (proc_pid_status(5)), empty if the process is gone."""
    try:
        with pin_process(pid) as folder:
            return (_read_field(_status(folder), "State") or "")[:1]
    except OSError:
        return ""


def is_ending(pid: int) -> bool:
    """Return whether the kernel has taken the memory of a process: it runs no more, and the rest goes next."""
    try:
        with pin_process(pid) as folder:
            return _read_field(_status(folder), "VmSize") is None
    except OSError:
        return False  # it is gone


def is_signal_blocked(pid: int, number: int) -> bool:
    """Return whether a process blocks a signal, and so cannot die of it before it handles it."""
    try:
        with pin_process(pid) as folder:
            return bool(int(_read_field(_status(folder), "SigBlk") or "0", 16) & 1 << (number - 1))
    except (OSError, ValueError):
        return False


def shares_clock(pid: int) -> bool:
    """Return whether a process has the same clock since the boot as this one (time_namespaces(7))."""
    try:
        with pin_process(pid) as folder:
            return os.path.samestat(os.stat("ns/time", dir_fd=folder), os.stat(_OUR_CLOCK))
    except OSError:
        return True  # a kernel without such namespaces; or it is gone


def shares_mounts(pid: int) -> bool:
    """Return whether a process sees the same mounts as this one, so that each path is the same file for both."""
    try:
        with pin_process(pid) as folder:
            same = os.path.samestat(os.stat("ns/mnt", dir_fd=folder), os.stat(_OUR_MOUNTS))
            return same and os.path.samestat(os.stat("root", dir_fd=folder), os.stat("/"))
    except OSError:
        return False  # it is gone, or may not be inspected


def users_of(pid: int) -> frozenset[int]:
    """Return the real, effective, saved and file system user of a process; none if it is gone."""
    try:
        with pin_process(pid) as folder:
            return _identity(folder)[1]
    except (OSError, ValueError):
        return frozenset()


def _identity(folder: int) -> tuple[str, frozenset[int]]:
    """Return a process's name, and its real, effective, saved and file system user. Raises OSError, ValueError."""
    status = _status(folder)
    users = frozenset(map(int, (_read_field(status, "Uid") or "").split()))
    if not users:
        raise ValueError("it says nothing of its users")
    return _read_field(status, "Name") or "", users


def _status(folder: int) -> bytes:
    """Return a process's status (proc_pid_status(5)), with a line feed before each line. Raises OSError."""
    with opened("status", os.O_RDONLY, folder) as fd:
        return b"\n" + os.read(fd, _STATUS_LIMIT)


def _read_field(status: bytes, field: str) -> str | None:
    """Return a field of `_status`, None if it is missing.

    A line ends with a line feed only. A process chooses its name, which may contain any other character, even a
    carriage return, at which str.splitlines and a file that is read as text begin a new line. The kernel writes a line
    feed in a name as a backslash and an n.
    """
    _, found, rest = status.partition(b"\n%s:" % field.encode())
    return rest.partition(b"\n")[0].decode(errors="replace").strip() if found else None


@functools.lru_cache(maxsize=256)
def _log_ignored(pid: int, name: str, user: int, why: str) -> None:
    """Log once that a process is ignored. Our log takes over the records of the standard library's logging."""
    import logging  # noqa: PLC0415  # most nodes have nothing to ignore

    logging.getLogger(__name__).debug("Ignored the process %r (PID %d, user %d): %s", name, pid, user, why)


@contextlib.contextmanager
def program(root: Root, path: str) -> Iterator[int]:
    """Open the program at the node's `path` for running it; yield the descriptor that is to be run.

    It and every folder above it, up to the `/` of the installer's own file system, have to belong to root or to us, and
    to be writable by no other user. Raises ConfigurationError, NodeError.
    """
    canonical = root.canonical(path)
    with contextlib.ExitStack() as stack:
        with attempt("look at the program", path):
            _refuse_around(root)
            with root.parent(canonical) as (folder, name):
                refuse_if_others_write(folder, canonical, runs=True)
                fd = stack.enter_context(opened(name, os.O_PATH | os.O_NOFOLLOW, folder))
        _refuse_program(fd, path)
        yield fd


@Query()
def is_program(root: Root, path: str) -> bool:
    """Return whether there is a program at the node's `path` that would be run."""
    try:
        with program(root, path):
            return True
    except ConfigurationError:
        return False


def is_folder(root: Root, path: str) -> bool:
    """Return whether the node's folder `path` exists, and only root, or we, could put programs into it."""
    try:
        canonical = f"{root.canonical(path).rstrip('/')}/."
        _refuse_around(root)
        with root.parent(canonical) as (folder, _):
            refuse_if_others_write(folder, canonical, runs=True)
    except (OSError, ConfigurationError):
        return False
    return True


def _refuse_around(root: Root) -> None:
    """Raise ConfigurationError if another user could replace the folder that is the node's `/`. Raises OSError."""
    if root.folder == "/" or root.folder.startswith("/proc/"):
        return  # /proc/PID/root is the kernel's own view of a process's root
    place = os.path.realpath(root.folder)
    with Root("/").parent(place) as (folder, _):
        refuse_if_others_write(folder, place, runs=True)


def _refuse_program(fd: int, path: str) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o111:
        raise ConfigurationError("is no program", path=path, hint="look at what is there")
    if status.st_uid not in list_trusted_users():
        raise ConfigurationError(
            f"belongs to user {status.st_uid}, and would be run as root: it is not run", path=path, hint="chown root it"
        )
    who = find_other_writers(fd, list_trusted_groups())
    if who is not None:
        raise ConfigurationError(
            f"is writable by {who}, and would be run as root: it is not run", path=path, hint="chmod go-w it"
        )
