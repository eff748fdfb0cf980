"""Signals that stop the installer: seen at safe points, and none is lost."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from toolkit_installer.node import signals
from toolkit_installer.node.signals import SignalCollector, Stopped

pytestmark = pytest.mark.usefixtures("blocked")


def held() -> set[int]:
    """Return the signals that this thread blocks."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def pending() -> set[int]:
    return set(signal.sigpending()) & set(signals.HANDLED)


@contextlib.contextmanager
def sent_within(number: signal.Signals, seconds: float = 0.1) -> Iterator[None]:
    """Send this thread a signal while the block runs."""
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), number))
    timer.start()
    try:
        yield
    finally:
        timer.join()


# --- safe points ---


@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_pending_signal_that_stops_is_raised_and_stays_pending(number: signal.Signals) -> None:
    signals.raise_if_pending()
    signal.raise_signal(number)
    for _ in range(2):
        with pytest.raises(Stopped, match=number.name) as raised:
            signals.raise_if_pending()
        assert raised.value.number is number
    assert pending() == {number}


def test_a_hangup_stops_nothing() -> None:
    signal.raise_signal(signal.SIGHUP)
    signals.raise_if_pending()
    signals.sleep(0)
    assert pending() == {signal.SIGHUP}


def test_deferred_work_is_not_stopped_until_its_outermost_block_ends() -> None:
    signal.raise_signal(signal.SIGTERM)
    with contextlib.suppress(ValueError), signals.deferred():
        with signals.deferred():
            signals.raise_if_pending()
        signals.raise_if_pending()
        signals.sleep(0)
        raise ValueError("the work failed")
    with pytest.raises(Stopped):
        signals.raise_if_pending()


def test_a_stop_is_no_exception_that_a_handler_of_errors_catches() -> None:
    assert not issubclass(Stopped, Exception)


# --- blocking calls ---


@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_blocking_call_is_ended_and_the_signal_is_pending_again(number: signal.Signals) -> None:
    before, handlers = held(), [signal.getsignal(each) for each in signals.STOPPING]
    began = time.monotonic()
    with sent_within(number), pytest.raises(Stopped, match=number.name):
        signals.sleep(60)
    assert time.monotonic() - began < 30
    assert pending() == {number}
    assert (held(), [signal.getsignal(each) for each in signals.STOPPING]) == (before, handlers)


def test_a_signal_that_came_before_a_blocking_call_ends_it_at_once() -> None:
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped), signals.interruptible():
        pytest.fail("the call was begun")


def test_where_signals_end_the_program_by_themselves_a_blocking_call_catches_none() -> None:
    signals.unblock()
    with signals.interruptible():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_work_that_looks_itself_is_not_ended_by_the_block_around_it() -> None:
    finished = []

    def work() -> None:
        with signals.interruptible(), signals.polled():
            signal.raise_signal(signal.SIGTERM)
            finished.append(signal.SIGTERM in held())

    with pytest.raises(Stopped):
        work()  # behind that work
    assert finished == [True]
    assert pending() == {signal.SIGTERM}


def test_work_that_looks_itself_changes_nothing_where_no_block_is_around_it() -> None:
    signals.unblock()
    with signals.polled():
        assert held().isdisjoint(signals.HANDLED)


def test_an_answer_that_never_ends_is_given_up_in_time() -> None:
    handler = signal.getsignal(signal.SIGALRM)

    def drip() -> None:
        with signals.limited(0.05):
            for _ in range(30_000):
                time.sleep(0.001)  # each wait is short: a limit of each would never be reached

    with pytest.raises(TimeoutError, match=r"did not answer whole within 0\.05 s"):
        drip()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_limit_has_no_effect_once_its_block_has_ended() -> None:
    with signals.limited(0.05):
        pass
    time.sleep(0.1)


# --- masks ---


def test_blocked_signals_and_a_broken_pipe_end_nothing_and_a_child_gets_neither() -> None:
    signals.unblock()
    assert signals.is_killed_by_signals()
    handler = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        signals.block()
        assert held() >= set(signals.HANDLED)
        assert not signals.is_killed_by_signals()
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
        signals.unblock_all()
        assert (held(), signal.getsignal(signal.SIGPIPE)) == (set(), signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGPIPE, handler)


def test_of_children_only_those_that_end_from_now_on_are_waited_for() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    signal.raise_signal(signal.SIGCHLD)
    signals.block_child_signal()
    try:
        assert signal.SIGCHLD not in signal.sigpending()
        signal.raise_signal(signal.SIGCHLD)
        assert signal.SIGCHLD in signal.sigpending()
    finally:
        signals.unblock_child_signal()
    assert signal.SIGCHLD not in held()


# --- waiting for a signal ---


@pytest.mark.parametrize("number", signals.HANDLED)
def test_a_signal_is_taken_once(number: signal.Signals) -> None:
    signal.raise_signal(number)
    assert signals.take_signal() is number
    assert signals.take_signal() is None


def test_a_signal_that_comes_within_the_time_ends_the_wait() -> None:
    began = time.monotonic()
    with sent_within(signal.SIGHUP):
        assert signals.take_signal(60) is signal.SIGHUP
    assert time.monotonic() - began < 30


def test_after_a_request_to_stop_no_more_is_taken() -> None:
    attention = SignalCollector()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGINT)
    attention.take_pending(60)
    assert attention.stop in signals.STOPPING
    assert pending(), "what came with it is left for the code that handles it"


class TestAttention:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
    def test_a_request_to_stop_waits_for_the_next_safe_point(self, number: signal.Signals) -> None:
        attention = SignalCollector()
        attention.raise_if_stopped()
        signal.pthread_kill(threading.get_ident(), number)
        with pytest.raises(Stopped, match=number.name):
            attention.raise_if_stopped()
        assert attention.stop is number

    def test_a_request_to_look_again_is_remembered_and_stops_nothing(self) -> None:
        attention = SignalCollector()
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
        attention.raise_if_stopped()
        assert (attention.again, attention.stop) == (True, None)

    def test_both_at_once_are_both_remembered(self) -> None:
        attention = SignalCollector()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
        attention.take_pending()
        attention.take_pending()
        assert (attention.again, attention.stop) == (True, signal.SIGTERM)

    def test_waiting_ends_at_once_for_a_request_to_stop(self) -> None:
        attention = SignalCollector()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        began = time.monotonic()
        attention.take_pending(30)
        assert time.monotonic() - began < 5

    def test_waiting_ends_in_time_without_any_signal(self) -> None:
        attention = SignalCollector()
        attention.take_pending(0.01)
        assert (attention.again, attention.stop) == (False, None)
