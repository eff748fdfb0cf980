"""The table of what was seen on which engine: of a run's results, for the terminal and for docs/compatibility.md."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import os
import platform
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Self

from tests.support.reports.availability import Figures

PROPERTY = "compatibility"
"""The name under which a test records a Result."""


_WIDTH = 120


class Step(enum.StrEnum):
    """What is done on each engine, in this order."""

    INSTALL = "install"
    VERIFY = "verify"
    SECOND_RUN = "second run"
    UPGRADE = "upgrade"
    DRIFT = "drift"
    POD_RESTART = "pod restart"
    UNINSTALL = "uninstall"


class By(enum.StrEnum):
    """Who did it."""

    OURS = "this installer"
    PEER = "nvidia-ctk-installer"
    NOBODY = "nobody"
    """The engine was left alone: what the prober sees of an idle one."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One step on one engine."""

    row: str
    """What tells the engines apart."""
    engine: str
    """Its name and its exact version, in its own words."""
    by: By
    by_version: str
    step: str
    """A Step; of nobody's any name."""
    ok: bool
    seconds: float
    """How long the program took."""
    restarts: int | None = None
    """Of the engine; None, and so with the others, where the step ended before they were known."""
    away: float | None = None
    """ms without an answer, all in all."""
    longest: float | None = None
    """ms without an answer, the longest time."""
    probes: int | None = None
    failed: int | None = None
    slowest: float | None = None
    """ms of the slowest answer."""
    late: float | None = None
    """ms by which a question was late at worst, for reasons of the prober's own."""

    def with_figures(self, told: Figures) -> Self:
        """Return it with what the prober saw."""
        seen = dataclasses.replace(self, restarts=told.restarts, away=told.total, longest=told.longest)
        return dataclasses.replace(seen, probes=told.probes, failed=told.failed, slowest=told.slowest, late=told.late)

    def as_property(self) -> dict[str, Any]:
        """Return it as a test's report may carry it to another process."""
        return dataclasses.asdict(self) | {"by": str(self.by), "step": str(self.step)}


def result(recorded: dict[str, Any]) -> Result:
    """Return what `as_property` made."""
    return Result(**recorded | {"by": By(recorded["by"])})


def table(results: Sequence[Result]) -> list[str]:
    """Return the lines of one table: engine and step, ours above the peer's."""
    cells = {(each.row, each.by, each.step): each for each in results if each.by is not By.NOBODY}
    rows = [["engine", "by", *Step]]
    for row, engine in _engines(results):
        for by in (By.OURS, By.PEER):
            mine = [cells.get((row, by, step)) for step in Step]
            if any(mine):
                rows.append([engine if by is By.OURS else "", by, *map(_cell, mine)])
    return aligned(rows)


def _engines(results: Iterable[Result]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((each.row, each.engine) for each in results))


def _cell(seen: Result | None) -> str:
    if seen is None:
        return "-"
    words = ["ok" if seen.ok else "FAILED", f"{seen.seconds:.1f} s"]
    if seen.restarts is not None and seen.away is not None:
        words += [f"{seen.restarts}x", f"{seen.away:.0f} ms"]
    return ", ".join(words)


def resolution(results: Sequence[Result]) -> list[str]:
    """Return the lines of a table of how well was measured: on each idle engine, and in all the steps on it."""
    rows = [["engine", "questions", "idle: slowest answer", "all: slowest answer", "sent late by at most"]]
    for row, engine in _engines(results):
        measured = [each for each in results if each.row == row and each.probes is not None]
        rows.append(
            [
                engine,
                str(sum(each.probes or 0 for each in measured)),
                _ms(each.slowest for each in measured if each.by is By.NOBODY),
                _ms(each.slowest for each in measured),
                _ms(each.late for each in measured),
            ]
        )
    return aligned(rows)


def _ms(values: Iterable[float | None]) -> str:
    """Return the largest."""
    largest = max((value for value in values if value is not None), default=None)
    return "-" if largest is None else f"{largest:.1f} ms"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table that can be read as it stands."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ruled = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return [f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |" for row in ruled]


def page(results: Sequence[Result], today: dt.date) -> str:
    """Return docs/compatibility.md."""
    versions = "; ".join(
        f"{by} {', '.join(dict.fromkeys(each.by_version for each in results if each.by is by))}"
        for by in (By.OURS, By.PEER)
        if any(each.by is by for each in results)
    )
    machine = f"Linux {platform.release()}, {platform.machine()}, {os.cpu_count()} processors"
    wrote = f"`make compatibility` wrote this page on {today.isoformat()}: {versions}; {machine}."
    return _PAGE.format(
        wrote=textwrap.fill(wrote, _WIDTH),
        table="\n".join(table(results)),
        resolution="\n".join(resolution(results)),
    )


def results_of(reports: Iterable[Any]) -> list[Result]:
    """Return what pytest's reports carry, each once, in the order of the run."""
    return [
        result(value)
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]


_PAGE = """\
# Compatibility: what was seen on which engine

{wrote}

Each engine was started fresh, under its own unit, in a machine of its own with systemd as PID 1. Then these steps were
taken on it, first by this installer, then by NVIDIA's own; both reload docker by a signal and restart the others
by systemd. (The peer has to be told so for containerd: its default there is a signal, of which containerd dies and is
away until its unit's RestartSec has passed, 5 s on Debian. And for CRI-O it is told the drop-in's path.)

- **install**, and the engine serves the handlers. **verify**: `toolkit-installer status` and the engine say the same.
- **second run**: nothing is written. **upgrade**: another payload, the same handlers.
- **drift**: somebody removed a handler, edited another and restarted the engine; the next run repairs both.
- **pod restart**: a start, TERM without cleanup, another start. The peer has only cleanup: TERM and another start.
- **uninstall**: the file has its bytes, mode and owner again, and the engine serves what it did.

A cell has: whether what the step promises was seen, the seconds that the program took, how often the engine was
restarted (1x), and the milliseconds for which it gave no answer. A peer's step is ok where its program ended well.

{table}

## Engine restarts by method

Seen by `tests/e2e/test_method.py` on docker 26 and 28, containerd 1.7, 2.1 and 2.4, and CRI-O 1.34: the engine's
process, its start time, and its files' bytes, owner and mode are compared before and after.

| method           | to install                            | to give the node back                  |
| ---------------- | ------------------------------------- | -------------------------------------- |
| cdi              | 0                                     | 0                                      |
| cdi, CDI was off | 1                                     | 1                                      |
| handlers         | 1 (docker: 0, by a signal)            | 1 (docker: 0, by a signal)             |
| handlers to cdi  | 1 (docker: 0), to forget the handlers | 0                                      |

## How it was measured

A process of its own asks the engine every 10 ms, each time on a new connection: docker for `/_ping`, the others for the
CRI's Status. The time away is what passes from the first question that failed to the end of the next one that was
answered, so it is exact to about 10 ms. A question that was sent late counts for nothing. An answer that was slow
counts where it took 100 ms more than the machine explains: a second process asks a program that does nothing else, and
what that one was delayed is taken off. A restart is another process that answers; systemd's own count says the same.

{resolution}
"""
