"""Which machine this is.

What the kernel says of itself, for a report: its version, how it was started, its control groups, its modules.

Time: that which a crash, a new container and a changed wall clock do not move; and the wall clock's, to be shown.

The node's time zone: what its clocks show is not what those of the installer's container do.
"""

from __future__ import annotations

import io
import os
import struct
import time
from typing import TYPE_CHECKING

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import read_bounded
from toolkit_installer.node.root import attempt

if TYPE_CHECKING:
    import datetime as dt


def architecture() -> str:
    """Return its architecture as uname(2) has it, such as "x86_64"."""
    return os.uname().machine


def name() -> str:
    """Return what it calls itself, as uname(2) has it."""
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
"""Is there where the control groups are of version 2 (cgroups(7))."""


def facts() -> dict[str, str]:
    """Return texts by the name of what they are from; of a file that cannot be read, why."""
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
"""Where a process's start is among the fields that follow its name."""


def boot_id() -> str:
    """Return the id of this boot (random(4)). Raises NodeError."""
    with attempt("read it", _BOOT_ID), open(_BOOT_ID, encoding="ascii", newline="\n") as stream:
        return stream.read().strip()


def boot() -> str:
    """Return what changes whenever the node starts anew. Raises NodeError.

    Where nodes are containers on one kernel, its boot's id stays the same: the start of the node's first process does
    not. It is seen in the node's process namespace, and counted from the boot (proc_pid_stat(5), field 22).
    """
    with attempt("read it", _INIT), open(_INIT, "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()  # the process's name, before that, may hold anything
    return f"{boot_id()}/{fields[_STARTED].decode()}"


def boot_seconds() -> float:
    """Return the seconds since this boot, suspended time included (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def monotonic() -> float:
    """Return the seconds of a clock that nobody can set, for time limits."""
    return time.monotonic()


def now() -> float:
    """Return the seconds since 1970 by the node's clock, for what people see and ask for: somebody may set it."""
    return time.time()


def text(seconds: float) -> str:
    """Return seconds since 1970 as RFC 3339 writes them, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


_FILE = "/etc/localtime"
"""localtime(5): a link to a file of the zone database, or a copy of one; UTC where it is absent."""
_DATABASE = "/zoneinfo/"
UTC = "UTC"


def of_node(node: Node) -> tuple[str, dt.tzinfo]:
    """Return the node's time zone, by its name or the file that it is from. Raises ConfigurationError, NodeError."""
    import datetime as dt  # noqa: PLC0415  # only where somebody asks for a time of the node's
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
