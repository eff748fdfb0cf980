"""`refresh`: the run that waits on the node looks again, and how that ended is printed, and is the exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.fake_node import DAEMON_JSON, DOCKER, TOOLKIT, FakeNode, Run

pytestmark = pytest.mark.usefixtures("configured")
BROKEN = b'{\n  "log-driver": "json-file",\n}\n'
OTHER = "/run/other/toolkit.pid"
RUNTIME = f"{TOOLKIT}/nvidia-container-runtime"


def refreshed(node: FakeNode, *more: str) -> tuple[int, str]:
    """Run the command to its end; return its exit code and what it printed."""
    command = node.do("refresh", *more)
    return command.finish(), command.output


def reset(node: FakeNode) -> None:
    """Take the handlers out of the file, as somebody else's deployment would."""
    node.write(DAEMON_JSON, DOCKER, 0o600)


@pytest.fixture
def waiting(node: FakeNode) -> Iterator[Run]:
    run = node.waiting()
    yield run
    run.close()


def test_the_waiting_run_puts_back_what_was_changed_and_its_lines_are_printed(node: FakeNode, waiting: Run) -> None:
    reset(node)
    code, output = refreshed(node)
    assert code == 0, output
    assert "nvidia" in node.docker()["runtimes"]
    assert f"pid={waiting.pid}" in output
    assert "The node is configured" in output
    assert output.rstrip().endswith("Done: the run has looked at the node again, and nothing failed")


def test_on_a_node_that_needs_nothing_that_is_printed(node: FakeNode, waiting: Run) -> None:
    before = node.stamps()
    code, output = refreshed(node)
    assert code == 0, output
    assert "Nothing to do: the node is as it should be" in output
    assert node.stamps() == before
    assert waiting.process.poll() is None


def test_a_failure_is_printed_with_its_line_and_is_the_exit_code(node: FakeNode, waiting: Run) -> None:
    node.write(DAEMON_JSON, BROKEN, 0o600)
    code, output = refreshed(node)
    assert code == 3, output
    assert f"file={DAEMON_JSON} line=2" in output
    assert "not valid JSON" in output
    assert "hint=" in output
    assert "Done" not in output
    assert waiting.process.poll() is None
    reset(node)  # the failure that was cured is not printed again
    code, output = refreshed(node)
    assert code == 0, output
    assert "not valid JSON" not in output


def test_an_answer_from_before_the_request_does_not_count(node: FakeNode, waiting: Run) -> None:
    for damage, wanted in [(BROKEN, 3), (DOCKER, 0)] * 3:
        node.write(DAEMON_JSON, damage, 0o600)
        code, output = refreshed(node)
        assert code == wanted, output
    assert waiting.process.poll() is None


def test_a_run_that_is_at_work_answers_with_a_look_that_began_afterwards(node: FakeNode) -> None:
    run = node.start()
    deadline = time.monotonic() + 30
    while not node.exists("/run/nvidia/toolkit.pid") and time.monotonic() < deadline:
        time.sleep(0.01)
    code, output = refreshed(node)
    assert code == 0, output
    assert "Nothing to do" in output
    run.wait_for("Nothing to do")


def test_two_requests_at_once_are_both_answered(node: FakeNode, waiting: Run) -> None:
    commands = [node.begin("refresh") for _ in range(3)]
    assert [command.finish() for command in commands] == [0, 0, 0], [command.output for command in commands]
    assert waiting.process.poll() is None


@pytest.mark.parametrize("installed", [False, True])
def test_where_nobody_waits_it_ends_with_3_and_changes_nothing(node: FakeNode, *, installed: bool) -> None:
    if installed:
        assert node.do("run", "--no-daemon").finish() == 0
    before = node.snapshot()
    code, output = refreshed(node)
    assert code == 3, output
    assert "no run waits here" in output
    assert ("nothing is installed" in output) is not installed
    assert "Traceback" not in output
    assert node.snapshot() == before


def test_a_number_in_a_pid_file_that_nobody_holds_is_not_signalled(node: FakeNode) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as bystander:
        node.write("/run/nvidia/toolkit.pid", f"{bystander.pid}\n", 0o600)
        code, output = refreshed(node)
        alive = bystander.poll() is None
        bystander.kill()
    assert code == 3, output
    assert alive


def test_another_program_that_holds_the_lock_is_not_signalled(node: FakeNode) -> None:
    place = node.place("/run/nvidia/toolkit.pid")
    node.write("/run/nvidia/toolkit.pid", "", 0o600)
    with subprocess.Popen(["/usr/bin/flock", str(place), "/bin/sleep", "600"], start_new_session=True) as holder:
        deadline = time.monotonic() + 30
        while subprocess.run(["/usr/bin/flock", "-n", str(place), "true"], check=False).returncode == 0:
            assert time.monotonic() < deadline
        code, output = refreshed(node)
        alive = holder.poll() is None
        os.killpg(holder.pid, signal.SIGKILL)
    assert code == 4, output
    assert "it is not signalled" in output
    assert alive


def test_a_run_with_another_pid_file_is_found_by_the_receipt(node: FakeNode) -> None:
    run = node.waiting("--pid-file", OTHER)
    reset(node)
    code, output = refreshed(node)
    assert code == 0, output
    assert "nvidia" in node.docker()["runtimes"]
    assert f"pid={run.pid}" in output


def test_a_run_that_is_stopped_is_named_at_once(node: FakeNode, waiting: Run) -> None:
    os.kill(waiting.pid, signal.SIGSTOP)
    try:
        code, output = refreshed(node)
    finally:
        os.kill(waiting.pid, signal.SIGCONT)
    assert code == 4, output
    assert f"PID {waiting.pid}" in output
    assert "is stopped" in output
    assert f"kill -CONT {waiting.pid}" in output


def test_a_run_that_ends_meanwhile_is_no_success(node: FakeNode, waiting: Run) -> None:
    waiting.process.send_signal(signal.SIGTERM)  # it has both, and leaves
    code, output = refreshed(node)
    assert code == 3, output
    assert "ended" in output or "no run waits here" in output


def test_a_run_that_stops_after_the_request_is_named_then(node: FakeNode, waiting: Run) -> None:
    command = node.begin("refresh", "--timeout", "30")
    command.wait_for("Asking the waiting run")
    os.kill(waiting.pid, signal.SIGSTOP)
    try:
        code = command.finish()
    finally:
        os.kill(waiting.pid, signal.SIGCONT)
    # it may have been quicker than the test
    assert code in (0, 4), command.output
    assert ("is stopped" in command.output) is (code == 4)


def test_a_run_that_does_not_answer_in_time_is_named(node: FakeNode, waiting: Run) -> None:
    code, output = refreshed(node, "--timeout", "0.001")
    assert code == 4, output
    assert f"PID {waiting.pid}" in output
    assert "did not report an outcome in time" in output


def test_a_damaged_toolkit_is_put_back(node: FakeNode, waiting: Run) -> None:
    whole = node.read(RUNTIME)
    node.write(RUNTIME, b"", 0o755)
    code, output = refreshed(node)
    assert code == 0, output
    assert node.read(RUNTIME) == whole
    assert waiting.process.poll() is None
