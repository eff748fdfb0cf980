"""A long-running helper program of the installer that answers requests one at a time, each with a line.

The first request starts the program. It ends when this process ends or executes another program: its input is closed
then, and `end_all` kills it before, so that the next program does not inherit it. Work that must be completed may not
extend over two requests.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit_installer.node import signals
from toolkit_installer.node.programs import ProgramError, ProgramStart, RunningProgram, close_streams, start_program

if TYPE_CHECKING:
    from toolkit_installer.node.programs import Child

_begun: set[Coprocess] = set()


def end_all() -> None:
    """Kill all running coprocesses, before this process ends or executes another program."""
    for each in list(_begun):
        each.end()


atexit.register(end_all)


class Coprocess:
    """The program that `command` starts; its first word is an absolute path."""

    def __init__(self, command: Sequence[str]) -> None:
        self._start = ProgramStart(tuple(command), None, command[0], "/", ())
        self._child: Child | None = None
        self._owner = 0
        """PID of the process that started the child: a fork of that process starts its own."""

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Send a request, a line with its line end, and return the response line. Raises ProgramError, Stopped.

        A program that does not respond in time is killed; the next request starts another. A program that ended since
        its last response, or ends at this request, is restarted once.
        """
        with signals.polled():
            signals.raise_if_pending()
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
            assert self._child is not None  # noqa: S101  # it runs
            RunningProgram(self._child, self._start.command, b"", 0.0).finish()
            self._forget()

    def _stays(self) -> bool:
        """Return whether the child runs; forget a child that ended or that belongs to another process."""
        if self._child is None:
            return False
        if self._owner != os.getpid():
            self._child.returncode = 0  # so that Popen neither waits for it nor polls it when this object is deleted
        if self._child.poll() is None:
            return True
        self._forget()
        return False

    def _begin(self) -> None:
        self._child, self._owner = start_program(self._start), os.getpid()
        _begun.add(self)

    def _told(self, question: bytes, seconds: float) -> tuple[bytes | None, str]:
        """Return the response, or None if the program ended without one, and its standard error."""
        child = self._child
        assert child is not None  # noqa: S101  # it was started
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


class _Turn(RunningProgram):
    """One request and its response line; the program keeps running afterwards."""

    def line(self) -> bytes | None:
        """Return the response, or None if the program ended without one. Raises ProgramError, Stopped."""
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
        """Leave the program's input open for the next request."""
