"""Watches an engine through probe.py, and beside it a program that does nothing but answer."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from tests.support.engines import leftovers
from tests.support.reports.availability import Figures, Sample, figures, parse

PROGRAM = Path(__file__).with_name("probe.py")
_POLL = 0.02


class ProberError(Exception):
    """A prober ended, or the engine did not settle."""


def _start(folder: Path, *arguments: str | Path, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start the program; it ends once its stdin does. What interrupts the tests from a terminal is not for it."""
    command = [sys.executable, "-I", "-S", PROGRAM, *arguments]
    environment = {leftovers.MARK: str(folder)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, env=environment, start_new_session=True)


class _Watch:
    """One process that asks; what it printed so far."""

    def __init__(self, kind: str, socket: Path, output: Path) -> None:
        self._output = output
        self._read = 0
        self._samples: list[Sample] = []
        with output.open("wb") as file:
            self.process = _start(output.parent, "ask", kind, socket, output=file)

    def samples(self) -> list[Sample]:
        """Return all questions that were done so far."""
        with self._output.open("rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self._samples += parse(whole.decode().splitlines())
        return self._samples


class Prober:
    """Asks the engine behind `socket`, by `kind` (docker or cri), until it is closed.

    A socket of another machine is given as /proc/PID/root/...: it is reached, and who answers is known, from here.
    """

    def __init__(self, kind: str, socket: Path, folder: Path) -> None:
        self._kind = kind
        self._socket = socket
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        idle = self._folder / "idle"
        try:
            self._processes.append(_start(self._folder, "respond", idle))
            self._control = _Watch("docker", idle, self._folder / "control")
            self._processes.append(self._control.process)
            self._engine = _Watch(self._kind, self._socket, self._folder / "engine")
            self._processes.append(self._engine.process)
            self._wait_for(lambda: any(not sample.failure for sample in self._control.samples()))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, within: float = 30.0) -> None:
        """End: each of them does once its stdin is closed, and so it does where the tests are killed."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(within)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    @property
    def samples(self) -> list[Sample]:
        """All questions that the engine was asked, and what became of them."""
        return self._engine.samples()

    @property
    def asking(self) -> tuple[int, int]:
        """The processes that ask: the engine, and the program that does nothing."""
        return self._engine.process.pid, self._control.process.pid

    def settle(self, answers: int = 10) -> int:
        """Wait until one process has answered so often in a row; return when it did (ns). Raises ProberError."""
        now = time.monotonic_ns()

        def steady() -> bool:
            last = [sample for sample in self._engine.samples() if sample.sent >= now][-answers:]
            return len(last) == answers and not any(each.failure for each in last) and len({e.pid for e in last}) == 1

        self._wait_for(steady)
        return self._engine.samples()[-1].sent

    def between(self, start: int, end: int) -> Figures:
        """Return what was seen of the engine from `start` to `end`, ns of time.monotonic_ns()."""
        self._wait_for(lambda: all(self._asked_after(watch, end) for watch in (self._engine, self._control)))
        return figures(self._engine.samples(), self._control.samples(), start, end)

    def _asked_after(self, watch: _Watch, end: int) -> bool:
        return bool(watch.samples()) and watch.samples()[-1].sent >= end

    def _wait_for(self, condition: Callable[[], bool], *, within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            if any(process.poll() is not None for process in self._processes):
                raise ProberError("a prober ended by itself")
            if time.monotonic() > deadline:
                last = [sample.failure or f"answered by {sample.pid}" for sample in self._engine.samples()[-20:]]
                raise ProberError(f"it did not come about in {within:g} s; the latest answers: {last}")
            time.sleep(_POLL)
