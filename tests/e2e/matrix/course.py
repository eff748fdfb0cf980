"""One engine's way through the steps of the matrix: each is timed, watched by the prober, and recorded."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from tests.support.reports.compatibility import PROPERTY, By, Result

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.hosts.machine import Machine
    from tests.e2e.matrix.prober import Prober
    from tests.e2e.matrix.rows import Row
    from tests.support.reports.availability import Figures

_NS = 1e9


class Course:
    """The steps on one engine. What became of each is added to a test's `properties`, also of one that failed."""

    def __init__(
        self, row: Row, machine: Machine, prober: Prober, version: str, properties: list[tuple[str, object]]
    ) -> None:
        self._row = row
        self._machine = machine
        self._prober = prober
        self._version = version
        self._properties = properties

    def idle(self) -> None:
        """Look at the engine while nobody does anything to it. Raises AssertionError where it does not answer."""
        start = time.monotonic_ns()
        end = self._prober.settle(answers=50)
        told = self._prober.between(start, end)
        self._note(By.NOBODY, "", "idle", told, (end - start) / _NS, ok=not told.failed)
        assert (told.failed, told.restarts) == (0, 0), told

    @contextlib.contextmanager
    def step(self, name: str, by: By, by_version: str, *, restarts: int | None) -> Iterator[Clock]:
        """Take a step. Raises AssertionError where the engine was restarted more or less often than `restarts` says.

        Without a restart, no question may have failed either. None: whatever happens is recorded, and no more.
        """
        unit = self._row.kind.unit
        # nobody would take all these steps within seconds: systemd's start limit is no part of the comparison
        self._machine.host.run("systemctl", "reset-failed", unit)
        self._prober.settle(answers=3)  # what was done to it before this step is over
        starts = self._machine.starts(unit)
        clock = Clock()
        told: Figures | None = None
        ok = False
        try:
            yield clock
            clock.stop()
            # what comes of it after the program's end belongs to the step
            told = self._prober.between(clock.start, self._prober.settle())
            if restarts is not None:
                counted = self._machine.starts(unit) - starts
                assert (told.restarts, counted) == (restarts, restarts), told
                assert restarts or not told.failed, told
            ok = True
        finally:
            clock.stop()
            self._note(by, by_version, name, told, clock.seconds, ok=ok)

    def _note(self, by: By, by_version: str, name: str, told: Figures | None, seconds: float, *, ok: bool) -> None:
        engine = f"{self._row.kind.called} {self._version}"
        seen = Result(self._row.name, engine, by, by_version, name, ok=ok, seconds=seconds)
        self._properties.append((PROPERTY, (seen if told is None else seen.with_figures(told)).as_property()))


class Clock:
    """How long a program took; what the test looks at afterwards is no part of it."""

    def __init__(self) -> None:
        self.start = time.monotonic_ns()
        self._end = 0

    def stop(self) -> None:
        """The program has ended: the first time counts."""
        self._end = self._end or time.monotonic_ns()

    @property
    def seconds(self) -> float:
        """From the start to the end."""
        return (self._end - self.start) / _NS
