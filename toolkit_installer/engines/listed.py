"""What the files of an engine list: its runtimes and its cgroup driver, with file and line. Pure."""

from __future__ import annotations

import msgspec


class ListedRuntime(msgspec.Struct, frozen=True):
    """A runtime in an engine's files: what it runs (None: the engine decides), and the file and line that has it."""

    name: str
    executable: str | None
    path: str
    line: int | None
    systemd: bool | None = None
    """Whether it leaves cgroups to systemd; None where that is no setting of a single runtime."""
    default: bool = False


class CgroupSetting(msgspec.Struct, frozen=True):
    """A cgroup driver, `systemd` or `cgroupfs`, and the file and line, or the flag, that names it."""

    name: str
    path: str
    line: int | None = None
