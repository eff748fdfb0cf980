"""A line on the terminal that says how far something is, kept up to date."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import ClassVar


class StatusLine:
    """One line on stderr that is written over again and again; nothing where that is no terminal, or not wanted."""

    shown_now: ClassVar[StatusLine | None] = None
    """The one that is on the terminal: whoever writes a line there takes it away first."""

    def __init__(self, *, on: bool) -> None:
        self.on = on and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    @classmethod
    def make_room(cls) -> None:
        """Take away what is shown, by whomever."""
        if cls.shown_now is not None:
            cls.shown_now.clear()

    def show(self, text: str) -> None:
        """Show a text in place of the one before, cut to the terminal's width."""
        if self.on:
            import shutil  # noqa: PLC0415  # it brings the compressors along, and few starts show a line

            width = shutil.get_terminal_size().columns - 1
            plain = "".join(letter if letter.isprintable() else " " for letter in text)
            self._write(f"\r\x1b[K{plain[:width]}")
            self._shown = True
            StatusLine.shown_now = self

    def clear(self) -> None:
        """Take the text away, for what is written next."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False
            StatusLine.shown_now = None

    @staticmethod
    def _write(text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that went away is no reason to stop
            os.write(sys.stderr.fileno(), text.encode())
