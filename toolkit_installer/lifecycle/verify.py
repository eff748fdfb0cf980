"""Verifying that a live engine serves what its files say, by its own answers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from toolkit_installer import log
from toolkit_installer.engines.api import DesiredFile, Engine, EngineSilentError, Inspection, Live, Reload
from toolkit_installer.engines.common.answering import EngineBrokenError
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.signals import Attention, Stopped

_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
STEADY_SECONDS = 1.0
"""How long after its first good answer an engine is asked again: one that then crashes has served nobody."""
_ENDS = 2
"""How often it may end after such an answer: once somebody else may have restarted it."""
_FALLEN = ("failed", "inactive")
"""States of a unit that systemd does not start by itself: where it will, it says "activating"."""


class NotServedError(InstallerError):
    """The engine does not serve what it should in time. `answers`: it lives, and answered last."""

    def __init__(self, reason: str, *, answers: bool) -> None:
        super().__init__(reason)
        self.answers = answers


class NotSignalledError(NotServedError):
    """The engine would die of a signal on its files as they are."""


@dataclasses.dataclass(frozen=True)
class Switch:
    """One change of an engine: its files, how it is reloaded (NONE: not at all), what it should then say.

    `wrong` returns in words what is wrong with the live engine's answer; nothing when all is well.
    """

    engine: Engine
    inspection: Inspection
    """The engine as it was found before the change."""
    files: Sequence[DesiredFile]
    """What its files are to hold, their targets, in the order in which they are written."""
    reload: Reload
    wrong: Callable[[Live], list[str]]
    last_resort: bool = False
    """The engine must come back with this: what fails is tried once more, and waited for in any case."""


@dataclasses.dataclass
class Steadiness:
    """Tells an engine that serves from one that answers once and ends: a second answer counts, of the same process.

    `deadline`: by time.monotonic().
    """

    deadline: float
    _served: Live | None = None
    """Its last answer, if that was as it should be."""
    _first: bool = False
    """That answer was the first of its process."""
    ends: int = 0
    """How often it ended after it had served."""

    @property
    def remaining(self) -> float:
        """Seconds to the deadline; none are left below 0."""
        return self.deadline - time.monotonic()

    def confirmed(self, live: Live | None) -> bool:
        """Take a good answer, or None for another one; tell whether it is the second good one of one process."""
        again = self._served is not None and live is not None and self._served.process == live.process
        if self._served is not None and live is not None and not again:
            self.ends += 1
        self._served, self._first = live, live is not None and not again
        return again

    def ended(self) -> None:
        """Take it that the engine does not answer."""
        self.ends += self._served is not None
        self._served, self._first = None, False

    def pause(self) -> float | None:
        """Return the seconds until it is to be asked again, None once the time is over.

        After a first good answer it is asked once more in any case.
        """
        if self._first:
            self.deadline = max(self.deadline, time.monotonic() + STEADY_SECONDS + _PAUSE_SECONDS)
            return STEADY_SECONDS
        return _PAUSE_SECONDS if self.remaining > 0 else None


class Verifier:
    """Waits until engines serve their files, for so many `seconds` each."""

    def __init__(self, node: Node, attention: Attention, seconds: float) -> None:
        self._node = node
        self._attention = attention
        self._seconds = seconds

    def until_served(
        self, switch: Switch, heard: str, signal: Callable[[Live], bool] | None, *, interruptible: bool
    ) -> None:
        """Wait until `switch.wrong` has nothing to say against what the engine answers, twice in one process' life.

        `signal` signals one that has just answered and tells whether that could be done; None where that is not
        wanted. `heard` is what is said first of an engine that does not come to serve. Raises NotServedError; Stopped
        if it is `interruptible` and a signal came.
        """
        before = switch.inspection.process
        steady = Steadiness(time.monotonic() + self._seconds)
        while True:
            try:
                live = switch.engine.ask(
                    self._node, switch.inspection.socket, max(1.0, min(_ASK_SECONDS, steady.remaining))
                )
            except EngineSilentError as error:
                last, answers = error.reason, False
                steady.ended()
                # neither comes back by itself: the sooner the next is tried, the better
                if isinstance(error, EngineBrokenError) or self.fallen(switch) is not None:
                    raise NotServedError(f"{heard}{last}", answers=False) from error
            else:
                stale = switch.reload.restarts and before is not None and live.process == before
                last, answers = "; ".join([*(["it was not restarted"] if stale else []), *switch.wrong(live)]), True
                restarted = switch.reload.restarts and live.process != before and not last
                if signal is not None and not restarted:
                    # never one that does not answer: dockerd dies of a signal while it starts
                    if signal(live):
                        signal = None
                        continue
                    last = "it could not be signalled"
                if steady.confirmed(None if last else live):
                    _tell(switch, live, before)
                    return
            if steady.ends >= _ENDS:
                raise NotServedError(f"{heard}it answers, and ends again and again; last: {last}", answers=False)
            self._rest(steady, f"{heard}{last}", answers=answers)
            if interruptible and self._attention.stop is not None:
                raise Stopped(self._attention.stop)

    def _rest(self, steady: Steadiness, last: str, *, answers: bool) -> None:
        """Wait until the engine is to be asked again. Raises NotServedError once its time is over."""
        seconds = steady.pause()
        if seconds is None:
            raise NotServedError(f"{last} (waited {self._seconds:g} s)", answers=answers)
        self._attention.take_pending(seconds)

    def fallen(self, switch: Switch) -> str | None:
        """Return the unit of an engine that ended and that nothing starts again; None for all others."""
        process = switch.inspection.process
        if process is None or process.unit is None or processes.inspect_process(process.pid) == process:
            return None
        state = self._node.services.property(process.unit, "ActiveState")
        return process.unit if state in _FALLEN else None


def _tell(switch: Switch, live: Live, before: Process | None) -> None:
    log.get().info("The engine serves its configuration", engine=switch.engine.name)
    if not switch.reload.restarts and before is not None and live.process is not None and live.process != before:
        log.get().warning(
            "The engine was signalled, and another process serves now: it ended and was started again",
            engine=switch.engine.name,
            pid=live.process.pid,
        )
