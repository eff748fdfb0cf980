"""A program that is started without its standard streams, or with full ones, does its work all the same."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.fake_node import DAEMON_JSON, DOCKER, PID_FILE, SCRIPTS, FakeNode
from toolkit_installer.errors import ExitCode

pytestmark = pytest.mark.real_start

DEADLINE = 30.0


def shell(node: FakeNode, redirection: str, command: str, *more: str) -> subprocess.Popen[bytes]:
    program = [str(SCRIPTS / "toolkit-installer"), *node.arguments(command, *more)]
    return subprocess.Popen(["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *program])


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_reason_to_fail_or_to_say_that_it_did(node: FakeNode, redirection: str) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    assert shell(node, redirection, "run", "--no-daemon").wait(DEADLINE) == 0
    assert b"nvidia" in node.read(DAEMON_JSON)
    assert shell(node, redirection, "status").wait(DEADLINE) == 0
    assert shell(node, redirection, "uninstall").wait(DEADLINE) == 0
    assert node.snapshot() == before


@pytest.mark.parametrize("redirection", ["<&-", "<&- >&- 2>&-", "2>/dev/full", ">/dev/full 2>/dev/full"])
def test_a_run_without_usable_streams_waits_and_cleans_up(node: FakeNode, redirection: str) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    process = shell(node, redirection, "run")
    idle = Path(f"/proc/{process.pid}/cmdline")
    deadline = time.monotonic() + DEADLINE
    while b"idle_process." not in idle.read_bytes():
        assert process.poll() is None, "it ended instead of waiting"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert node.read(PID_FILE) == f"{process.pid}\n".encode()
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0
    assert node.snapshot() == before


# --- a full disk ---

ANSWERS = [["plan"], ["status"], ["status", "--json"], ["detect"], ["detect", "--json"]]
HELP = [["--help"], ["--version"], ["run", "--help"], ["status", "--version"], ["plan", "-h"]]


def outcome(arguments: list[str], redirection: str) -> tuple[int, str, str]:
    """The exit code, and what came out of stdout and stderr."""
    program = ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", str(SCRIPTS / "toolkit-installer"), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=DEADLINE)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", [*ANSWERS, *HELP], ids=" ".join)
def test_an_answer_that_finds_no_room_is_one_line_that_says_why_and_no_bug(node: FakeNode, command: list[str]) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    arguments = node.arguments(*command) if command in ANSWERS else command
    code, _, error = outcome(arguments, ">/dev/full")
    assert code == ExitCode.BAD_CONFIGURATION
    (line,) = (line for line in error.splitlines() if "level=error" in line)
    assert "No space left on device" in line
    assert "hint=" in line
    assert "Traceback" not in error
    assert all(line.startswith("time=") for line in error.splitlines())
    assert outcome(arguments, ">/dev/full 2>/dev/full")[0] == ExitCode.BAD_CONFIGURATION
    assert node.snapshot() == before


@pytest.mark.parametrize("command", [*ANSWERS, *HELP], ids=" ".join)
def test_an_answer_is_the_same_where_the_log_finds_no_room(node: FakeNode, command: list[str]) -> None:
    node.write(DAEMON_JSON, DOCKER)
    arguments = node.arguments(*command) if command in ANSWERS else command
    code, answer, _ = outcome(arguments, "")
    assert outcome(arguments, "2>/dev/full") == (code, answer, "")
    assert answer


@pytest.mark.parametrize("redirection", ["2>/dev/full", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize("more", [[], ["--debug", "--log-format", "json"]], ids=" ".join)
def test_a_log_without_room_neither_stops_the_work_nor_changes_the_exit_code(
    node: FakeNode, redirection: str, more: list[str]
) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    assert shell(node, redirection, "run", "--no-daemon", *more).wait(DEADLINE) == 0
    assert b"nvidia" in node.read(DAEMON_JSON)
    assert node.broken_runtimes() == []
    assert shell(node, redirection, "uninstall", *more).wait(DEADLINE) == 0
    assert node.snapshot() == before
    node.write(DAEMON_JSON, b"{")
    assert shell(node, redirection, "run", "--no-daemon", *more).wait(DEADLINE) == ExitCode.BAD_CONFIGURATION
    assert shell(node, redirection, "run", "--no-such-flag", *more).wait(DEADLINE) == ExitCode.USAGE
