"""Time: that which a crash, a new container and a changed wall clock do not move; and the wall clock's, to be shown."""

from __future__ import annotations

import time

from toolkit_installer.node.disk.root import attempt

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
