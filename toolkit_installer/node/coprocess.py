"""A program of the installer's own that stays, and answers one question after the other: a line each.

It is started by the first question, and is over when this process ends or becomes another program: it reads the end of
its input then, and is told so before (`end_all`), so that nobody inherits it. It may do nothing that has to be finished
between two questions.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit_installer.node import signals
from toolkit_installer.node.programs import ProgramError, Start, Watch, close_streams, started

if TYPE_CHECKING:
    from toolkit_installer.node.programs import Child

_begun: set[Coprocess] = set()


def end_all() -> None:
    """End those that were started, as this process becomes another program, or ends."""
    for each in list(_begun):
        each.end()


atexit.register(end_all)


class Coprocess:
    """The program that `command` starts, with the first word an absolute path."""

    def __init__(self, command: Sequence[str]) -> None:
        self._start = Start(tuple(command), None, command[0], "/", ())
        self._child: Child | None = None
        self._owner = 0
        """The process that started it: a fork of that one has a coprocess of its own."""

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Return the line that answers a question, which is a line with its end. Raises ProgramError, Stopped.

        A program that does not answer in time is killed; the next question starts another. One that ended since it
        answered last, or ends at this question, is started again once.
        """
        with signals.polled():
            signals.heed()
            if self._stays():
                line, _ = self._told(question, seconds)
                if line is not None:
                    return line
            self._begin()
            line, errors = self._told(question, seconds)
        if line is None:
            raise ProgramError(errors.split("\n")[-1] or "it ended without an answer")
        return line

    def end(self) -> None:
        """Kill the program, and wait for its end, unless it hangs in the kernel."""
        if self._stays():
            assert self._child is not None  # noqa: S101  # it stays
            Watch(self._child, self._start.command, b"", 0.0).finish()
            self._forget()

    def _stays(self) -> bool:
        """Tell whether there is one to be asked; forget one that ended, or that is another process's."""
        if self._child is None:
            return False
        if self._owner != os.getpid():
            self._child.returncode = 0  # neither waited for nor asked about, when this object goes
        if self._child.poll() is None:
            return True
        self._forget()
        return False

    def _begin(self) -> None:
        self._child, self._owner = started(self._start), os.getpid()
        _begun.add(self)

    def _told(self, question: bytes, seconds: float) -> tuple[bytes | None, str]:
        """Return the answer, None where the program ended without one, and what it said on its standard error."""
        child = self._child
        assert child is not None  # noqa: S101  # it was begun
        turn = _Turn(child, self._start.command, question, seconds)
        try:
            return turn.line(), turn.errors
        finally:
            if child.returncode is not None:
                self._forget()

    def _forget(self) -> None:
        if self._child is not None:
            close_streams(self._child)
        self._child = None
        _begun.discard(self)


class _Turn(Watch):
    """One question, and the line that answers it: then the program is left as it is."""

    def line(self) -> bytes | None:
        """Return the answer, None where the program ended without one. Raises ProgramError, Stopped."""
        whole = False
        try:
            self._attend(time.monotonic() + self._seconds)
            whole = self._has_all()
        finally:
            if whole:
                os.close(self._end)
            else:
                self.finish()
        return bytes(self._output) if whole else None

    def _has_all(self) -> bool:
        return self._output.endswith(b"\n")

    def _fed(self) -> None:
        """Leave the program's input open: another question may come."""
