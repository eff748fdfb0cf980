"""How far the copy of a large payload is: a bar on a terminal, else a line every 5 seconds; nothing of a short one.

The clock is the test's: nothing here waits.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.node.faults import Fault, Plan, _child, run
from tests.support.fake_node import FakeNode
from toolkit_installer import log
from toolkit_installer.applying.files import CopyProgress
from toolkit_installer.applying.reload import WaitReport
from toolkit_installer.node import programs
from toolkit_installer.settings import LogFormat

TOTAL = 600_000_000
CLEARED = "\r\x1b[K"


class Clock:
    """Tells the seconds that the test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


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


# --- waiting for an engine ---


def test_waiting_for_an_engine_is_shown_with_the_time_and_gives_way_to_log_lines(clock: Clock) -> None:
    with terminal() as seen, mock.patch.dict(os.environ, {"TERM": "xterm", "COLUMNS": "100"}):
        log.configure(None, debug=False, stream=sys.stderr)
        patience = WaitReport("docker", clock)
        clock.now += 0.25
        patience.tick()
        assert seen() == "", "most engines are quicker"
        clock.now += 0.5
        patience.tick()
        assert seen() == f"{CLEARED}| Waiting for docker to serve its configuration, 0 s"
        clock.now += 2.5
        patience.tick()
        patience.tick()
        shown = f"{CLEARED}/ Waiting for docker to serve its configuration, 3 s"
        assert seen().endswith(shown)
        log.get().info("A line", key="a-line")
        patience.line.clear()
        assert re.fullmatch(r".*, 3 s\r\x1b\[K[^\r]*A line.*\r?\n", seen(), re.DOTALL)


def test_elsewhere_a_line_comes_every_five_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(LogFormat.LOGFMT, debug=False, stream=sys.stderr)
    patience = WaitReport("docker", clock)
    told = []
    for _ in range(11):
        clock.now += 1
        patience.tick()
        told += lines_of(capsys)
    line = 'level=info msg="Waiting for the engine to serve its configuration" event=waiting-for-handlers '
    assert told == [f"{line}engine=docker seconds=5", f"{line}engine=docker seconds=10"]
    assert patience.elapsed() == 11


def test_the_time_goes_on_while_a_program_of_the_node_runs() -> None:
    ticks: list[None] = []
    with programs.report_progress(lambda: ticks.append(None)):
        programs.run(["/bin/sleep", "0.7"], seconds=10)
    assert ticks
    number = len(ticks)
    programs.run(["/bin/sleep", "0.5"], seconds=10)
    assert len(ticks) == number


@contextlib.contextmanager
def timed(now: Callable[[], float]) -> Iterator[None]:
    with mock.patch.object(CopyProgress.__init__, "__defaults__", (now,)):
        yield


def test_an_install_that_takes_long_tells_how_far_it_is_until_all_is_copied(node: FakeNode, tmp_path: Path) -> None:
    with timed(itertools.count(0, 5).__next__):
        done = run(node, tmp_path, "run", "--no-daemon")
    assert done.code == 0, done.output
    amounts = re.findall(
        r'msg="Copying the toolkit" event=copying bytes_done=(\d+) bytes_total=(\d+) bytes_per_second=\d+', done.output
    )
    files = [path for path in node.payload.rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = [path.stat().st_size for path in files if path.suffix != ".toml"]
    counts = [int(count) for count, _ in amounts]
    assert {int(of) for _, of in amounts} == {sum(sizes)}
    assert counts == sorted(counts)
    assert counts[-1] == sum(sizes)
    # each file is one piece, and told of again once it is on the disk
    assert counts[::2] == counts[1::2]
    assert len(set(counts)) == len(sizes)


def test_an_install_that_takes_short_says_nothing_of_it(node: FakeNode, tmp_path: Path) -> None:
    with timed(lambda: 0.0):
        done = run(node, tmp_path, "run", "--no-daemon")
    assert done.code == 0, done.output
    assert "Installed the toolkit" in done.output
    assert "Copying" not in done.output


def on_terminal(node: FakeNode, plan: Plan) -> tuple[int, str]:
    """Install on a terminal, a second between any two looks at the clock; return the exit code and the output."""
    ours, theirs = pty.openpty()
    with timed(itertools.count(0, 1).__next__):
        pid = os.fork()
        if pid == 0:
            arguments = node.arguments("run", "--no-daemon", log_format="console")
            os._exit(_child(arguments, plan, Path(os.ttyname(theirs))))
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # EIO: it has ended
        while piece := os.read(ours, 4096):
            said += piece
    os.close(ours)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.decode()


def test_on_a_terminal_the_bar_fills_and_is_gone_before_the_next_line(node: FakeNode) -> None:
    code, said = on_terminal(node, Plan())
    assert code == 0, said
    bars, after = said.rsplit(CLEARED, 1)
    assert bars.count(f"{CLEARED}Copying the toolkit [") > 5
    assert "Copying the toolkit [####################] 0.0 of 0.0 MB, 0.0 MB/s" in bars
    assert re.match(r"\S+Z \S*info .*Installed the toolkit", after)


def test_the_bar_is_gone_before_it_is_said_that_the_disk_failed_amid_the_copy(node: FakeNode, tmp_path: Path) -> None:
    other = FakeNode(tmp_path / "other", node.payload)
    for folder in ("etc/docker", "run", "usr/local"):
        (other.root / folder).mkdir(parents=True)
    calls = run(other, tmp_path, "run", "--no-daemon").calls
    last = max(number for number, call in enumerate(calls) if call == "copy_range")
    code, said = on_terminal(node, Plan(at=last, fault=Fault.ONCE))
    assert code == 3, said
    bars, after = said.rsplit(CLEARED, 1)
    assert "Copying the toolkit [" in bars
    assert re.match(r"\S+Z \S*error .*The change failed and is taken back", after)
