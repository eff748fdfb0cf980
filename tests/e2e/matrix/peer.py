"""NVIDIA's own installer on a machine of its own: the same steps as ours, as far as it has them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.hosts.machine import INSTALL_DIR
from tests.e2e.program import Program
from tests.support.reports.compatibility import By, Step

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.e2e.hosts.machine import Machine
    from tests.e2e.matrix.course import Clock, Course
    from tests.e2e.matrix.rows import Row

VERSION = "1.19.0"
_PROGRAM = "/usr/local/bin/nvidia-ctk-installer"
_WAITING = "Waiting for signal"


class Peer:
    """The program at `binary`, brought into the machine; `payloads` are an older and a newer one."""

    def __init__(self, binary: Path, machine: Machine, row: Row, payloads: tuple[Path, Path], folder: Path) -> None:
        shutil.copy2(binary, machine.host.path(_PROGRAM))
        self._machine = machine
        self._row = row
        self._payloads = payloads
        self._folder = folder
        self._runs: list[Program] = []

    def take(self, course: Course, damage: Callable[[], None]) -> None:
        """Take all steps. Raises AssertionError where the program does not end well; nothing else is asked of it."""
        old, new = self._payloads
        with self._step(course, Step.INSTALL):
            self._run(old)
        with self._step(course, Step.SECOND_RUN):
            self._run(old)
        with self._step(course, Step.UPGRADE):
            self._run(new)
        damage()
        with self._step(course, Step.DRIFT):
            self._run(new)
        pod = self._start(new)
        pod.wait_for(_WAITING)
        with self._step(course, Step.POD_RESTART):
            assert pod.terminate() == 0, pod.output
            pod = self._start(new)
            pod.wait_for(_WAITING)
        with self._step(course, Step.UNINSTALL):
            assert pod.terminate() == 0, pod.output

    def close(self) -> None:
        """End what a failed step left running."""
        for run in self._runs:
            run.close()

    def _step(self, course: Course, step: Step) -> AbstractContextManager[Clock]:
        return course.step(step, By.PEER, VERSION, restarts=None)

    def _run(self, payload: Path) -> None:
        run = self._start(payload, "--no-daemon")
        assert run.finish(within=120) == 0, run.output

    def _start(self, payload: Path, *more: str) -> Program:
        kind = self._row.kind
        flags = (
            *("--runtime", kind.name, *kind.peer_flags, "--toolkit-install-dir", INSTALL_DIR),
            *("--toolkit-source-root", str(payload), "--driver-root", "/", *more),
        )
        output = self._folder / f"peer-{len(self._runs)}.log"
        self._runs.append(Program(_PROGRAM, flags, output, {}, self._machine.host.enter))
        return self._runs[-1]
