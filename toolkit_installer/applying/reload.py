"""Reload an engine: write its files, make it read them, and query it until it serves what they say.

Only the engine's answers (the adapter's `ask`) prove that it loaded a change. An engine counts as serving once it has
answered correctly twice in one process, so that one that answers once and crashes does not count. A unit is restarted
without waiting for an engine that in turn waits for this process. While an engine is waited for, the elapsed time is
shown on a terminal, or logged every 5 seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from toolkit_installer import foreign_words, log
from toolkit_installer.applying.files import ManagedFileWriter
from toolkit_installer.engines.api import DesiredFile, Engine, EngineSilentError, Inspection, LiveState, Reload
from toolkit_installer.engines.common.serving import EngineBrokenError, find_process
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node import processes, programs, signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, ProcessGoneError
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.services import LOG_INTRODUCTION, Services
from toolkit_installer.node.signals import SignalCollector, Stopped
from toolkit_installer.node.terminal import StatusLine
from toolkit_installer.settings import ReloadMode

_QUERY_SECONDS = 5.0
_ENDS = 2
"""How often an engine may end after a good answer; the first time, another program may have restarted it."""
_DOWN_STATES = ("failed", "inactive")
"""States in which systemd does not start a unit by itself: where it will, the state is "activating"."""


class NotServedError(InstallerError):
    """The engine does not serve its configuration in time. `answers`: it is alive, and answered last."""

    def __init__(self, reason: str, *, answers: bool) -> None:
        super().__init__(reason)
        self.answers = answers


class NotSignalledError(NotServedError):
    """A signal would end the engine, given its files as they are."""


class Switch(msgspec.Struct, frozen=True):
    """One change of an engine: its files, how to reload it (NONE: not at all), and how to check its answer.

    `wrong` returns messages about what is wrong with the live engine's answer; an empty list if it is correct.
    """

    engine: Engine
    inspection: Inspection
    """The engine as inspected before the change."""
    files: Sequence[DesiredFile]
    """The files with their target contents, in the order of writing."""
    reload: Reload
    wrong: Callable[[LiveState], list[str]]
    last_resort: bool = False
    """The engine must come back with these files: a failed reload is repeated, and always waited for."""
    forgotten_folder: str = ""
    """The toolkit folder whose handlers the engine is to forget; empty: none."""


class Switcher:
    """Carries out switches."""

    def __init__(self, node: Node, attention: SignalCollector, seconds: float, store: str) -> None:
        """`seconds`: how long an engine may take to serve a change. `store`: the receipt's folder."""
        self.node = node
        self.writer = ManagedFileWriter(node, store)
        self.attention = attention
        self.seconds = seconds
        self.reloads = 0
        """How many reloads were attempted."""
        self.left_to_systemd: list[str] = []
        """The engines whose restart was left to systemd."""
        self._tick: Callable[[], None] = lambda: None
        """Reports that an engine is waited for."""
        self._elapsed: Callable[[], float] = lambda: 0.0
        """Returns the seconds waited."""
        self._signalled = False
        """Whether an engine was signalled: an engine that is down since may have died of the signal."""

    def make(self, switch: Switch, *, interruptible: bool) -> None:
        """Write the files, reload the engine, and wait until it serves them.

        Raises ChangedMeanwhileError, NotServedError, NodeError; Stopped if `interruptible` and a signal came, or if the
        engine waits for this process, which was told to stop, and this is no last resort.
        """
        with contextlib.nullcontext() if interruptible else signals.deferred():
            self._make(switch, interruptible=interruptible)

    def _make(self, switch: Switch, *, interruptible: bool) -> None:
        signalled = switch.reload.mode is ReloadMode.SIGNAL
        final = []
        for step in switch.files:
            transitional = switch.engine.build_transitional_content(step.target) if signalled else None
            if transitional is not None:
                final.append(step)
            content = step.target if transitional is None else transitional
            self.writer.write(switch.engine, step.file, content, step.metadata)
        if switch.reload.mode is not ReloadMode.NONE:
            try:
                self._reload(switch, interruptible=interruptible)
            except NotServedError:
                # an engine that is gone reads the file at its start; one that hangs may have a signal pending, and has
                # crashed on less than explicit values
                if switch.last_resort and find_process(self.node, switch.engine.name, switch.inspection.socket) is None:
                    self._write(switch.engine, final)
                raise
        self._write(switch.engine, final)

    def _write(self, engine: Engine, steps: Sequence[DesiredFile]) -> None:
        for step in steps:
            self.writer.write(engine, step.file, step.target, step.metadata)

    def _reload(self, switch: Switch, *, interruptible: bool) -> None:
        """Reload the engine (a last resort twice) and wait for it to serve. Raises NotServedError, Stopped."""
        process = switch.inspection.process
        if switch.reload.restarts and process is not None and is_running(process):
            refusal = switch.engine.find_restart_obstacle(self.node, process)
            if refusal is not None:  # a restart would take down an engine that runs
                why = foreign_words.mask_program_text(refusal)
                words = f"it would not start with its files: {why}; it was not restarted"
                raise NotServedError(words, answers=True)
        if switch.forgotten_folder and switch.reload.restarts and switch.inspection.live is not None:
            kept = switch.engine.find_serving_files(self.node, switch.inspection.live, switch.forgotten_folder)
            if kept:  # a restart would change nothing
                raise NotServedError(f"{kept}; it was not restarted", answers=True)
        self.reloads += 1
        began = time.time()
        try:
            self._attempt(switch, interruptible=interruptible)
        except NotSignalledError as error:
            if not switch.last_resort:
                raise
            log.get().warning(
                "The engine cannot be reloaded: restart it, so that it forgets the handlers",
                key="engine-not-reloadable",
                engine=switch.engine.name,
                reason=error.reason,
            )
        except NotServedError as error:
            if not switch.last_resort:
                raise self._with_unit_log(switch, error, began) from error
            log.get().warning(
                "The engine is reloaded once more", key="reloading-again", engine=switch.engine.name, reason=str(error)
            )
            try:
                self._attempt(switch, interruptible=interruptible)
            except NotServedError as again:
                raise self._with_unit_log(switch, again, began) from again

    def _attempt(self, switch: Switch, *, interruptible: bool) -> None:
        name = switch.engine.name
        mode = f"{switch.reload.watched_by} does it" if switch.reload.watched_by else switch.reload.mode
        publish(EventKind.RELOADING, "Reloading the engine", engine=name, mode=mode, unit=switch.reload.unit)
        with report_waiting(name) as report:
            self._tick, self._elapsed = report.tick, report.elapsed
            self._wait_for(switch, interruptible=interruptible)

    def _wait_for(self, switch: Switch, *, interruptible: bool) -> None:
        """Make the engine reload, and wait until it serves. Raises NotServedError, Stopped."""
        name = switch.engine.name
        restart_error = ""
        unit = switch.reload.unit
        if switch.reload.mode is ReloadMode.SIGNAL and switch.last_resort and self._signalled:
            unit = self._find_down_unit(switch)
        if unit is not None:
            try:
                restart_error = self._restart(switch, unit)
            except Stopped:
                if not switch.last_resort:
                    raise
                log.get().warning(
                    "The engine ends only after this process, which it is asked to stop: systemd starts it again then, "
                    "with the files that are in place now",
                    key="engine-ends-after-us",
                    engine=name,
                    unit=unit,
                )
                self.left_to_systemd.append(name)
                return
        self._until_served(switch, restart_error, to_signal=unit is None, interruptible=interruptible)

    def _until_served(self, switch: Switch, restart_error: str, *, to_signal: bool, interruptible: bool) -> None:
        """Wait until `switch.wrong` accepts the engine's answers twice in one process' life.

        `to_signal`: signal the engine after its first answer. `restart_error` begins the error message if the engine
        does not come to serve. Raises NotServedError; Stopped if it is `interruptible` and a signal came.
        """
        before = switch.inspection.process
        steady = Steadiness(time.monotonic() + self.seconds)
        while True:
            try:
                seconds = max(1.0, min(_QUERY_SECONDS, steady.remaining))
                live = switch.engine.ask(self.node, switch.inspection.socket, seconds)
            except EngineSilentError as error:
                last, answers = error.reason, False
                steady.record_failure()
                # neither state recovers by itself: the sooner the next step is tried, the better
                if isinstance(error, EngineBrokenError) or self._find_down_unit(switch) is not None:
                    raise NotServedError(f"{restart_error}{last}", answers=False) from error
            else:
                stale = switch.reload.restarts and before is not None and live.process == before
                last, answers = "; ".join([*(["it was not restarted"] if stale else []), *switch.wrong(live)]), True
                restarted = switch.reload.restarts and live.process != before and not last
                if to_signal and not restarted:
                    # never signal an engine that does not answer: dockerd dies of a signal while it starts
                    if self._signal(switch, live):
                        to_signal = False
                        continue
                    last = "it could not be signalled"
                if steady.record_answer(None if last else live):
                    _log_served(switch, live, before, self._elapsed())
                    return
            if steady.ends >= _ENDS:
                raise NotServedError(
                    f"{restart_error}it answers, and ends again and again; last: {last}", answers=False
                )
            self._rest(steady, f"{restart_error}{last}", answers=answers)
            if interruptible and self.attention.stop is not None:
                raise Stopped(self.attention.stop)

    def _rest(self, steady: Steadiness, last: str, *, answers: bool) -> None:
        """Wait until the next query is due. Raises NotServedError once the time is over."""
        seconds = steady.pause()
        if seconds is None:
            raise NotServedError(f"{last} (waited {self.seconds:g} s)", answers=answers)
        self._tick()
        self.attention.take_pending(seconds)

    def _find_down_unit(self, switch: Switch) -> str | None:
        """Return the unit of an engine that ended and that systemd will not start again, else None."""
        process = switch.inspection.process
        if process is None or process.unit is None or is_running(process):
            return None
        state = self.node.services.property(process.unit, "ActiveState")
        return process.unit if state in _DOWN_STATES else None

    def _restart(self, switch: Switch, unit: str) -> str:
        """Restart the unit; return the error text if it failed. Raises NotServedError unless it is the last resort.

        Raises Stopped if the engine waits for this process; systemd restarts it all the same, as soon as it can.
        """
        waits = switch.inspection.process if switch.reload.ends_after_calls else None
        try:
            restart_unit(self.node.services, unit, self.seconds, self.attention, waits, self._tick)
        except ProgramError as error:
            reason = foreign_words.mask_program_text(str(error))
            if not switch.last_resort:
                # it would be started with the same files over and over: the sooner the old ones are back, the better
                raise NotServedError(reason, answers=False) from error
            return f"{reason}; "
        return ""

    def _signal(self, switch: Switch, live: LiveState) -> bool:
        """Signal the engine that has just answered; return whether that succeeded. Raises NotSignalledError."""
        if live.process is None:
            return False
        try:
            for step in switch.files:  # as they are now, whichever program wrote them
                live.refuse_signal(self.node.files.content(step.file.path))
        except ConfigurationError as error:
            raise NotSignalledError(f"{error.reason}; it was not signalled", answers=True) from error
        try:
            switch.engine.signal(self.node, live.process)
        except ProcessGoneError as error:
            log.get().info(
                "The engine was restarted meanwhile",
                key="engine-restarted-meanwhile",
                engine=switch.engine.name,
                reason=error.reason,
            )
            return False
        self._signalled = True
        return True

    def _with_unit_log(self, switch: Switch, error: NotServedError, began: float) -> NotServedError:
        """Return the error with the last lines of the unit's log added, unless it has them or there is no unit."""
        process = switch.inspection.process
        unit = switch.reload.unit or (process.unit if process is not None else None)
        if unit is None or LOG_INTRODUCTION in error.reason:
            return error
        words = foreign_words.mask_program_text(self.node.services.last_words(unit, began))
        return NotServedError(f"{error.reason}{LOG_INTRODUCTION}{words}", answers=error.answers) if words else error


