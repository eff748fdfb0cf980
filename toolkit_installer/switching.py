"""Bringing an engine's files to given contents, and the engine to serving them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from toolkit_installer import log, memory
from toolkit_installer.documents import secrets
from toolkit_installer.engines.base import Engine, EngineFile, EngineSilentError, Live, Reload
from toolkit_installer.errors import InstallerError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.reading import Found, Metadata
from toolkit_installer.node.signals import Attention, Stopped
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.settings import ReloadMode

_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_NEW_FILE_MODE = 0o644


class NotServedError(InstallerError):
    """The engine does not serve what it should in time. `answers`: it lives, and answered last."""

    def __init__(self, reason: str, *, answers: bool) -> None:
        super().__init__(reason)
        self.answers = answers


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
    """The engine must come back with this: a restart that fails is tried once more, and waited for in any case."""


class Switcher:
    """Makes switches; remembers what it wrote, so that somebody else's edit in between is seen."""

    def __init__(self, node: Node, attention: Attention, seconds: float) -> None:
        self.node = node
        self.attention = attention
        self.seconds = seconds
        self.reloads = 0
        """How often an engine was asked to reload."""
        self._attempts: dict[str, list[bytes | None]] = {}

    def make(self, switch: Switch, *, interruptible: bool) -> None:
        """Write the files, reload, and wait until the engine serves them.

        Raises ChangedMeanwhileError, NotServedError, NodeError; Stopped if `interruptible` and a signal came.
        """
        signalled = switch.reload.mode is ReloadMode.SIGNAL
        final = []
        for step in switch.steps:
            transitional = switch.engine.transitional(step.content) if signalled else None
            if transitional is not None:
                final.append(step)
            self._write(step.file, step.content if transitional is None else transitional)
        if switch.reload.mode is not ReloadMode.NONE:
            self._reload(switch, interruptible=interruptible)
        for step in final:
            self._write(step.file, step.content)

    def _write(self, file: EngineFile, content: bytes | None) -> None:
        """Make the file hold `content`. Raises ChangedMeanwhileError if somebody else wrote it since it was read."""
        expected = self._expected(file)
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

    def _expected(self, file: EngineFile) -> Found | None:
        """Return the file as it must still be: as it was read, or as one of our own attempts left it."""
        attempts = self._attempts.get(file.path)
        if attempts is None:
            return file.found
        known = (*attempts, file.content)
        self.node.files.recover(file.path, {memory.digest(content) for content in known if content is not None})
        now = self.node.files.find(file.path)
        if (None if now is None else now.content) not in known:
            raise ChangedMeanwhileError("somebody else changed it meanwhile", path=file.path, hint="it is read again")
        return now

    def _reload(self, switch: Switch, *, interruptible: bool) -> None:
        """Reload the engine and wait for it to serve. Raises NotServedError, Stopped."""
        name = switch.engine.name
        self.reloads += 1
        log.get().info("Reloading the engine", engine=name, mode=switch.reload.mode, unit=switch.reload.unit)
        heard = ""
        if switch.reload.mode is ReloadMode.SYSTEMD and switch.reload.unit is not None:
            heard = self._restart(switch.reload.unit, last_resort=switch.last_resort)
        else:
            heard = self._signal(switch)
        self._wait(switch, heard, interruptible=interruptible)

    def _restart(self, unit: str, *, last_resort: bool) -> str:
        """Restart the unit; return what was heard if it failed. Raises NotServedError unless it is the last resort."""
        heard = ""
        for _ in range(2 if last_resort else 1):
            try:
                self.node.services.restart(unit, seconds=self.seconds)
            except ProgramError as error:
                heard = f"{secrets.mask(str(error))}; "
            else:
                return ""
        if not last_resort:
            # it would be started with the same files over and over: the sooner the old ones are back, the better
            raise NotServedError(heard.removesuffix("; "), answers=False)
        return heard

    def _signal(self, switch: Switch) -> str:
        """Signal the engine if it answers; return what was heard if it does not."""
        try:
            live = switch.engine.ask(self.node, switch.socket, _ASK_SECONDS)
        except EngineSilentError as error:
            unit = switch.live.process.unit if switch.live is not None and switch.live.process is not None else None
            if switch.last_resort and unit is not None and self.node.services.knows(unit):
                # it died of the signal before this one, or of what it read then, and nobody starts it again
                return self._restart(unit, last_resort=True)
            return f"{error.reason}; "
        if live.process is None:
            return "its process cannot be seen; "
        switch.engine.signal(self.node, live.process)
        return ""

    def _wait(self, switch: Switch, heard: str, *, interruptible: bool) -> None:
        before = switch.live.process if switch.live is not None else None
        deadline = time.monotonic() + self.seconds
        while True:
            try:
                live = switch.engine.ask(self.node, switch.socket, _ASK_SECONDS)
            except EngineSilentError as error:
                last, answers = error.reason, False
            else:
                stale = switch.reload.restarts and before is not None and live.process == before
                wrong = ["it was not restarted", *switch.wrong(live)] if stale else switch.wrong(live)
                if not wrong:
                    log.get().info("The engine serves its configuration", engine=switch.engine.name)
                    return
                last, answers = "; ".join(wrong), True
            if time.monotonic() >= deadline:
                raise NotServedError(f"{heard}{last} (waited {self.seconds:g} s)", answers=answers)
            self.attention.look(_PAUSE_SECONDS)
            if interruptible and self.attention.stop is not None:
                raise Stopped(self.attention.stop)


def _metadata(found: Found | None) -> Metadata:
    return found.metadata if found is not None else own_metadata(_NEW_FILE_MODE)
