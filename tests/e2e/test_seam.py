"""Whole processes under strace: nothing on the node is changed past the one seam, and kills break nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e import marked_program, tracing
from tests.e2e.program import SCRIPTS
from tests.node.sweeps import matrix
from tests.node.sweeps.judging import Judge
from tests.node.sweeps.matrix import INSTALL, REINSTALL, UNINSTALL, Bench, Command
from tests.support.engines.daemons import PATH
from tests.support.fake_node import PID_FILE, WAITING, FakeNode

MARKED = (sys.executable, marked_program.__file__)
ENVIRONMENT = {"PATH": PATH}
EACH = 3
"""At how many of its calls, far from each other, each kind of system call is killed."""
WITHOUT_FILES = frozenset({"signal"})


@pytest.fixture(autouse=True)
def _strace() -> None:
    if not Path(tracing.STRACE).exists():
        pytest.skip("not installed: strace")


@pytest.fixture(params=[make for make in matrix.MAKES if make.live is None], ids=str)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with matrix.bench(tmp_path / "made", request.param, matrix.build_images(tmp_path)) as ready:
        yield ready


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> int:
    given = ENVIRONMENT | (environment or {})
    return subprocess.run(command, check=False, capture_output=True, timeout=tracing.SECONDS, env=given).returncode


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + tracing.SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check(traces: Path, node: FakeNode) -> None:
    """Fail unless all that was changed was changed by the seam, and all that the seam did was seen."""
    found = tracing.changes(traces, node.root)
    assert [change.line for change in found if not change.seam] == []
    changing = set(tracing.marks(traces)) - WITHOUT_FILES - {"fsync"}
    assert changing <= {change.seam for change in found}
    assert len(found) > 30


def test_no_change_of_the_node_bypasses_the_seam(made: Bench, tmp_path: Path) -> None:
    for number, command in enumerate((INSTALL, INSTALL, REINSTALL, UNINSTALL)):
        traces = tmp_path / f"traces-{number}"
        assert run(tracing.traced([*MARKED, *made.arguments(command)], traces)) == 0
        if number == 1:  # converged: it holds its PID file, and that is all
            assert {change.seam for change in tracing.changes(traces, made.node.root)} >= {"open_or_create", "unlink"}
            assert not [one for one in tracing.changes(traces, made.node.root) if not one.seam or "/usr/" in one.line]
        else:
            check(traces, made.node)
    assert made.taken().differences(made.original) == []


def test_no_change_bypasses_it_either_in_a_run_that_waits_and_cleans_up(made: Bench, tmp_path: Path) -> None:
    traces, said = tmp_path / "traces", tmp_path / "said"
    command = tracing.traced([*MARKED, *made.arguments(Command(("run",)))], traces)
    with said.open("wb") as log:
        tracer = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)
    try:
        wait_until(lambda: WAITING in said.read_text() or tracer.poll() is not None)
        os.kill(int(made.node.read(PID_FILE)), signal.SIGTERM)
        assert tracer.wait(tracing.SECONDS) == 0, said.read_text()
    finally:
        if tracer.poll() is None:
            tracer.kill()  # its tracees go with it: they were started under it
            tracer.wait()
    check(traces, made.node)
    assert made.taken().differences(made.original) == []


def test_a_change_past_the_seam_is_found(made: Bench, tmp_path: Path) -> None:
    past = made.node.place("/run/past")
    traces = tmp_path / "traces"
    assert run(tracing.traced([*MARKED, *made.arguments(INSTALL)], traces), {"SEAM_BYPASS": str(past)}) == 0
    assert past.exists()
    (found,) = [change for change in tracing.changes(traces, made.node.root) if not change.seam]
    assert str(past) in found.line


# one kind of node is enough: all instants of all kinds are tried without processes of their own
# without CDI: the kills are counted by calls, and nvidia-ctk would be among those that make them
@pytest.mark.parametrize("made", [m for m in matrix.MAKES if m.specification is None][-1:], indirect=True, ids=str)
@pytest.mark.parametrize(
    "before, command", [((), INSTALL), ((INSTALL,), REINSTALL), ((INSTALL,), UNINSTALL)], ids=["first", "re", "un"]
)
def test_whole_processes_that_are_killed_leave_a_node_that_works(
    made: Bench, tmp_path: Path, before: tuple[Command, ...], command: Command
) -> None:
    start = made.after(made.original, *before)
    finishing = command if command != UNINSTALL else INSTALL
    judge = Judge(made, [start, made.after(start, command)], finishing)
    program = [str(SCRIPTS / "toolkit-installer"), *made.arguments(command)]
    made.place(start)
    counts = tracing.counted(program, tmp_path / "counted")
    assert counts["fsync"] > 10
    killed = 0
    wrong = []
    for call, count in counts.items():
        for when in sorted({1 + round(step * (count - 1) / (EACH - 1)) for step in range(EACH)}):
            made.place(start)
            code = run(tracing.killing(program, call, when))
            assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), f"{call} {when} of {count}: it ended with {code}"
            wrong += [f"killed at {call} {when} of {count}: {problem}" for problem in judge.problems(made.taken())]
            killed += 1
    assert wrong == []
    assert killed > 3 * EACH