def _log_served(switch: Switch, live: LiveState, before: Process | None, seconds: float) -> None:
    name, reload_seconds = switch.engine.name, f"{seconds:.1f} s"
    publish(EventKind.ENGINE_SERVES, "The engine serves its configuration", engine=name, away=reload_seconds)
    if not switch.reload.restarts and before is not None and live.process is not None and live.process != before:
        log.get().warning(
            "The engine was signalled, and another process serves now: it ended and was started again",
            key="engine-ended-at-signal",
            engine=switch.engine.name,
            pid=live.process.pid,
        )


_PAUSE_SECONDS = 0.1
STEADY_SECONDS = 1.0
"""How long after its first good answer an engine is queried again: one that then crashes has served nothing."""


class Steadiness(msgspec.Struct):
    """Counts the good answers of one engine; two in a row from the same process are needed.

    `deadline`: by time.monotonic().
    """

    deadline: float
    _served: LiveState | None = None
    """The last answer, if it was good."""
    _first: bool = False
    """That answer was the first of its process."""
    ends: int = 0
    """How often the engine ended after a good answer."""

    @property
    def remaining(self) -> float:
        """Seconds to the deadline; negative once it has passed."""
        return self.deadline - time.monotonic()

    def record_answer(self, live: LiveState | None) -> bool:
        """Record a good answer, or None for any other; return whether it is the second good one of one process."""
        again = self._served is not None and live is not None and self._served.process == live.process
        if self._served is not None and live is not None and not again:
            self.ends += 1
        self._served, self._first = live, live is not None and not again
        return again

    def record_failure(self) -> None:
        """Record a failed query."""
        self.ends += self._served is not None
        self._served, self._first = None, False

    def pause(self) -> float | None:
        """Return the seconds until the next query, None once the time is over.

        After a first good answer, one more query is always made.
        """
        if self._first:
            self.deadline = max(self.deadline, time.monotonic() + STEADY_SECONDS + _PAUSE_SECONDS)
            return STEADY_SECONDS
        return _PAUSE_SECONDS if self.remaining > 0 else None


