"""Time that a crash, a new container and a changed wall clock do not move."""

from __future__ import annotations

import time

from toolkit_installer.node.disk.root import NodeError

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id of this boot (random(4)). Raises NodeError."""
    try:
        with open(_BOOT_ID, encoding="ascii") as stream:
            return stream.read().strip()
    except OSError as error:
        raise NodeError.of(error, _BOOT_ID, "read it") from error


def boot_seconds() -> float:
    """Return the seconds since this boot, suspended time included (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
