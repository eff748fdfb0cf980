"""Facts about the machine: its names, kernel and boot for a report, clocks, and the node's time zone.

`boot_seconds` and `monotonic` are not affected by a crash, a new container or a changed wall clock; `now` is the wall
clock, for times that are shown. The node's time zone is read from its files, because the installer's container may have
another one.
"""

from __future__ import annotations

import io
import os
import struct
import time
from typing import TYPE_CHECKING

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.queries import Query, is_time
from toolkit_installer.node.reading import read_bounded
from toolkit_installer.node.root import attempt

if TYPE_CHECKING:
    import datetime as dt


@Query()
def architecture() -> str:
    """Return the machine's architecture as in uname(2), such as "x86_64"."""
    return os.uname().machine


def name() -> str:
    """Return the machine's host name as in uname(2)."""
    return os.uname().nodename


_LIMIT = 1 << 18
_FILES = (
    "/proc/version",
    "/proc/cmdline",
    "/proc/self/cgroup",
    "/proc/1/cgroup",
    "/proc/driver/nvidia/version",
    "/proc/modules",
)
_UNIFIED = "/sys/fs/cgroup/cgroup.controllers"
"""Exists if the control groups are of version 2 (cgroups(7))."""


def collect_facts() -> dict[str, str]:
    """Return texts by the name of their source; for a file that cannot be read, the reason."""
    said = {"uname": " ".join(os.uname()), "control groups": f"version {2 if os.path.exists(_UNIFIED) else 1}"}
    return said | {path: _text(path) for path in _FILES}


def _text(path: str) -> str:
    try:
        return read_bounded(path, _LIMIT).decode(errors="backslashreplace")
    except OSError as error:
        return f"({error.strerror})"


_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_INIT = "/proc/1/stat"
_STARTED = 22 - 3
"""Index of a process's start among the fields after its name."""


@Query()
def boot_id() -> str:
    """Return the id of this boot (random(4)). Raises NodeError."""
    with attempt("read it", _BOOT_ID), open(_BOOT_ID, encoding="ascii", newline="\n") as stream:
        return stream.read().strip()


@Query()
def boot() -> str:
    """Return a text that changes with every boot of the node. Raises NodeError.

    If nodes are containers on one kernel, the kernel's boot id stays the same, but the start of the node's first
    process does not. It is read in the node's process namespace, and counted from the boot (proc_pid_stat(5), field
    22).
    """
    with attempt("read it", _INIT), open(_INIT, "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()  # the process's name, before that, may contain anything
    return f"{boot_id()}/{fields[_STARTED].decode()}"


@Query(is_valid=is_time)
def boot_seconds() -> float:
    """Return the seconds since this boot, suspended time included (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@Query(recorded=False)
def monotonic() -> float:
    """Return the seconds of a clock that cannot be set, for time limits."""
    return time.monotonic()


@Query(is_valid=is_time)
def now() -> float:
    """Return the seconds since 1970 by the node's clock, which can be set: for times that people read and give."""
    return time.time()


def text(seconds: float) -> str:
    """Return seconds since 1970 in the format of RFC 3339, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


_FILE = "/etc/localtime"
"""localtime(5): a link to a file of the zone database, or a copy of one; UTC where it is absent."""
_DATABASE = "/zoneinfo/"
UTC = "UTC"


def read_time_zone(node: Node) -> tuple[str, dt.tzinfo]:
    """Return the node's time zone, with its name or the path of its file. Raises ConfigurationError, NodeError."""
    import datetime as dt  # noqa: PLC0415  # only needed for times of the node
    import zoneinfo  # noqa: PLC0415  # likewise

    for files in reversed(node.readers()):
        found = files.read_file(_FILE)
        if found is None:
            continue
        _, of_database, name = files.canonical(_FILE).partition(_DATABASE)
        try:
            zone = zoneinfo.ZoneInfo.from_file(io.BytesIO(found.content))
        except (ValueError, EOFError, LookupError, ArithmeticError, struct.error) as error:
            raise ConfigurationError(
                "is no time zone",
                path=_FILE,
                hint="a window of --reload-when is one of the node's time: link it to a file below /usr/share/zoneinfo",
            ) from error
        return (name if of_database else _FILE), zone
    return UTC, dt.UTC
