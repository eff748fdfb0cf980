"""Precedence: taken where it may be, never for longer than was said, and left alone where it is not allowed."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

import pytest

from tests.support.capabilities import may_come_first
from toolkit_installer.waiting import plugin_process

NOBODY = 65534
ALLOWED, REFUSED, OTHER = 0, 3, 4
SPIN = 0.05


def ended(act: Callable[[], int]) -> int:
    """Do it in a process of its own; return its exit code, or the signal's number below zero that ended it."""
    pid = os.fork()
    if not pid:
        code = OTHER
        try:
            code = act()
        except OSError:
            code = REFUSED
        finally:
            os._exit(code)  # pytest is not to go on here
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def taken(*, spinning: bool = False) -> int:
    plugin_process._run_before_ordinary_work(SPIN if spinning else 1.0)
    while spinning:
        pass
    own = os.sched_getscheduler(0) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
    children = ended(lambda: os.sched_getscheduler(0))
    return ALLOWED if own and children == os.SCHED_OTHER else OTHER


def refused() -> int:
    """Try as somebody who may not; the scheduler has to be what it was."""
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        plugin_process._run_before_ordinary_work(1.0)
    except PermissionError:
        return REFUSED if os.sched_getscheduler(0) == os.SCHED_OTHER else OTHER
    return ALLOWED


ALLOWED_HERE = pytest.mark.skipif(not may_come_first(), reason="without CAP_SYS_NICE nobody may")


@ALLOWED_HERE
def test_it_is_before_ordinary_work_and_what_it_starts_is_not() -> None:
    assert ended(taken) == ALLOWED


@ALLOWED_HERE
def test_who_works_without_a_pause_for_longer_than_was_said_is_killed() -> None:
    assert ended(lambda: taken(spinning=True)) == -signal.SIGKILL


def test_who_may_not_have_it_is_told_and_goes_on_as_before() -> None:
    assert ended(refused) == REFUSED


@ALLOWED_HERE
def test_a_limit_that_is_lower_already_stays() -> None:
    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_RTTIME, (1000, 2000))
        plugin_process._run_before_ordinary_work(1.0)
        return ALLOWED if resource.getrlimit(resource.RLIMIT_RTTIME) == (2000, 2000) else OTHER

    assert ended(limited) == ALLOWED
