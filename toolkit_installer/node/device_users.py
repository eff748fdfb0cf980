"""Processes in containers that have a device of a driver open, by the device's number and not by a name."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Sequence

import msgspec

from toolkit_installer.node import processes
from toolkit_installer.node.disk.root import Root

_DEVICES = "/proc/devices"
_CHARACTER = "Character devices:"


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
    """Return the processes that have a device of one of these major numbers open, and no `/` of `homes`."""
    if not numbers:  # no driver, no device: none can be open
        return Users()
    own = [_identity(home.folder) for home in homes]
    pids, unseen = [], 0
    for pid in processes.pids():
        try:
            if _identity(f"/proc/{pid}/root/") not in own and _has_open(pid, numbers):
                pids.append(pid)
        except PermissionError:
            unseen += 1
        except OSError:
            continue  # it ended meanwhile: it has nothing open
    return Users(tuple(pids), unseen)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _has_open(pid: int, numbers: Collection[int]) -> bool:
    place = f"/proc/{pid}/fd"
    for name in os.listdir(place):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            status = os.stat(f"{place}/{name}")
            if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) in numbers:
                return True
    return False
