"""The state of a node of a real cluster, and the differences of two such states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tests.e2e.cluster.files import State

RELOADS = "run/nvidia/toolkit-installer.reloads"
"""What a cleanup leaves by purpose: when the engine was reloaded."""
PID_FILES = frozenset({"run/nvidia/toolkit.pid", "run/nvidia/toolkit/toolkit.pid", "run/nvidia/toolkit"})
"""What a run holds while it is at work: its PID file, and that of NVIDIA's own installer with its folder."""

_OF_A_PROBE = "tmp/runc-process"
"""What containerd (go-runc) names the file of one command in a container, and leaves where that is killed meanwhile."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of a node: all its files, what its engine serves, and how often that was started."""

    files: Mapping[str, State]
    handlers: frozenset[str]
    starts: int


def changes(before: Mapping[str, State], now: Mapping[str, State]) -> list[str]:
    """Return the files that are not as they were, but for what remembers the reloads, and what a killed probe left."""
    paths = (path for path in now.keys() | before.keys() if path != RELOADS and not path.startswith(_OF_A_PROBE))
    return sorted(path for path in paths if now.get(path) != before.get(path))
