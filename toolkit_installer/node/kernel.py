"""What the kernel says of itself, for a report: its version, how it was started, its control groups, its modules."""

from __future__ import annotations

import os
import platform

from toolkit_installer.node.disk.reading import read_bounded

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
    said = {"uname": " ".join(platform.uname()), "control groups": f"version {2 if os.path.exists(_UNIFIED) else 1}"}
    return said | {path: _text(path) for path in _FILES}


def _text(path: str) -> str:
    try:
        return read_bounded(path, _LIMIT).decode(errors="backslashreplace")
    except OSError as error:
        return f"({error.strerror})"
