"""Signals that make the installer stop or inspect the node again: blocked from the start, handled where it is safe."""

from __future__ import annotations

import contextlib
import errno
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

from toolkit_installer.node.queries import Query

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
HANDLED: Final = (*STOPPING, signal.SIGHUP)
_LOOK_SECONDS: Final = 0.05
"""Seconds between two checks for a signal."""


class Stopped(BaseException):  # like KeyboardInterrupt: no failure, and no handler of errors may catch it
    """A signal requested that the installer stop. `number` is the signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


def block() -> None:
    """Block the handled signals, so that none interrupts half a change; a broken pipe is an error and does not kill."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


_deferrals: list[None] = []
"""One entry per piece of work that no signal may interrupt."""


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Keep signals from ending a wait inside the block: work that was begun is finished before the installer stops."""
    _deferrals.append(None)
    try:
        yield
    finally:
        _deferrals.pop()


def raise_if_pending() -> None:
    """Raise Stopped if a signal is pending that stops the installer, unless that is deferred. It stays pending."""
    pending = signal.sigpending().intersection(STOPPING)
    if pending and not _deferrals:
        raise Stopped(signal.Signals(min(pending)))


@Query(recorded=False)
def sleep(seconds: float) -> None:
    """Sleep. Raises Stopped as `raise_if_pending` does."""
    with interruptible():
        time.sleep(seconds)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal that stops the installer end a blocking call inside the block, by raising Stopped. It stays pending.

    For waits inside other libraries, in calls that change nothing. If signals are not blocked (commands that change
    nothing), they end the program by themselves; if they are deferred, they wait.
    """
    if _deferrals or not signal.pthread_sigmask(signal.SIG_BLOCK, []).issuperset(STOPPING):
        yield
        return
    raise_if_pending()
    caught: list[int] = []
    waits = True

    def stop(number: int, _frame: FrameType | None) -> None:
        caught.append(number)
        if waits:
            raise Stopped(signal.Signals(number))

    handlers = {number: signal.signal(number, stop) for number in STOPPING}
    _interruptibles.append(None)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        yield
    finally:
        waits = False
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        _interruptibles.pop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in caught:
            signal.raise_signal(each)  # blocked by now, it is pending again for the code that handles it


_interruptibles: list[None] = []
"""One entry per block that a signal may end at any moment."""


@contextlib.contextmanager
def polled() -> Iterator[None]:
    """Block signals inside a block of `interruptible`, for work that calls `raise_if_pending` itself."""
    if not _interruptibles:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a blocking call inside the block after so many seconds, even if data still arrives.

    The limits of libraries begin anew with each byte that arrives.
    """
    waits = True

    def end(_number: int, _frame: FrameType | None) -> None:
        if waits:
            raise TimeoutError(errno.ETIMEDOUT, f"it did not answer whole within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        waits = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def unblock() -> None:
    """Let the handled signals end the program at once: for commands that change nothing."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


def is_killed_by_signals() -> bool:
    """Return whether a signal ends the program at once, so that it cannot end the programs that it started."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ()).isdisjoint(HANDLED)


def unblock_all() -> None:
    """Give a child the signal mask and handlers that programs expect."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def take_signal(seconds: float = 0.0) -> signal.Signals | None:
    """Wait up to `seconds` for a handled signal; return it, or None. The signal is consumed.

    Pending signals are polled: if the process is stopped meanwhile and continues after the time is over, Python's
    sigtimedwait reports an arbitrary signal from uninitialized memory, TERM too. A timer's signal would have to be
    blocked in every thread, and libraries have threads of their own.
    """
    deadline = time.monotonic() + seconds
    while not signal.sigpending().intersection(HANDLED):
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(_LOOK_SECONDS, left))
    return signal.Signals(signal.sigwaitinfo(HANDLED).si_signo)


def block_child_signal() -> None:
    """Keep SIGCHLD pending from now on until it is waited for; discard earlier ones."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while signal.SIGCHLD in signal.sigpending():
        signal.sigwaitinfo([signal.SIGCHLD])


def unblock_child_signal() -> None:
    """Stop blocking SIGCHLD: it has no effect again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


class SignalCollector:
    """Collects the received signals until the next moment at which it is safe to stop."""

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.again = False
        self.awaited_by: object | None = None
        """An engine's process whose restart was requested from systemd, and which ends only after this one."""

    def take_pending(self, seconds: float = 0.0) -> None:
        """Take the signals that are pending or arrive within `seconds`, but none after a request to stop."""
        deadline = time.monotonic() + seconds
        while True:
            number = take_signal(max(0.0, deadline - time.monotonic()))
            if number is None:
                return
            if number == signal.SIGHUP:
                self.again = True
            else:
                self.stop = number
                return

    def raise_if_stopped(self) -> None:
        """Raise Stopped if a signal requested it: called at moments where nothing is half done."""
        self.take_pending()
        if self.stop is not None:
            raise Stopped(self.stop)
