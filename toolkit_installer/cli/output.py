"""What the commands answer on stdout: the one place that prints, and that makes safe what is printed."""

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
"""Columns. Beyond the widest, lines are hard to read."""


class OutputError(InstallerError):
    """The answer could not be written: stdout leads to a full disk, a broken one, or nowhere."""

    exit_code = ExitCode.BAD_CONFIGURATION


class DiffLine(msgspec.Struct, frozen=True):
    """A line, such as one of a diff, whose tabs stay, and that has the colour of its kind on a terminal."""

    text: str
    paint: Callable[[str], str]


def show(lines: Iterable[str | DiffLine]) -> None:
    """Print lines; each stays one, whatever the names in it, and no terminal obeys it.

    Raises OutputError, and BrokenPipeError if nobody reads any more.
    """
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    _print("".join(f"{_shown(line, color=color)}\n" for line in lines))


def show_own(text: str) -> None:
    """Print text of the program's own, with its colours if stdout is a terminal. Raises as `show` does."""
    _print(f"{text if sys.stdout.isatty() else click.unstyle(text)}\n")


def plain(line: str | DiffLine) -> str:
    """Return a line as `show` prints it without colours."""
    return _shown(line, color=False)


def explain(text: str) -> None:
    """Print lines on stderr; a stderr that cannot be written is no error."""
    shown = "".join(f"{log_line.visible_line(line, tabs=True)}\n" for line in text.split("\n"))
    try:
        terminal.write(sys.stderr, shown)
    except (OSError, ValueError):
        return  # see above


def columns() -> int:
    """Return how many columns text of the program's own may have: those of the terminal, 80 where it has fewer."""
    import shutil  # noqa: PLC0415  # most answers need no width, and it brings the compressors along

    return min(max(shutil.get_terminal_size((_NARROWEST, 24)).columns, _NARROWEST), _WIDEST)


def width() -> int | None:
    """Return how many columns an answer may have; None where stdout is no terminal, so that a line stays one."""
    return columns() if sys.stdout.isatty() else None


def wrapped(lines: Iterable[str]) -> list[str]:
    """Return lines that fit a terminal; what is broken goes on below the first word, indented by four more."""
    limit = width()
    if limit is None:
        return list(lines)
    import textwrap  # noqa: PLC0415  # of answers on a terminal alone

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
        _lead_nowhere()
        raise _refused(error) from error


def reader_is_gone() -> bool:
    """Tell whether stdout is a pipe that nobody reads any more (`… | head`); if so, redirect stdout to /dev/null."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    gone = any(events & select.POLLERR for _, events in poll.poll(0))
    if gone:
        _lead_nowhere()
    return gone


def _lead_nowhere() -> None:
    """Redirect stdout to /dev/null: Python would try its buffer again, and fail, when the process ends."""
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


def _shown(line: str | DiffLine, *, color: bool) -> str:
    if isinstance(line, str):
        return log_line.visible_line(line)
    shown = log_line.visible_line(line.text, tabs=True)
    return line.paint(shown) if color else shown
