"""Telling that an engine is waited for: elapsed time on a person's terminal, else a log line every 5 seconds."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator

from toolkit_installer import log
from toolkit_installer.node import running
from toolkit_installer.node.status_line import StatusLine

_LINE_SECONDS = 5.0
_FIRST_SECONDS = 0.5
"""What is over sooner is not told of."""
_TURN_SECONDS = 0.1
_TURNS = "|/-\\"


class Patience:
    """How long one engine has been waited for. `now` returns seconds, and never goes back."""

    def __init__(self, engine: str, now: Callable[[], float] = time.monotonic) -> None:
        self.line = StatusLine(on=log.is_for_people())
        self._engine = engine
        self._now = now
        self._began = now()
        self._next = self._began + (_FIRST_SECONDS if self.line.on else _LINE_SECONDS)
        self._turns = itertools.cycle(_TURNS)

    def elapsed(self) -> float:
        """Return how long it has been, in seconds."""
        return self._now() - self._began

    def tick(self) -> None:
        """Tell how long it has been, if it is time to."""
        now = self._now()
        if now < self._next:
            return
        seconds = int(now - self._began)
        if self.line.on:
            self._next = now + _TURN_SECONDS
            self.line.show(f"{next(self._turns)} Waiting for {self._engine} to serve its configuration, {seconds} s")
        else:
            self._next += _LINE_SECONDS
            log.get().info(
                "Waiting for the engine to serve its configuration",
                key="waiting-for-handlers",
                engine=self._engine,
                seconds=seconds,
            )


@contextlib.contextmanager
def patience(engine: str) -> Iterator[Patience]:
    """Tell that `engine` is waited for, while its unit's restart runs as well."""
    telling = Patience(engine)
    try:
        with running.telling(telling.tick):
            yield telling
    finally:
        telling.line.clear()
