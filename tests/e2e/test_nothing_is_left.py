"""A run of the matrix that fails, is interrupted or is killed amid a step leaves no process, mount, group or file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.hosts.host import CHECKOUT
from tests.support.engines import leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.alone

ROW = "containerd-bookworm"
OUTSIDE = (
    "/etc/containerd",
    "/etc/docker",
    "/etc/systemd/system",
    "/run/containerd",
    "/usr/local",
    "/var/lib/containerd",
)


class Run:
    """One row of the matrix, by a pytest of its own, whose files are below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.machines: set[str] = set()
        """Their names, which their control groups have as well."""
        self._log = folder / "log"
        matrix = CHECKOUT / "tests/e2e/test_matrix.py"
        command = [
            # where the tests run in the background a shell has made them ignore it, and so would this one
            *("env", "--default-signal=INT", sys.executable, "-m", "pytest"),
            *("-p", "no:cacheprovider", f"--basetemp={self.folder}", "-k", ROW, str(matrix)),
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def processes(self) -> dict[psutil.Process, list[str]]:
        """Return those that live, with the words they were started with: of its machine, of the probers, of pytest."""
        found: dict[psutil.Process, list[str]] = {}
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                named = any(str(self.folder) in word for word in (*words, process.environ().get(leftovers.MARK, "")))
                if named:  # among them who keeps the machine, and is given its name
                    self.machines |= {word for word in words if word.startswith("toolkit-test-")}
                told = Path(f"/proc/{process.pid}/cgroup").read_text()
                grouped = any(machine in told for machine in self.machines)
                if (grouped or named) and process.status() != psutil.STATUS_ZOMBIE:
                    found[process] = words
            except (psutil.Error, OSError):  # it has ended meanwhile
                continue
        return found

    def groups(self) -> list[Path]:
        top = Path("/sys/fs/cgroup")
        return [path for machine in self.machines for path in (*top.glob(machine), *top.glob(f"*/{machine}"))]

    def named(self, name: str) -> list[psutil.Process]:
        """Return those of them that have this word, or a path that ends so, on their command line."""
        return [each for each, words in self.processes().items() if name in {Path(word).name for word in words}]

    def wait_for(self, condition: Callable[[], object], within: float = 120.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.1)  # to look at all processes takes a while


def outside() -> set[str]:
    """Return all that is there; os.walk passes over a folder that an engine removes meanwhile, rglob ends with it."""
    return {
        f"{folder}/{name}"
        for root in OUTSIDE
        for folder, folders, files in os.walk(root)
        for name in (*folders, *files)
    }


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    """Yield a run that is amid its first step: machine, engine, probers and installer are all there."""
    run = Run(folder)
    try:
        run.wait_for(lambda: run.process.poll() is not None or run.named("--no-daemon"))
        assert run.process.poll() is None, run.said
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def interrupt(run: Run) -> None:
    os.killpg(run.process.pid, signal.SIGINT)


def kill(run: Run) -> None:
    run.process.kill()


def make_it_fail(run: Run) -> None:
    """End the engine amid the step, which makes one restart too many."""
    for process in run.named("containerd"):
        process.kill()


@pytest.mark.parametrize(
    "trouble, code, told",
    [
        pytest.param(make_it_fail, 1, "FAILED, ", id="fails"),
        pytest.param(interrupt, 2, "KeyboardInterrupt", id="interrupted"),
        pytest.param(kill, -signal.SIGKILL, "", id="killed"),
    ],
)
def test_nothing_is_left_by_a_matrix_that_does_not_end_well(
    trouble: Callable[[Run], None], code: int, told: str, request: pytest.FixtureRequest
) -> None:
    before = outside()
    run: Run = request.getfixturevalue("run")
    assert run.named("containerd")
    assert run.groups()
    assert len(run.named("ask")) == 2
    trouble(run)
    assert run.process.wait(120) == code, run.said
    assert told in run.said
    run.wait_for(lambda: not run.processes() and not run.groups())
    assert leftovers.mounts_below(run.folder) == []
    assert outside() - before == set()
