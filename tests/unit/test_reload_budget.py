from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.lifecycle.reload_budget import Reloads, recent, refusal, refusal_of_any, remembered

BUDGET = (3, 600.0)


def record(*times: float, boot: str = "this") -> bytes:
    return json.dumps({"boot": boot, "reloads": times}).encode()


def test_the_fourth_reload_in_ten_minutes_is_refused_and_says_when_it_is_possible() -> None:
    reason = refusal((100.0, 200.0, 300.0), 400.0, BUDGET)
    assert reason is not None
    assert "3 times" in reason
    assert "in 300 s" in reason


def test_a_reload_is_allowed_once_the_oldest_has_expired() -> None:
    times = recent(record(100.0, 200.0, 300.0), "this", 701.0, BUDGET[1])
    assert times == (200.0, 300.0)
    assert refusal(times, 701.0, BUDGET) is None


def test_another_boot_forgets_everything() -> None:
    assert recent(record(1.0, 2.0, 3.0, boot="before"), "this", 5.0, 600.0) == ()


def test_times_of_the_future_do_not_count() -> None:
    assert recent(record(10.0), "this", 5.0, 600.0) == ()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'{"boot": "this"}',
        b'{"boot": "this", "reloads": 3}',
        b'{"boot":"this","reloads":["x"]}',
        pytest.param(b"[" * 1_000_000, id="deep"),
        pytest.param(b'{"boot":' * 100_000, id="deep-objects"),
        b'{"boot":"this","reloads":[1e999, null]}',
    ],
)
def test_a_damaged_file_counts_as_nothing(content: bytes) -> None:
    assert recent(content, "this", 5.0, 600.0) == ()


@given(st.binary(max_size=80))
def test_no_content_breaks_it(content: bytes) -> None:
    assert isinstance(recent(content, "this", 5.0, 600.0), tuple)


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 5), st.integers(1, 10_000))
def test_no_window_holds_more_reloads_than_the_budget_allows(moments: list[float], count: int, seconds: int) -> None:
    done: list[float] = []
    for now in sorted(moments):
        times = recent(record(*done), "this", now, seconds)
        if refusal(times, now, (count, seconds)) is None:
            done.append(now)
    for start in done:
        assert sum(start <= time < start + seconds for time in done) <= count


def test_what_an_earlier_package_wrote_forgave_nothing() -> None:
    assert remembered(record(1.0, 2.0), "this", 5.0, 600.0) == Reloads((1.0, 2.0), ())


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), max_size=60), st.integers(1, 4), st.integers(1, 1_000))
def test_however_often_reloads_are_forgiven_no_window_holds_more_than_four_times_the_budget(
    steps: list[tuple[float, bool]], count: int, seconds: int
) -> None:
    known, done = Reloads(), []
    for now, forgiven in sorted(steps):
        content = json.dumps({"boot": "this", "reloads": known.counting, "taken_back": known.forgiven}).encode()
        known = remembered(content, "this", now, seconds)
        if refusal_of_any(known, now, (count, seconds)) is None:
            done.append(now)
            known = Reloads((*known.counting, now), known.forgiven)
        if forgiven:
            known = Reloads((), (*known.forgiven, *known.counting))
        assert len(known.counting) <= count
    for start in done:
        assert sum(start <= time < start + seconds for time in done) <= 4 * count
