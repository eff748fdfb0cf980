"""Time: that which a crash, a new container and a changed wall clock do not move; and the wall clock's, to be shown."""

from __future__ import annotations

import time

from toolkit_installer.node.disk.root import attempt

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id of this boot (random(4)). Raises NodeError."""
    with attempt("read it", _BOOT_ID), open(_BOOT_ID, encoding="ascii") as stream:
        return stream.read().strip()


def boot_seconds() -> float:
    """Return the seconds since this boot, suspended time included (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> float:
    """Return the seconds since 1970 by the node's clock, for people alone: somebody may set it."""
    return time.time()


def text(seconds: float) -> str:
    """Return seconds since 1970 as RFC 3339 writes them, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
