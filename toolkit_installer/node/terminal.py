"""Writes to a standard stream past its buffer, and shows progress in a line on the terminal that is kept up to date."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import ClassVar, TextIO


def write(stream: TextIO, text: str, *, patient: bool = False) -> None:
    """Write a text past Python's buffer, which keeps text that it cannot write and fails again when the process ends.

    `patient`: wait if a non-blocking pipe is full. Raises OSError, and ValueError for a closed stream.
    """
    try:
        descriptor = stream.fileno()
    except OSError:  # a stream in memory
        stream.write(text)
        stream.flush()
        return
    data = text.encode(stream.encoding or "utf-8", "backslashreplace")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            if not patient:
                raise
            select.select([], [descriptor], [])


def is_started_by_person() -> bool:
    """Return whether a person has started this program in a shell: the shell leads the session of their terminal.

    In a container with a terminal (`docker run -t`), the program that restarts it makes it lead a session itself.
    """
    return os.isatty(0) and os.isatty(2) and os.getsid(0) != os.getpid()


class StatusLine:
    """One line on stderr that is overwritten again and again; no effect if that is no terminal, or not wanted."""

    shown_now: ClassVar[StatusLine | None] = None
    """The line that is on the terminal: code that writes there clears it first."""

    def __init__(self, *, on: bool) -> None:
        self.on = on and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    @classmethod
    def make_room(cls) -> None:
        """Clear the line that is shown, whichever object shows it."""
        if cls.shown_now is not None:
            cls.shown_now.clear()

    def show(self, text: str) -> None:
        """Show a text in place of the one before, cut to the terminal's width."""
        if self.on:
            import shutil  # noqa: PLC0415  # it imports the compressors, and few starts show a line

            width = shutil.get_terminal_size().columns - 1
            plain = "".join(letter if letter.isprintable() else " " for letter in text)
            self._write(f"\r\x1b[K{plain[:width]}")
            self._shown = True
            StatusLine.shown_now = self

    def clear(self) -> None:
        """Clear the text, for the output that follows."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False
            StatusLine.shown_now = None

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone is no reason to stop
            os.write(sys.stderr.fileno(), text.encode())
