"""Output of the commands on stdout: the only module that prints, and that makes printed text safe."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable
from typing import Final

import click
import msgspec

from toolkit_installer.documents import log_line
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.node import terminal

_HINT: Final = "nothing was changed; make room where the answer goes, or send it elsewhere, and ask again"


_NARROWEST, _WIDEST = 80, 120
"""Columns. Lines longer than the widest are hard to read."""


class OutputError(InstallerError):
    """The output could not be written: stdout is on a full or broken disk, or leads nowhere."""

    exit_code = ExitCode.BAD_CONFIGURATION


class DiffLine(msgspec.Struct, frozen=True):
    """A line, such as a line of a diff, that keeps its tabs and is coloured on a terminal."""

    text: str
    paint: Callable[[str], str]


def show(lines: Iterable[str | DiffLine]) -> None:
    """Print lines with control characters escaped: each stays one line and cannot control a terminal.

    Raises OutputError, and BrokenPipeError if stdout has no reader any more.
    """
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    _print("".join(f"{_escape_line(line, color=color)}\n" for line in lines))


def show_own(text: str) -> None:
    """Print the program's own text, with its colours if stdout is a terminal. Raises as `show` does."""
    _print(f"{text if sys.stdout.isatty() else click.unstyle(text)}\n")


def plain(line: str | DiffLine) -> str:
    """Return a line as `show` prints it without colours."""
    return _escape_line(line, color=False)


def show_on_stderr(text: str) -> None:
    """Print lines on stderr; a failure to write is ignored."""
    shown = "".join(f"{log_line.escape_line(line, tabs=True)}\n" for line in text.split("\n"))
    try:
        terminal.write(sys.stderr, shown)
    except (OSError, ValueError):
        return  # see the docstring


def columns() -> int:
    """Return the width for the program's own text, in columns: the terminal's, but at least 80 and at most 120."""
    import shutil  # noqa: PLC0415  # most output needs no width, and it imports the compressors

    return min(max(shutil.get_terminal_size((_NARROWEST, 24)).columns, _NARROWEST), _WIDEST)


def width() -> int | None:
    """Return the width of the output in columns; None if stdout is no terminal, so that lines are not wrapped."""
    return columns() if sys.stdout.isatty() else None


def wrap_lines(lines: Iterable[str]) -> list[str]:
    """Return lines wrapped to the terminal's width; continuation lines are indented by four more columns."""
    limit = width()
    if limit is None:
        return list(lines)
    import textwrap  # noqa: PLC0415  # for output on a terminal only

    found = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        broken = textwrap.wrap(
            line, limit, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        found += broken or [""]
    return found


def finish() -> None:
    """Flush stdout. Raises as `show` does."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _redirect_stdout()
        raise _refused(error) from error


def reader_is_gone() -> bool:
    """Return whether stdout is a pipe without a reader (`… | head`); if so, redirect stdout to /dev/null."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    gone = any(events & select.POLLERR for _, events in poll.poll(0))
    if gone:
        _redirect_stdout()
    return gone


def _redirect_stdout() -> None:
    """Redirect stdout to /dev/null: otherwise Python would flush its buffer again at exit, and fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _print(text: str) -> None:
    try:
        terminal.write(sys.stdout, text, patient=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _refused(error) from error


def _refused(error: OSError) -> OutputError:
    return OutputError(f"the answer cannot be written to the standard output: {error.strerror}", hint=_HINT)


def _escape_line(line: str | DiffLine, *, color: bool) -> str:
    if isinstance(line, str):
        return log_line.escape_line(line)
    shown = log_line.escape_line(line.text, tabs=True)
    return line.paint(shown) if color else shown
