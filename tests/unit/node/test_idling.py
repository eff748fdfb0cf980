"""Stopped while it waits, as by a debugger or `docker pause`, and let go on only when the time is over: no signal came.

The kernel ends the wait then (signal(7), "Interruption of system calls and library functions by stop signals"), and
Python's sigtimedwait answers as if a signal had come: whichever number lies in its memory, 0 on most, 1 on 3.12.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from toolkit_installer.node import idling, signals

SECONDS = 0.3


def stopped_beyond_the_wait(work: Callable[[], bool], then: signal.Signals = signal.SIGCONT) -> int:
    """Run `work` in a fork that is stopped for longer than it waits; return 0 if it returned True."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signals.block()
            code = 0 if work() else 1
        finally:
            os._exit(code)
    time.sleep(SECONDS / 3)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    time.sleep(SECONDS)
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, then)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_installer_goes_on() -> None:
    assert stopped_beyond_the_wait(lambda: signals.take_signal(SECONDS) is None) == 0


def test_the_idle_process_looks_at_its_files() -> None:
    changed = [(idling.DRIFT, "/absent", "there")]
    assert stopped_beyond_the_wait(lambda: idling.wait(SECONDS, None, changed) == idling.DRIFT) == 0


def test_the_idle_process_waits_on_where_nothing_changed() -> None:
    unchanged = [(idling.DRIFT, "/absent", idling.identity("/absent"))]
    waited = stopped_beyond_the_wait(lambda: idling.wait(SECONDS, None, unchanged) == "SIGTERM", signal.SIGTERM)
    assert waited == 0


def test_nothing_is_left_of_the_wait_for_the_program_that_is_executed_next() -> None:
    def left() -> bool:
        idling.signal_within(0.01)
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        pending = signal.sigpending()
        return (
            signal.SIGALRM not in held
            and signal.SIGALRM not in pending
            and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        )

    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signals.block()
            code = 0 if left() else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nobody_asks_python_for_a_signal_within_a_time() -> None:
    package = Path(signals.__file__).parents[1]
    asking = [path.name for path in package.rglob("*.py") if "signal.sigtimedwait(" in path.read_text()]
    assert asking == []
