"""What a row of questions tells of an engine: how long it was away, and how often another process took over.

Two things look alike from outside: an engine that is away, and a machine that is busy. So

- a question that was *sent* late is the prober's own delay; it is reported as such and counted nowhere;
- the time away is what passes from the first question that failed (refused, broken off, answered with an error) to the
  end of the next one that was answered; and a question that waited for a process which was not there before
  (systemd keeps docker's socket open) is time away as well;
- a slow answer counts where it took more than `SLOW` ms longer than the machine explains: another prober asks, in the
  same instants, a program that does nothing but answer, and what that one was delayed is taken off.

Times are in ns of CLOCK_MONOTONIC, results in ms.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

SLOW = 100.0
"""ms that a live engine may take to answer, over what the machine was too busy for, before it counts as away."""
_IDLE = 5_000_000
"""ns within which the program that does nothing answers where the machine has a processor for it."""
_MS = 1e6


@dataclasses.dataclass(frozen=True)
class Sample:
    """One question: when it was due, was sent and was done (ns), who answered (a PID), or why nobody did."""

    due: int
    sent: int
    done: int
    pid: int
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was seen of an engine in a while."""

    probes: int
    failed: int
    """Questions without an answer."""
    restarts: int
    """How often another process answered than before."""
    longest: float
    """ms of the longest time away."""
    total: float
    """ms of all the time away."""
    slowest: float
    """ms of the slowest answer, the machine's delays included."""
    late: float
    """ms by which a question was sent late, at worst: below that, nothing was measured in that instant."""
    failures: tuple[str, ...] = ()
    """Why questions failed, each reason once."""


def parse(lines: Iterable[str]) -> Iterator[Sample]:
    """Yield what tests/e2e/matrix/probe.py printed."""
    for line in lines:
        *numbers, failure = line.rstrip("\n").split(" ", 4)
        due, sent, done, pid = map(int, numbers)
        yield Sample(due, sent, done, pid, failure)


def figures(samples: Sequence[Sample], control: Sequence[Sample], start: int, end: int) -> Figures:
    """Return what was seen of the questions that were open at `start`, or were sent from then until `end`.

    `samples` has what came before as well, for whoever answered last; `control` are those of the idle program.
    """
    within = [sample for sample in samples if start <= sample.done and sample.sent <= end]
    before = [sample.pid for sample in samples if sample.done < start and not sample.failure]
    answered = [sample for sample in within if not sample.failure]
    pids = [*before[-1:], *(sample.pid for sample in answered)]
    failed = [sample for sample in within if sample.failure]
    away = list(_away(within, pids[:1] if before else [], control, end))
    return Figures(
        probes=len(within),
        failed=len(failed),
        restarts=sum(one != other for one, other in itertools.pairwise(pids)),
        longest=max(away, default=0.0),
        total=sum(away),
        slowest=max(((sample.done - sample.sent) / _MS for sample in answered), default=0.0),
        late=max(((sample.sent - sample.due) / _MS for sample in within), default=0.0),
        failures=tuple(dict.fromkeys(sample.failure for sample in failed)),
    )


def _away(samples: Iterable[Sample], pids: list[int], control: Sequence[Sample], end: int) -> Iterator[float]:
    """Yield how long each time away was; `pids` has the one that answered last before."""
    began = 0
    known = list(pids)
    for sample in samples:
        if sample.failure:
            began = began or sample.sent
            end = max(end, sample.done)
        elif began:
            yield (sample.done - began) / _MS
            began = 0
        elif known and known[-1] != sample.pid:  # it waited for a process that was only being started
            yield (sample.done - sample.sent) / _MS
        elif (took := _unexplained(sample, control)) > SLOW:
            yield took
        if not sample.failure:
            known.append(sample.pid)
    if began:
        yield (end - began) / _MS


def _unexplained(sample: Sample, control: Sequence[Sample]) -> float:
    """Return the ms that an answer took without those in which the machine was too busy for any answer."""
    took = sample.done - sample.sent
    if took / _MS > SLOW:
        busy = [(each.due, each.done) for each in control if each.done - each.due > _IDLE]
        took -= sum(max(0, min(stop, sample.done) - max(start, sample.sent)) for start, stop in busy)
    return took / _MS
