"""How often the engine may be reloaded for installing: a crash-looping pod must not take it down with it.

The times are kept in a small file of the node beside the PID file. It survives cleanup, which is what a crash loop
does each time, and it expires by itself: with the boot, and with the time that the budget speaks of.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import clock
from toolkit_installer.node.files import Files
from toolkit_installer.node.writing import own_metadata

FILE = "toolkit-installer.reloads"
_MODE = 0o644


def recent(content: bytes, boot: str, now: float, seconds: float) -> tuple[float, ...]:
    """Return the times of this boot that still count. What cannot be read counts as nothing. Pure."""
    try:
        body = json.loads(content)
        if body["boot"] != boot:
            return ()
        return tuple(float(time) for time in body["reloads"] if now - seconds < time <= now)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def refusal(times: Sequence[float], now: float, budget: tuple[int, float]) -> str | None:
    """Return why another reload is refused, None if it is not. Pure."""
    count, seconds = budget
    if len(times) < count:
        return None
    wait = sorted(times)[-count] + seconds - now
    return (
        f"the engine was reloaded {len(times)} times for installing within {seconds:g} s, which is the limit: "
        f"the next one is possible in {wait:.0f} s"
    )


class ReloadBudget:
    """The budget of one node."""

    def __init__(self, files: Files, pid_path: str, budget: tuple[int, float]) -> None:
        self.files = files
        self.path = os.path.join(os.path.dirname(files.in_folder(pid_path)), FILE)
        self.budget = budget

    def tidy(self) -> None:
        """Remove what a killed run left half written beside the file. Raises NodeError."""
        self.files.sweep(self.path)

    def check(self) -> None:
        """Raise ConfigurationError if the budget is used up."""
        reason = refusal(self._times(), clock.boot_seconds(), self.budget)
        if reason is not None:
            raise ConfigurationError(
                reason,
                path=self.path,
                hint="something makes the installer start over and over: look at why it ends; nothing was changed; "
                "--reload-budget N/SECONDS sets another limit, removing the file forgets the past",
            )

    def spend(self) -> None:
        """Record a reload that is about to be made. Raises NodeError."""
        times = [*self._times(), clock.boot_seconds()]
        body = {"boot": clock.boot_id(), "reloads": times}
        self.files.overwrite(self.path, json.dumps(body).encode() + b"\n", own_metadata(_MODE))

    def _times(self) -> tuple[float, ...]:
        found = self.files.find(self.path)
        if found is None:
            return ()
        return recent(found.content, clock.boot_id(), clock.boot_seconds(), self.budget[1])
