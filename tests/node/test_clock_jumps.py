"""The wall clock jumps by a year, forward and back, while a run works and waits: nothing hangs or fires at once."""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.support import fake_node
from tests.support.fake_node import DAEMON_JSON, DEADLINE, NOTHING_TO_DO, WAITING, FakeNode, Run
from tests.support.warm_start import SCRIPTS

pytestmark = [
    pytest.mark.real_start,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the clock that jumps is made by gcc"),
]

SOURCE = Path(__file__).parents[1] / "support" / "built" / "clock.c"
YEAR = 365 * 24 * 60 * 60
DOCKER = b'{\n  "debug": true\n}\n'
RELOADS = "/run/nvidia/toolkit-installer.reloads"
QUIET_SECONDS = 3.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", made, SOURCE, "-ldl"], check=True)
    return made


class Clock:
    """The wall clock of the runs that a node starts: the true one and `set`'s seconds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_bytes(bytes(16))
        self.set(0)

    def set(self, seconds: int, by_turns: int = 0) -> None:
        """Add seconds to it, and add and take away others at every look by turns."""
        with self.file.open("r+b") as stream:  # in place: the runs have it mapped
            stream.write(struct.pack("qq", seconds, by_turns))


@pytest.fixture
def clock(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(tmp_path / "jumps")
    monkeypatch.setitem(fake_node._ENVIRONMENT, "LD_PRELOAD", str(library))
    monkeypatch.setitem(fake_node._ENVIRONMENT, "CLOCK_JUMPS", str(made.file))
    return made


@pytest.fixture
def node(node: FakeNode) -> Iterator[FakeNode]:
    """A node with a docker that answers."""
    node.write(DAEMON_JSON, DOCKER, 0o600)
    engine = FakeDockerd(node)
    yield node
    engine.close()


def started(node: FakeNode, *more: str) -> Run:
    command = [str(SCRIPTS / "toolkit-installer"), *node.arguments("run", "--socket", SOCKET, *more)]
    run = node._started(command)
    run.wait_for(WAITING)
    return run


def silent(run: Run) -> bool:
    """Tell whether a run says nothing for a while, by a clock that nobody sets."""
    said = len(run.output)
    until = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < until:
        run._hear(until)
    return len(run.output) == said


def lasting(node: FakeNode) -> dict[str, object]:
    return {path: entry for path, entry in node.snapshot().items() if not path.startswith("/run/")}


def test_the_clock_of_these_tests_jumps(node: FakeNode, clock: Clock) -> None:
    clock.set(-YEAR)
    run = started(node)
    now = time.gmtime().tm_year
    assert f'time="{now - 1}-' in run.output
    clock.set(YEAR)
    assert run.stop() == 0
    assert f'time="{now + 1}-' in run.output


@pytest.mark.parametrize("before, after", [(0, YEAR), (0, -YEAR), (YEAR, -YEAR), (-YEAR, YEAR)])
def test_a_waiting_run_is_not_woken_by_the_clock_and_still_hears_all_else(
    node: FakeNode, clock: Clock, before: int, after: int
) -> None:
    found = lasting(node)
    clock.set(before)
    run = started(node, "--on-drift", "repair")
    clock.set(after)
    assert silent(run)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(NOTHING_TO_DO)
    run.wait_for(WAITING)
    assert len(json.loads(node.read(RELOADS))["reloads"]) == 1
    node.write(DAEMON_JSON, DOCKER, 0o600)  # somebody takes the handlers out
    run.wait_for("The engine serves its configuration")
    run.wait_for(WAITING)
    assert node.docker()["default-runtime"] == "nvidia"
    assert len(json.loads(node.read(RELOADS))["reloads"]) == 2
    assert run.stop() == 0
    assert lasting(node) == found


def test_a_run_whose_clock_jumps_at_every_look_does_what_others_do(node: FakeNode, clock: Clock) -> None:
    found = lasting(node)
    clock.set(0, by_turns=YEAR)
    began = time.monotonic()
    run = started(node, "--on-drift", "repair", "--require-live")
    assert len(json.loads(node.read(RELOADS))["reloads"]) == 1
    assert silent(run)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(NOTHING_TO_DO)
    run.wait_for(WAITING)
    assert run.stop() == 0, run.output
    assert time.monotonic() - began < 2 * DEADLINE
    assert "Traceback" not in run.output
    assert lasting(node) == found


@pytest.mark.parametrize("after", [YEAR, -YEAR])
def test_the_reload_budget_is_not_refilled_by_the_clock(node: FakeNode, clock: Clock, after: int) -> None:
    budget = ("--reload-budget", "1/600")
    run = started(node, *budget)
    assert run.stop() == 0
    clock.set(after)
    again = node._started([str(SCRIPTS / "toolkit-installer"), *node.arguments("run", "--socket", SOCKET, *budget)])
    assert again.finish() == 3, again.output
    assert "the next one is possible in" in again.output
    assert node.read(DAEMON_JSON) == DOCKER


@pytest.mark.parametrize("after", [YEAR, -YEAR])
def test_a_window_that_the_clock_opens_counts_and_one_that_it_closes_does_not(
    node: FakeNode, clock: Clock, after: int
) -> None:
    """A year is a day of the week further: a window of today is closed then, and one of that day is open."""
    today, then = (time.strftime("%a", time.gmtime(time.time() + seconds)) for seconds in (0, after))
    assert today != then
    run = started(node, "--reload-when", f"{then} 00:00-24:00")
    assert "The reload is still pending" not in run.output
    assert node.read(DAEMON_JSON) == DOCKER
    clock.set(after)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("The engine serves its configuration")
    run.wait_for(WAITING)
    clock.set(0)
    assert silent(run)
    assert run.stop() == 0
    assert node.read(DAEMON_JSON) == DOCKER
