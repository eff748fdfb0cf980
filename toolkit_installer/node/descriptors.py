"""What a process has open: its files, the sockets that it has bound, and devices of a driver."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence

import msgspec

from toolkit_installer.node import processes, signals, trust
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import Root

_UNIX_FIELDS = 8
"""Of a line about a socket that has a name."""


def bound(pid: int) -> list[str] | None:
    """Return the names, in the process's own file system, of the unix sockets that it has bound; None if unknown.

    The kernel's list (proc_net_unix, in proc(5)) has the names as their owners chose them, line ends included: what is
    no line of it is passed over.
    """
    try:
        with trust.pinned(pid) as folder:
            inodes = {name[8:-1] for name in _links(folder) if name.startswith("socket:[")}
            names = []
            fd = os.open("net/unix", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "rb") as lines:
                for line in lines:
                    fields = line.rstrip(b"\n").split(b" ", 7)
                    words = [field for field in fields if field]
                    if len(words) >= _UNIX_FIELDS and words[6].decode(errors="replace") in inodes:
                        names.append(os.fsdecode(line.rstrip(b"\n").partition(words[6] + b" ")[2]))
            return [name for name in names if name.startswith("/")]
    except OSError:
        return None


def opened(process: Process) -> list[str]:
    """Return the files that a process has open, as it calls them; nothing where that cannot be seen.

    The descriptors are those of a process that is still the same, and so as much to be believed as the process is.
    """
    try:
        with trust.pinned(process.pid) as folder:
            root = os.readlink("root", dir_fd=folder).rstrip("/")
            return [name.removeprefix(root) for name in _links(folder) if name.startswith(f"{root}/")]
    except OSError:
        return []


def content(pid: int, name: str, limit: int) -> bytes | None:
    """Return the first `limit` bytes of what a process has open under the name `name`, None where it has no such file.

    A process that is not to be believed has none.
    """
    try:
        with trust.pinned(pid) as folder:
            if trust.standing_of(folder, pid) is not trust.Standing.BELIEVED:
                return None
            for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"fd/{number}", dir_fd=folder) == name:
                        fd = os.open(f"fd/{number}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                        with open(fd, "rb") as stream:
                            return stream.read(limit)
    except OSError:
        return None  # it is gone
    return None


def _links(folder: int) -> Iterator[str]:
    """Yield what the descriptors behind an open /proc/PID lead to, as proc_pid_fd(5) spells it. Raises OSError."""
    for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield os.readlink(f"fd/{number}", dir_fd=folder)


_DEVICES = "/proc/devices"


_CHARACTER = "Character devices:"


_MOST = 1_000_000
"""Descriptors that are looked at, some seconds: each user may have that many, and more, in a container of their own."""


_HEED = 4096
"""Descriptors between two looks for a signal."""


class Users(msgspec.Struct, frozen=True):
    """The PIDs of such processes, and how many processes could not be looked at."""

    pids: tuple[int, ...] = ()
    unseen: int = 0


def majors(driver: str, listed: str | None = None) -> frozenset[int]:
    """Return the major numbers of a driver's character devices: those whose name begins with `driver`.

    `listed` is what proc(5) says of /proc/devices; None: it is read. Raises OSError.
    """
    if listed is None:
        with open(_DEVICES, encoding="utf-8", errors="replace", newline="\n") as stream:
            listed = stream.read()
    lines = listed.partition(_CHARACTER)[2].partition("\n\n")[0].split("\n")
    words = [line.split() for line in lines if line.strip()]
    return frozenset(int(number) for number, *name in words if name and name[0].startswith(driver))


def in_containers(numbers: Collection[int], homes: Sequence[Root]) -> Users:
    """Return the processes that have a device of one of these major numbers open, and no `/` of `homes`.

    Those that were not looked at, as others have too much open, count as unseen. Raises Stopped.
    """
    if not numbers:  # no driver, no device: none can be open
        return Users()
    own = [_identity(home.folder) for home in homes]
    pids, unseen, left = [], 0, _MOST
    for pid in processes.pids():
        signals.heed()
        try:
            if _identity(f"/proc/{pid}/root/") in own:
                continue
            found, looked_at = _has_open(pid, numbers, left)
            left -= looked_at
            if found:
                pids.append(pid)
            elif left <= 0:
                unseen += 1
        except PermissionError:
            unseen += 1
        except OSError:
            continue  # it ended meanwhile: it has nothing open
    return Users(tuple(pids), unseen)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _has_open(pid: int, numbers: Collection[int], most: int) -> tuple[bool, int]:
    """Tell whether a process has such a device open, and how many of its descriptors were looked at, `most` at most."""
    place = f"/proc/{pid}/fd"
    count = 0
    with os.scandir(place) as descriptors:  # one after the other: there may be a million
        for descriptor in descriptors:
            if count >= most:
                break
            count += 1
            if count % _HEED == 0:
                signals.heed()
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                status = os.stat(f"{place}/{descriptor.name}")
                if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in numbers:
                    return True, count
    return False, count
