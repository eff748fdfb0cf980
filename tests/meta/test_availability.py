"""What the answers to a row of questions say: what is time away, what is a restart, and what is only a busy machine."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.reports.availability import SLOW, Figures, Sample, figures, parse

MS = 1_000_000
END = 10_000 * MS


def sample(at: float, *, took: float = 0.5, pid: int = 7, failure: str = "", late: float = 0.1) -> Sample:
    """Return a question that was sent at this time (ms)."""
    sent = int(at * MS)
    return Sample(sent - int(late * MS), sent, sent + int(took * MS), 0 if failure else pid, failure)


def steadily(start: int, stop: int, *, pid: int = 7) -> list[Sample]:
    return [sample(at, pid=pid) for at in range(start, stop, 10)]


def failing(start: int, stop: int) -> list[Sample]:
    return [sample(at, failure="Connection refused") for at in range(start, stop, 10)]


def seen(samples: list[Sample], control: list[Sample] | None = None, start: int = 0, end: int = END) -> Figures:
    return figures(samples, control or [], start * MS, end)


def test_an_engine_that_always_answers_was_never_away() -> None:
    told = seen(steadily(0, 1000))
    assert (told.probes, told.failed, told.restarts, told.total, told.longest) == (100, 0, 0, 0, 0)


def test_a_restart_counts_once_and_lasts_from_the_first_failure_to_the_next_answer() -> None:
    told = seen([*steadily(0, 100), *failing(100, 160), *steadily(160, 300, pid=8)])
    assert told.restarts == 1
    assert told.failed == 6
    assert told.total == told.longest == pytest.approx(60.5)
    assert told.failures == ("Connection refused",)


def test_two_times_away_are_summed_and_the_longest_is_told() -> None:
    first = [*steadily(0, 100), *failing(100, 120), *steadily(120, 200, pid=8)]
    told = seen([*first, *failing(200, 300), *steadily(300, 400, pid=9)])
    assert told.restarts == 2
    assert told.longest == pytest.approx(100.5)
    assert told.total == pytest.approx(121)


def test_an_engine_that_does_not_come_back_is_away_until_the_end() -> None:
    told = seen([*steadily(0, 100), *failing(100, 200)], end=500 * MS)
    assert told.total == 400
    assert told.restarts == 0


def test_a_restart_between_two_steps_belongs_to_the_step_of_the_new_processs_answer() -> None:
    samples = [*steadily(0, 100), *steadily(100, 200, pid=8)]
    assert seen(samples, start=100).restarts == 1
    assert seen(samples, start=110).restarts == 0
    assert seen(samples, end=95 * MS).restarts == 0


def test_a_query_that_waited_for_a_new_process_counts_as_downtime_although_answered() -> None:
    told = seen([*steadily(0, 100), sample(100, took=70, pid=8), *steadily(180, 300, pid=8)])
    assert (told.restarts, told.failed) == (1, 0)
    assert told.total == pytest.approx(70)


def test_a_frozen_engine_was_away_although_it_answered_at_last() -> None:
    told = seen([*steadily(0, 100), sample(100, took=900), *steadily(1000, 1100)], steadily(0, 1100))
    assert (told.restarts, told.failed) == (0, 0)
    assert told.total == told.slowest == pytest.approx(900)


def test_a_question_that_was_open_when_the_step_began_tells_of_the_step() -> None:
    samples = [*steadily(0, 100), sample(100, took=900), *steadily(1000, 1100)]
    assert seen(samples, start=101).total == pytest.approx(900)
    assert seen([*steadily(0, 100), sample(100, took=50, pid=8), *steadily(160, 200, pid=8)], start=101).restarts == 1


def test_a_slow_answer_on_a_machine_that_is_slow_altogether_is_no_downtime() -> None:
    samples = [*steadily(0, 100), sample(100, took=900), *steadily(1000, 1100)]
    # the program that does nothing was asked in time, and answered as late; or it was asked late
    for busy in (sample(110, took=850), sample(950, late=850)):
        told = seen(samples, [*steadily(0, 100), busy, *steadily(1000, 1100)])
        assert told.total == 0
        assert told.slowest == pytest.approx(900)


def test_a_machine_that_was_busy_for_a_part_of_the_time_does_not_excuse_the_rest() -> None:
    samples = [*steadily(0, 100), sample(100, took=900), *steadily(1000, 1100)]
    told = seen(samples, [*steadily(0, 200), sample(200, took=300), *steadily(500, 1100)])
    assert told.total == pytest.approx(600, abs=1)


def test_an_answer_that_takes_a_little_longer_is_no_time_away() -> None:
    assert seen([*steadily(0, 100), sample(100, took=SLOW - 1), *steadily(210, 300)]).total == 0


def test_a_question_that_was_sent_late_is_told_and_is_no_time_away() -> None:
    told = seen([*steadily(0, 100), sample(800, late=700), *steadily(810, 900)])
    assert told.total == 0
    assert told.late == pytest.approx(700)


def test_what_the_prober_prints_is_read_back() -> None:
    printed = ["10 20 30 7 \n", "40 50 60 0 [Errno 111] Connection refused\n"]
    assert list(parse(printed)) == [Sample(10, 20, 30, 7), Sample(40, 50, 60, 0, "[Errno 111] Connection refused")]


def test_an_engine_that_was_never_asked_has_no_figures_that_please() -> None:
    told = seen([])
    assert dataclasses.astuple(told)[:3] == (0, 0, 0)
