"""A terminal as this process's stderr, and a clock that a test sets, for what shows how far a work is."""

from __future__ import annotations

import contextlib
import os
import pty
from collections.abc import Callable, Iterator
from unittest import mock

CLEARED = "\r\x1b[K"


class Clock:
    """Tells the seconds that the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextlib.contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """Have a terminal be stderr; yield what returns all that it was sent."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    said = ""

    def seen() -> str:
        nonlocal said
        with contextlib.suppress(BlockingIOError):
            while True:
                said += os.read(ours, 4096).decode()
        return said

    try:
        with os.fdopen(theirs, "w") as stream, mock.patch("sys.stderr", stream):
            yield seen
    finally:
        os.close(ours)
