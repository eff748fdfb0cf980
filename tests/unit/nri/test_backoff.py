"""When the plugin tries again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.nri.connection import CHECK_SECONDS, FIRST_PAUSE, LONGEST_PAUSE, STEADY_SECONDS, Backoff


def pauses(*, there: bool, count: int) -> list[float]:
    """Return the pauses between tries at a socket that stays as it is."""
    backoff, now, found = Backoff(), 0.0, []
    for _ in range(count):
        backoff.record_failure(now, "the socket", there=there)
        tried = now
        while not backoff.is_due(now, "the socket"):
            assert 0 < backoff.find_next_check() - now <= CHECK_SECONDS + 1e-6
            now = backoff.find_next_check()
        found.append(round(now - tried, 6))
    return found


def test_the_first_try_is_at_once() -> None:
    assert Backoff().is_due(0.0, "anything")


def test_where_nobody_listens_it_tries_fast_at_first_and_each_second_later() -> None:
    assert pauses(there=False, count=8) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_what_listens_and_is_of_no_use_is_tried_less_and_less() -> None:
    found = pauses(there=True, count=14)
    assert found[:4] == [0.05, 0.1, 0.2, 0.4]
    assert found[-2:] == [LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_socket_that_was_made_anew_is_tried_at_the_next_look() -> None:
    backoff, now = Backoff(), 0.0
    for _ in range(20):
        backoff.record_failure(now, "old", there=True)
        now += LONGEST_PAUSE
    backoff.record_failure(now, "old", there=True)
    assert backoff.find_next_check() - now == CHECK_SECONDS
    assert not backoff.is_due(now + CHECK_SECONDS, "old")
    assert backoff.is_due(now + CHECK_SECONDS, "new")
    backoff.record_failure(now + CHECK_SECONDS, "new", there=True)
    assert backoff.find_next_check() == now + CHECK_SECONDS + FIRST_PAUSE


@given(st.floats(0, STEADY_SECONDS * 2))
def test_a_connection_that_was_good_for_a_while_is_made_again_at_once(served: float) -> None:
    backoff = Backoff()
    for _ in range(10):
        backoff.record_failure(0.0, "it", there=True)
    backoff.record_loss(100.0, 100.0 - served, "it")
    assert backoff.is_due(100.0 + FIRST_PAUSE, "it") == (100.0 - (100.0 - served) >= STEADY_SECONDS)
