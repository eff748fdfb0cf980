"""A reload that is due and not allowed yet, as a value that is remembered and shown. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

NOW, IDLE = "now", "idle"
"""The words of `--reload-when` that stand for no window."""


class Pending(msgspec.Struct, frozen=True):
    """What is waited for."""

    engines: tuple[str, ...]
    """Those that are to be reloaded."""
    reason: str
    """Why that is not allowed, in words."""
    since: float
    """When the run began to wait: seconds since 1970."""
    opens: float | None = None
    """When the next window opens: seconds since 1970. None where no window is waited for."""
    served: bool = False
    """The engines serve already what they are to serve."""

    @property
    def words(self) -> str:
        """What a person is told."""
        return f"A reload of {', '.join(self.engines)} is pending: {self.reason}"


def plain(pending: Pending | None) -> dict[str, Any]:
    """Return it as JSON has it, {} where nothing is pending."""
    found: dict[str, Any] = msgspec.to_builtins(pending) if pending is not None else {}
    return found


def understood(said: Any) -> Pending | None:
    """Return what was remembered; None where nothing is pending, or it is not understood: it is found out again."""
    try:
        return msgspec.convert(said, Pending) if said else None
    except msgspec.ValidationError:
        return None
