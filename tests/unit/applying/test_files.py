"""The toolkit's files and folders put in place and removed, and engines' files that others write as well."""

from __future__ import annotations

import os
import sys
from unittest import mock

import pytest

from tests.support.terminal import CLEARED, Clock, terminal
from toolkit_installer import log
from toolkit_installer.applying.files import CopyProgress
from toolkit_installer.settings import LogFormat

TOTAL = 600_000_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]


def test_every_five_seconds_a_line_says_how_much_is_done_and_how_fast(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(LogFormat.LOGFMT, debug=False, stream=sys.stderr)
    progress = CopyProgress(TOTAL, clock)
    told = []
    for _ in range(12):
        clock.now += 1
        progress.add(10_000_000)
        told.append(lines_of(capsys))
    line = 'level=info msg="Copying the toolkit" event=copying bytes_done={} '
    line += "bytes_total=600000000 bytes_per_second=10000000"
    expected = {4: [line.format(50_000_000)], 9: [line.format(100_000_000)]}
    assert told == [expected.get(number, []) for number in range(12)]


def test_time_without_a_byte_counts_too(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """A flush can take longer than the copy."""
    log.configure(LogFormat.LOGFMT, debug=False, stream=sys.stderr)
    progress = CopyProgress(TOTAL, clock)
    clock.now += 1
    progress.add(40_000_000)
    clock.now += 19
    progress.add(0)
    (line,) = lines_of(capsys)
    assert line.endswith("bytes_done=40000000 bytes_total=600000000 bytes_per_second=2000000")


@pytest.mark.parametrize("log_format", [None, LogFormat.CONSOLE])
def test_a_terminal_sees_a_bar_that_is_drawn_ten_times_a_second_and_goes(
    clock: Clock, log_format: LogFormat | None
) -> None:
    with terminal() as seen, mock.patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": "100"}):
        log.configure(log_format, debug=False, stream=sys.stderr)
        progress = CopyProgress(TOTAL, clock)
        clock.now += 0.0625
        progress.add(1_000_000)
        assert seen() == ""
        clock.now += 0.0625
        progress.add(149_000_000)
        clock.now += 0.0625
        progress.add(1_000_000)
        bar = "Copying the toolkit [#####               ] 150.0 of 600.0 MB, 1200.0 MB/s"
        assert seen() == f"{CLEARED}{bar}"
        progress.bar.clear()
        assert seen() == f"{CLEARED}{bar}{CLEARED}"


@pytest.mark.parametrize(
    "log_format, debug, term",
    [
        (LogFormat.LOGFMT, False, "xterm"),
        (LogFormat.JSON, False, "xterm"),
        (None, True, "xterm"),
        (None, False, "dumb"),
    ],
    ids=["logfmt", "json", "debug", "dumb"],
)
def test_a_terminal_that_is_to_have_lines_or_cannot_draw_gets_lines(
    clock: Clock, log_format: LogFormat | None, *, debug: bool, term: str
) -> None:
    with terminal() as seen, mock.patch.dict(os.environ, {"TERM": term}):
        log.configure(log_format, debug=debug, stream=sys.stderr)
        progress = CopyProgress(TOTAL, clock)
        clock.now += 1
        progress.add(1)
        assert seen() == ""
        clock.now += 4
        progress.add(1)
        progress.bar.clear()
        assert CLEARED not in seen()
        assert seen().count("Copying the toolkit") == 1
