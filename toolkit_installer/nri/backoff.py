"""When to try again, where the engine's NRI socket is not there or was of no use. Pure.

An engine that is started again makes its socket anew, and a pod that comes before the plugin is there starts without
its devices: so the first tries follow fast, and a socket that was made meanwhile is tried at once. One that is there
and of no use is tried less and less often, as the engine writes a line for each.
"""

from __future__ import annotations

FIRST = 0.05
LOOK = 1.0
"""Seconds between two looks at what is in the socket's place; the longest pause where there is none."""
LONGEST = 30.0
"""Seconds between two tries at a socket that is of no use."""
STEADY = 10.0
"""Seconds after which a connection counts as good: if it is lost then, the first tries follow fast again."""


class Backoff:
    """Counts the tries. All times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._pause = FIRST
        self._at = 0.0
        self._seen = ""
        self._look = 0.0

    def failed(self, now: float, seen: str, *, there: bool) -> None:
        """Take note of a try that failed; `seen` is what is in the socket's place, `there` whether somebody listens."""
        self._at = now + self._pause
        self._pause = min(self._pause * 2, LONGEST if there else LOOK)
        self._seen, self._look = seen, now + min(LOOK, self._at - now)

    def lost(self, now: float, served_since: float, seen: str) -> None:
        """Take note of a connection that was good since then, and is lost."""
        if now - served_since >= STEADY:
            self._pause = FIRST
        self.failed(now, seen, there=True)

    def when(self) -> float:
        """Return when to ask `due` again."""
        return min(self._at, self._look)

    def due(self, now: float, seen: str) -> bool:
        """Tell whether it is time to try, with what is in the socket's place now."""
        if seen != self._seen:
            self._pause = FIRST
            return True
        if now >= self._at:
            return True
        if now >= self._look:
            self._look = now + LOOK
        return False
