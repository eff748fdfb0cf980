"""Signals that tell the installer to stop or to look again: blocked from the start, looked at where it is safe."""

from __future__ import annotations

import signal
import time
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
HANDLED: Final = (*STOPPING, signal.SIGHUP)


class Stopped(BaseException):  # like KeyboardInterrupt: no failure, and nothing on the way may catch it
    """A signal asked the installer to stop. `number` is the signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


def block() -> None:
    """Hold the handled signals back, so that none interrupts half a change; a broken pipe is an error, not a death."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def stop_asked() -> bool:
    """Tell whether a signal that stops the installer is pending. It stays so."""
    return not signal.sigpending().isdisjoint(STOPPING)


def unblock() -> None:
    """Let the handled signals end the program at once: for commands that change nothing."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


def unblock_all() -> None:
    """Give a child the signal mask and handlers that programs expect."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def take(seconds: float = 0.0) -> signal.Signals | None:
    """Wait up to `seconds` for a handled signal; return it, or None. The signal is used up."""
    info = signal.sigtimedwait(HANDLED, seconds)
    # Python tells of a signal 0 where the process was stopped and went on only after the time was over
    return None if info is None or info.si_signo not in HANDLED else signal.Signals(info.si_signo)


class Attention:
    """Remembers which signals came, while work goes on to the next safe point."""

    def __init__(self) -> None:
        self.stop: signal.Signals | None = None
        self.again = False

    def look(self, seconds: float = 0.0) -> None:
        """Take all that is pending, waiting up to `seconds` for a first one, but not beyond a request to stop."""
        deadline = time.monotonic() + seconds
        while True:
            number = take(max(0.0, deadline - time.monotonic()))
            if number is None:
                return
            if number == signal.SIGHUP:
                self.again = True
            else:
                self.stop = number
                return

    def check(self) -> None:
        """Raise Stopped if a signal asked for it: called at instants where nothing is half done."""
        self.look()
        if self.stop is not None:
            raise Stopped(self.stop)
