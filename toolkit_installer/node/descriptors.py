"""The open descriptors of processes: their files, the unix sockets that they have bound, and devices of a driver."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence

import msgspec

from toolkit_installer.node import processes, signals, trust
from toolkit_installer.node.processes import Process
from toolkit_installer.node.queries import Query
from toolkit_installer.node.reading import fits_config
from toolkit_installer.node.root import Root

_UNIX_FIELDS = 8
"""Number of fields in a line of /proc/net/unix for a socket that has a name."""


@Query()
def list_bound_sockets(pid: int) -> list[str] | None:
    """Return the paths of the unix sockets that the process has bound, None if unknown.

    The paths are those of the process's own file system. The kernel's list (proc_net_unix, in proc(5)) has them as
    their owners chose them, line feeds included: lines that cannot be parsed are skipped.
    """
    try:
        with trust.pin_process(pid) as folder:
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


@Query()
def list_open_files(process: Process) -> list[str]:
    """Return the paths of the files that a process has open, as the process sees them; none if they cannot be read.

    The descriptors are read through a pinned /proc/PID, so they can be trusted as much as the process.
    """
    try:
        with trust.pin_process(process.pid) as folder:
            root = os.readlink("root", dir_fd=folder).rstrip("/")
            return [name.removeprefix(root) for name in _links(folder) if name.startswith(f"{root}/")]
    except OSError:
        return []


@Query(is_valid=fits_config)
def content(pid: int, name: str, limit: int) -> bytes | None:
    """Return the first `limit` bytes of the file that a process has open as `name`, None if it has no such file open.

    None as well for an untrusted process.
    """
    try:
        with trust.pin_process(pid) as folder:
            if trust.find_pinned_trust_level(folder, pid) is not trust.TrustLevel.BELIEVED:
                return None
            for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"fd/{number}", dir_fd=folder) == name:
                        fd = os.open(f"fd/{number}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                        with open(fd, "rb") as stream:
                            return stream.read(limit)
    except OSError:
        return None  # the process ended
    return None


def _links(folder: int) -> Iterator[str]:
    """Yield the link targets of the descriptors behind an open /proc/PID (proc_pid_fd(5)). Raises OSError."""
    for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield os.readlink(f"fd/{number}", dir_fd=folder)


_DEVICES = "/proc/devices"


_CHARACTER = "Character devices:"


_MAX_DESCRIPTORS = 1_000_000
"""Descriptors that are inspected at most, in some seconds: each user may have as many and more in a container."""


_HEED = 4096
"""Descriptors between two checks for a signal."""


class DeviceUsers(msgspec.Struct, frozen=True):
    """PIDs of the processes that have a device open, and the number of processes that could not be inspected."""

    pids: tuple[int, ...] = ()
    unseen: int = 0


def find_major_numbers(driver: str, listed: str | None = None) -> frozenset[int]:
    """Return the major numbers of a driver's character devices: those whose name begins with `driver`.

    `listed` is the content of /proc/devices (proc(5)); if None, the file is read. Raises OSError.
    """
    if listed is None:
        with open(_DEVICES, encoding="utf-8", errors="replace", newline="\n") as stream:
            listed = stream.read()
    lines = listed.partition(_CHARACTER)[2].partition("\n\n")[0].split("\n")
    words = [line.split() for line in lines if line.strip()]
    return frozenset(int(number) for number, *name in words if name and name[0].startswith(driver))


def find_users_in_containers(numbers: Collection[int], homes: Sequence[Root]) -> DeviceUsers:
    """Return the processes that have a device with one of these major numbers open and whose root is none of `homes`.

    Processes that are skipped because others have too many descriptors open count as unseen. Raises Stopped.
    """
    if not numbers:  # without a driver, no device can be open
        return DeviceUsers()
    own = [_identity(home.folder) for home in homes]
    pids, unseen, left = [], 0, _MAX_DESCRIPTORS
    for pid in processes.list_pids():
        signals.raise_if_pending()
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
            continue  # the process ended: it has nothing open
    return DeviceUsers(tuple(pids), unseen)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _has_open(pid: int, numbers: Collection[int], most: int) -> tuple[bool, int]:
    """Return whether a process has such a device open, and how many descriptors were inspected, at most `most`."""
    place = f"/proc/{pid}/fd"
    count = 0
    with os.scandir(place) as descriptors:  # one at a time: there may be a million
        for descriptor in descriptors:
            if count >= most:
                break
            count += 1
            if count % _HEED == 0:
                signals.raise_if_pending()
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                status = os.stat(f"{place}/{descriptor.name}")
                if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in numbers:
                    return True, count
    return False, count
