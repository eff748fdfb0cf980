"""Others at work at a chosen instant of a run: somebody who edits a file, or a run that is stopped there meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import psutil

from tests.node.faults import Outcome, Plan, _child
from tests.support.fake_node import DEADLINE, SCRIPTS, FakeNode, Run, RunError

PROGRAM = Path(__file__).with_name("stopping") / "toolkit-installer"
"""By the name under which `uninstall` knows an installer."""
_POLL = 0.01


@dataclasses.dataclass
class Deed(Plan):
    """What somebody else does right before the call with this number."""

    deed: Callable[[], object] = bool

    def meet(self, name: str, paths: list[str]) -> None:
        """Count a call; do the deed if it is its turn."""
        if len(self.happened) == self.at:
            self.deed()
        self.happened.append(" ".join([name, *paths]))


@dataclasses.dataclass
class Halt(Plan):
    """Stops the process, as SIGSTOP does, right before the first call of this text (`name path…`), or number."""

    call: str = ""

    def meet(self, name: str, paths: list[str]) -> None:
        """Count a call; stop if it is its turn, until somebody sends SIGCONT."""
        text = " ".join([name, *paths])
        first = text not in self.happened
        if self.call == str(len(self.happened)) or (first and self.call == text):
            os.kill(os.getpid(), signal.SIGSTOP)
        self.happened.append(text)


class Stopping(Run):
    """The program as a process of its own that stops right before a call."""

    def wait_until_stopped(self) -> None:
        """Wait until it has stopped. Raises RunError if it ends or goes on instead."""
        deadline = time.monotonic() + DEADLINE
        process = psutil.Process(self.pid)
        while self.process.poll() is None and time.monotonic() < deadline:
            if process.status() == psutil.STATUS_STOPPED:
                return
            self._hear(time.monotonic() + _POLL)
        raise RunError(f"{self.command}\nnever stopped; it said:\n{self.output}")

    def go_on(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def stopping(
    node: FakeNode, at: str, command: str, *more: str, woken: bool = False, engine: str = "docker"
) -> Iterator[Stopping]:
    """Start a command that stops right before the call `at`; with `woken`, only after it has waited.

    It has stopped when the block is entered, unless `woken`; and has ended, by force if need be, when it is left.
    """
    words = [sys.executable, str(PROGRAM), "woken" if woken else "start", at]
    run = Stopping([*words, *node.arguments(command, *more, engine=engine)], anew=True)
    try:
        if not woken:
            run.wait_until_stopped()
        yield run
    finally:
        run.close()


def quickly(node: FakeNode, command: str, *more: str, engine: str = "docker") -> Run:
    """Start a command that looks around often, and whose questions to an API server have no pauses between them.

    The node ends it if the test does not.
    """
    return node._started(
        [sys.executable, str(PROGRAM), "start", "never", *node.arguments(command, *more, engine=engine)]
    )


def begin(node: FakeNode, command: str, *more: str) -> Run:
    """Start a command in the background; the node ends it if the test does not."""
    return node._started([str(SCRIPTS / "toolkit-installer"), *node.arguments(command, *more)])


def first_to_end(runs: Sequence[Run]) -> Run:
    """Wait until one of the runs has ended, and return it. Raises RunError if none does in time."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        for one in runs:
            if one.process.poll() is not None:
                return one
        time.sleep(_POLL)
    raise RunError("none of the runs ended")


@dataclasses.dataclass(frozen=True)
class Raced:
    """How one of several runs came out that started at once. `code` is None for one that works, and waits."""

    pid: int
    code: int | None
    output: str


@contextlib.contextmanager
def race(folder: Path, starts: Sequence[Sequence[str]]) -> Iterator[list[Raced]]:
    """Start the program with these arguments, all at the very same time, in forked children.

    Each has ended when the block is entered, or has stopped where it would wait for signals, with its locks.
    """
    closed, gate = os.pipe()
    racers = [_fork_racer(closed, gate, list(arguments), folder / f"racer-{n}") for n, arguments in enumerate(starts)]
    os.close(closed)
    os.close(gate)  # at once, for all of them
    alive = set(racers)
    try:
        codes = {pid: _stopped_or_ended(pid) for pid in racers}
        alive = {pid for pid in racers if codes[pid] is None}
        yield [Raced(pid, codes[pid], (folder / f"racer-{n}").read_text()) for n, pid in enumerate(racers)]
    finally:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork_racer(closed: int, gate: int, arguments: list[str], said: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 99
        with contextlib.suppress(BaseException):
            os.close(gate)
            os.read(closed, 1)
            os.close(closed)
            with mock.patch("os.execv", _stop):
                code = _child(arguments, Plan(), said)
        os._exit(code)
    return pid


def _stop(*_arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _stopped_or_ended(pid: int) -> int | None:
    """Return a child's exit code, or None once it has stopped. Raises RunError if it does neither in time."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            return None
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL)
    raise RunError(f"the forked run {pid} neither works nor ends")


def numbers_of(outcome: Outcome, words: str) -> list[int]:
    """Return which calls name `words`."""
    return [number for number, call in enumerate(outcome.calls) if words in call.split()]
