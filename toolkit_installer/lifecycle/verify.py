"""Verifying: an engine that serves, told from one that answers once and ends."""

from __future__ import annotations

import time

import msgspec

from toolkit_installer.engines.api import Live

_PAUSE_SECONDS = 0.1
STEADY_SECONDS = 1.0
"""How long after its first good answer an engine is asked again: one that then crashes has served nobody."""


class Steadiness(msgspec.Struct):
    """The good answers of one engine: a second one counts, of the same process.

    `deadline`: by time.monotonic().
    """

    deadline: float
    _served: Live | None = None
    """Its last answer, if that was as it should be."""
    _first: bool = False
    """That answer was the first of its process."""
    ends: int = 0
    """How often it ended after it had served."""

    @property
    def remaining(self) -> float:
        """Seconds to the deadline; none are left below 0."""
        return self.deadline - time.monotonic()

    def confirmed(self, live: Live | None) -> bool:
        """Take a good answer, or None for another one; tell whether it is the second good one of one process."""
        again = self._served is not None and live is not None and self._served.process == live.process
        if self._served is not None and live is not None and not again:
            self.ends += 1
        self._served, self._first = live, live is not None and not again
        return again

    def ended(self) -> None:
        """Take it that the engine does not answer."""
        self.ends += self._served is not None
        self._served, self._first = None, False

    def pause(self) -> float | None:
        """Return the seconds until it is to be asked again, None once the time is over.

        After a first good answer it is asked once more in any case.
        """
        if self._first:
            self.deadline = max(self.deadline, time.monotonic() + STEADY_SECONDS + _PAUSE_SECONDS)
            return STEADY_SECONDS
        return _PAUSE_SECONDS if self.remaining > 0 else None
