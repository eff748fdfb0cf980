"""Bringing an engine's files to given contents, and the engine to serving them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence

from toolkit_installer import log
from toolkit_installer.documents import secrets
from toolkit_installer.engines.api import Engine, EngineFile, EngineSilentError, Live, Reload, aside_of
from toolkit_installer.engines.common.answering import EngineBrokenError
from toolkit_installer.engines.common.serving import process_of
from toolkit_installer.engines.common.steadiness import Steadiness
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import processes, signals
from toolkit_installer.node.disk.files import ChangedMeanwhileError
from toolkit_installer.node.disk.reading import Found, Metadata
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, ProcessGoneError
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.services import LOG_SAYS
from toolkit_installer.node.signals import Attention, Stopped
from toolkit_installer.receipt import memory
from toolkit_installer.settings import ReloadMode

_ASK_SECONDS = 5.0
_END_SECONDS = 5.0
"""What an engine gets to end before it is taken to wait for us."""
_POLL_SECONDS = 0.05
_NEW_FILE_MODE = 0o644
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
class Step:
    """A file and what it is to hold (None: no file)."""

    file: EngineFile
    content: bytes | None


@dataclasses.dataclass(frozen=True)
class Switch:
    """One change of an engine: its files, how it is reloaded (NONE: not at all), what it should then say.

    `wrong` returns in words what is wrong with the live engine's answer; nothing when all is well.
    """

    engine: Engine
    socket: str
    live: Live | None
    steps: Sequence[Step]
    reload: Reload
    wrong: Callable[[Live], list[str]]
    last_resort: bool = False
    """The engine must come back with this: what fails is tried once more, and waited for in any case."""


class Switcher:
    """Makes switches; remembers what it wrote, so that somebody else's edit in between is seen."""

    def __init__(self, node: Node, attention: Attention, seconds: float, store: str) -> None:
        """`seconds`: what an engine gets to serve a change. `store`: the receipt's folder."""
        self.node = node
        self.store = store
        self.attention = attention
        self.seconds = seconds
        self.reloads = 0
        """How often an engine was asked to reload."""
        self._attempts: dict[str, list[bytes | None]] = {}
        self.unseen: list[str] = []
        """The engines whose restart was left to systemd."""
        self._signalled = False
        """Whether an engine was signalled: one that is down since may have died of it."""

    def make(self, switch: Switch, *, interruptible: bool) -> None:
        """Write the files, reload, and wait until the engine serves them.

        Raises ChangedMeanwhileError, NotServedError, NodeError; Stopped if `interruptible` and a signal came.
        """
        with contextlib.nullcontext() if interruptible else signals.deferred():
            self._make(switch, interruptible=interruptible)

    def _make(self, switch: Switch, *, interruptible: bool) -> None:
        signalled = switch.reload.mode is ReloadMode.SIGNAL
        final = []
        for step in switch.steps:
            transitional = switch.engine.transitional(step.content) if signalled else None
            if transitional is not None:
                final.append(step)
            self._write(switch.engine, step.file, step.content if transitional is None else transitional)
        if switch.reload.mode is not ReloadMode.NONE:
            try:
                self._reload(switch, interruptible=interruptible)
            except NotServedError:
                # an engine that is gone reads the file at its start; one that hangs may have a signal pending,
                # and has crashed on less than explicit values
                if switch.last_resort and process_of(self.node, switch.engine.name, switch.socket) is None:
                    self._write_all(switch.engine, final)
                raise
        self._write_all(switch.engine, final)

    def put(self, file: EngineFile, content: bytes | None) -> None:
        """Make a file that no engine has to be told of hold `content`. Raises ChangedMeanwhileError, NodeError."""
        self._write(None, file, content)

    def _write_all(self, engine: Engine, steps: Sequence[Step]) -> None:
        for step in steps:
            self._write(engine, step.file, step.content)

    def _write(self, engine: Engine | None, file: EngineFile, content: bytes | None) -> None:
        """Make the file hold `content`. Raises ChangedMeanwhileError if somebody else wrote it since it was read."""
        expected = self._expected(engine, file)
        if content == (None if expected is None else expected.content):
            return
        # before the attempt: one that fails late, at its last fsync, has changed the file all the same
        self._attempts.setdefault(file.path, []).append(content)
        if content is None:
            assert expected is not None  # noqa: S101  # it differs from content
            self.node.files.remove_expected(expected)
            log.get().info("Removed the file", file=file.path)
            return
        self.node.files.replace(file.path, content, _metadata(file.found), expected)
        log.get().info("Wrote the file", file=file.path)

    def _expected(self, engine: Engine | None, file: EngineFile) -> Found | None:
        """Return the file as it must still be: as it was read, or as one of our own attempts left it."""
        attempts = self._attempts.get(file.path)
        if attempts is None:
            return file.found
        known = (*attempts, file.content)
        ours = {memory.digest(content) for content in known if content is not None}
        self.node.files.recover(file.path, ours, aside_of(engine, self.store) if engine is not None else None)
        now = self.node.files.find(file.path)
        if (None if now is None else now.content) not in known:
            raise ChangedMeanwhileError("somebody else changed it meanwhile", path=file.path, hint="it is read again")
        return now

    def _reload(self, switch: Switch, *, interruptible: bool) -> None:
        """Reload the engine, a last resort twice, and wait for it to serve. Raises NotServedError, Stopped."""
        refusal = self._refusal(switch)
        if refusal is not None:
            raise NotServedError(f"it would not start with its files: {refusal}; it was not restarted", answers=True)
        self.reloads += 1
        began = time.time()
        try:
            self._attempt(switch, interruptible=interruptible)
        except NotSignalledError as error:
            if not switch.last_resort:
                raise
            log.get().warning(
                "The engine cannot be reloaded: restart it, so that it forgets the handlers",
                engine=switch.engine.name,
                reason=error.reason,
            )
        except NotServedError as error:
            if not switch.last_resort:
                raise self._told(switch, error, began) from error
            log.get().warning("The engine is reloaded once more", engine=switch.engine.name, reason=str(error))
            try:
                self._attempt(switch, interruptible=interruptible)
            except NotServedError as again:
                raise self._told(switch, again, began) from again

    def _refusal(self, switch: Switch) -> str | None:
        """Return why a restart would take down an engine that runs; None if nothing is known against it."""
        process = _process(switch.live)
        if not switch.reload.restarts or process is None or processes.look(process.pid) != process:
            return None
        words = switch.engine.refusal(self.node, process)
        return None if words is None else secrets.mask(words)

    def _attempt(self, switch: Switch, *, interruptible: bool) -> None:
        name = switch.engine.name
        mode = f"{switch.reload.watched_by} does it" if switch.reload.watched_by else switch.reload.mode
        log.get().info("Reloading the engine", engine=name, mode=mode, unit=switch.reload.unit)
        heard = ""
        unit = switch.reload.unit
        if switch.reload.mode is ReloadMode.SIGNAL and switch.last_resort and self._signalled:
            unit = self._fallen(switch)
        if unit is not None and switch.reload.ends_after_calls and switch.last_resort and self.attention.stop:
            heard = self._restart(unit, last_resort=True, wait=False)
            if not heard and not self._ended(switch):
                log.get().warning(
                    "The engine ends only after this process, which it is asked to stop: systemd starts it again then, "
                    "with the files that are in place now",
                    engine=name,
                    unit=unit,
                )
                self.unseen.append(name)
                return
        elif unit is not None:
            heard = self._restart(unit, last_resort=switch.last_resort)
        self._wait(switch, heard, signalled=unit is not None, interruptible=interruptible)

    def _fallen(self, switch: Switch) -> str | None:
        """Return the unit of an engine that ended and that nothing starts again; None for all others."""
        process = _process(switch.live)
        if process is None or process.unit is None or processes.look(process.pid) == process:
            return None
        state = self.node.services.property(process.unit, "ActiveState")
        return process.unit if state in _FALLEN else None

    def _ended(self, switch: Switch) -> bool:
        """Wait for the end of the process that served so far, as long as it takes if nothing is in its way."""
        process = _process(switch.live)
        deadline = time.monotonic() + _END_SECONDS
        while process is not None and processes.look(process.pid) == process:
            if time.monotonic() > deadline:
                return False
            self.attention.look(_POLL_SECONDS)
        return True

    def _restart(self, unit: str, *, last_resort: bool, wait: bool = True) -> str:
        """Restart the unit; return what was heard if it failed. Raises NotServedError unless it is the last resort."""
        try:
            self.node.services.restart(unit, seconds=self.seconds, wait=wait)
        except ProgramError as error:
            heard = secrets.mask(str(error))
            if not last_resort:
                # it would be started with the same files over and over: the sooner the old ones are back, the better
                raise NotServedError(heard, answers=False) from error
            return f"{heard}; "
        return ""

    def _wait(self, switch: Switch, heard: str, *, signalled: bool, interruptible: bool) -> None:
        """Wait until the engine serves its files; one that has to be signalled is, as soon as it answers."""
        before = _process(switch.live)
        steady = Steadiness(time.monotonic() + self.seconds)
        while True:
            try:
                live = switch.engine.ask(self.node, switch.socket, max(1.0, min(_ASK_SECONDS, steady.remaining)))
            except EngineSilentError as error:
                last, answers = error.reason, False
                steady.ended()
                # neither comes back by itself: the sooner the next is tried, the better
                if isinstance(error, EngineBrokenError) or self._fallen(switch) is not None:
                    raise NotServedError(f"{heard}{last}", answers=False) from error
            else:
                last, answers = _differs(switch, live, before), True
                restarted = switch.reload.restarts and live.process != before and not last
                if not signalled and not restarted:
                    # never one that does not answer: dockerd dies of a signal while it starts
                    signalled, last = self._signal(switch, live), "it could not be signalled"
                    if signalled:
                        continue
                if steady.confirmed(None if last else live):
                    _tell(switch, live, before)
                    return
            if steady.hopeless:
                raise NotServedError(f"{heard}it answers, and ends again and again; last: {last}", answers=False)
            self._rest(steady, f"{heard}{last}", answers=answers)
            if interruptible and self.attention.stop is not None:
                raise Stopped(self.attention.stop)

    def _rest(self, steady: Steadiness, last: str, *, answers: bool) -> None:
        """Wait until the engine is to be asked again. Raises NotServedError once its time is over."""
        seconds = steady.pause()
        if seconds is None:
            raise NotServedError(f"{last} (waited {self.seconds:g} s)", answers=answers)
        self.attention.look(seconds)

    def _signal(self, switch: Switch, live: Live) -> bool:
        """Signal the engine that has just answered; tell whether that could be done. Raises NotSignalledError."""
        if live.process is None:
            return False
        try:
            for step in switch.steps:  # as they are now, whoever wrote them
                found = self.node.files.find(step.file.path)
                live.refuse_signal(None if found is None else found.content)
        except ConfigurationError as error:
            raise NotSignalledError(f"{error.reason}; it was not signalled", answers=True) from error
        try:
            switch.engine.signal(self.node, live.process)
        except ProcessGoneError as error:
            log.get().info("The engine was restarted meanwhile", engine=switch.engine.name, reason=error.reason)
            return False
        self._signalled = True
        return True

    def _told(self, switch: Switch, error: NotServedError, began: float) -> NotServedError:
        """Return the error with what the unit's log has to say, where the engine has a unit and it is not told yet."""
        process = _process(switch.live)
        unit = switch.reload.unit or (process.unit if process is not None else None)
        if unit is None or LOG_SAYS in error.reason:
            return error
        words = secrets.mask(self.node.services.last_words(unit, began))
        return NotServedError(f"{error.reason}{LOG_SAYS}{words}", answers=error.answers) if words else error


def _differs(switch: Switch, live: Live, before: Process | None) -> str:
    """Return in words how the engine's answer is not yet what it should be."""
    stale = switch.reload.restarts and before is not None and live.process == before
    return "; ".join(["it was not restarted", *switch.wrong(live)] if stale else switch.wrong(live))


def _tell(switch: Switch, live: Live, before: Process | None) -> None:
    log.get().info("The engine serves its configuration", engine=switch.engine.name)
    if not switch.reload.restarts and before is not None and live.process is not None and live.process != before:
        log.get().warning(
            "The engine was signalled, and another process serves now: it ended and was started again",
            engine=switch.engine.name,
            pid=live.process.pid,
        )


def _process(live: Live | None) -> Process | None:
    return live.process if live is not None else None


def _metadata(found: Found | None) -> Metadata:
    return found.metadata if found is not None else own_metadata(_NEW_FILE_MODE)
