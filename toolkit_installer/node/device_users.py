"""Processes in containers that have a device of a driver open, by the device's number and not by a name."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Sequence

import msgspec

from toolkit_installer.node import processes, signals
from toolkit_installer.node.disk.root import Root

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