_END_SECONDS = 5.0
"""How long an engine may take to end after this process was told to stop, before it counts as waiting for this process.
"""


def is_running(process: Process) -> bool:
    """Return whether this very process still runs."""
    return processes.inspect_process(process.pid) == process


def restart_unit(  # the inputs of a restart
    services: Services,
    unit: str,
    seconds: float,
    attention: SignalCollector,
    calls: Process | None,
    tick: Callable[[], None],
) -> None:
    """Make systemd restart the unit within `seconds`, and wait for it; call `tick` now and then.

    `calls` is the engine's process if it ends only once it has answered every call. A client that stops this process
    through such an engine waits for the engine's answer, the engine for that call, and the call for this process. As
    far as that can be detected, Stopped is raised; systemd restarts the unit all the same, as soon as it can. Raises
    ProgramError.
    """
    if calls is None:
        services.restart(unit, seconds=seconds)
        return
    if attention.awaited_by == calls and attention.stop is not None and is_running(calls):
        raise Stopped(attention.stop)  # systemd has the request, and the engine reads its files at its start
    until: float | None = None

    def stop_if_engine_waits() -> None:
        nonlocal until
        tick()
        attention.take_pending()
        if attention.stop is None or not is_running(calls):
            return
        now = time.monotonic()
        until = now + _END_SECONDS if until is None else until
        if now >= until:
            attention.awaited_by = calls
            raise Stopped(attention.stop)

    services.restart(unit, seconds=seconds, meanwhile=stop_if_engine_waits)


