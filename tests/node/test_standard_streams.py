"""A program that is started without its standard streams does its work all the same."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.fake_node import DAEMON_JSON, PID_FILE, SCRIPTS, FakeNode

DOCKER = b'{\n  "log-driver": "json-file"\n}\n'
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


@pytest.mark.parametrize("redirection", ["<&-", "<&- >&- 2>&-"])
def test_a_run_without_standard_input_waits_and_cleans_up(node: FakeNode, redirection: str) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    process = shell(node, redirection, "run")
    idle = Path(f"/proc/{process.pid}/cmdline")
    deadline = time.monotonic() + DEADLINE
    while b"waiter.py" not in idle.read_bytes():
        assert process.poll() is None, "it ended instead of waiting"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert node.read(PID_FILE) == f"{process.pid}\n".encode()
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0
    assert node.snapshot() == before
