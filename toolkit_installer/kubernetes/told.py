"""What a run has told the cluster, and remembers while it is asleep. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from toolkit_installer.kubernetes.events import Ledger
from toolkit_installer.kubernetes.node_state import NodeState


class ReportMemory(msgspec.Struct, frozen=True):
    """What the API server was told, and what is still to be."""

    condition: NodeState | None = None
    """What the node's condition says."""
    refreshed: float = 0.0
    """When the condition was last told, in seconds since 1970."""
    ready: bool | None = None
    """What the taint was last put or taken away for; None: it was not looked at."""
    begun: bool = False
    """Whether this run has said that it is at work."""
    failed: NodeState | None = None
    """Why the node could not be brought to where it should be, until it is ready."""
    labels: tuple[tuple[str, str], ...] | None = None
    ledger: Ledger = Ledger()
    failure: str = ""
    """Why something could not be told, as the log said; empty: all is told."""


def plain(memory: ReportMemory) -> dict[str, Any]:
    """Return the memory as JSON has it."""
    found: dict[str, Any] = msgspec.to_builtins(memory)
    return found


def understood(said: Any) -> ReportMemory:
    """Return what was remembered; an empty memory where it is not understood: then all is told once more."""
    try:
        return msgspec.convert(said, ReportMemory)
    except msgspec.ValidationError:
        return ReportMemory()