_LINE_SECONDS = 5.0
_QUIET_SECONDS = 0.5
"""Waits that end sooner are not reported."""
_TURN_SECONDS = 0.1
_TURNS = "|/-\\"


class WaitReport:
    """The waiting time for one engine. `now` is a monotonic clock in seconds."""

    def __init__(self, engine: str, now: Callable[[], float] = time.monotonic) -> None:
        self.line = StatusLine(on=log.is_for_people())
        self._engine = engine
        self._now = now
        self._began = now()
        self._next = self._began + (_QUIET_SECONDS if self.line.on else _LINE_SECONDS)
        self._turns = itertools.cycle(_TURNS)

    def elapsed(self) -> float:
        """Return the seconds waited so far."""
        return self._now() - self._began

    def tick(self) -> None:
        """Report the waiting time, if a report is due."""
        now = self._now()
        if now < self._next:
            return
        seconds = int(now - self._began)
        if self.line.on:
            self._next = now + _TURN_SECONDS
            self.line.show(f"{next(self._turns)} Waiting for {self._engine} to serve its configuration, {seconds} s")
        else:
            self._next += _LINE_SECONDS
            log.get().info(
                "Waiting for the engine to serve its configuration",
                key="waiting-for-handlers",
                engine=self._engine,
                seconds=seconds,
            )


@contextlib.contextmanager
def report_waiting(engine: str) -> Iterator[WaitReport]:
    """Report inside the block that `engine` is waited for, also while systemctl restarts its unit."""
    report = WaitReport(engine)
    try:
        with programs.report_progress(report.tick):
            yield report
    finally:
        report.line.clear()
