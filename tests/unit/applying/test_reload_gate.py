"""When a pending reload is checked again, and how many reloads the budget allows in a window."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.applying import gpu_containers
from toolkit_installer.applying.reload_gate import (
    ReloadBudget,
    ReloadGate,
    ReloadTimes,
    find_any_refusal,
    find_refusal,
    parse_reloads,
    parse_times,
)
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.engines.api import DesiredState, LiveState
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import idling, machine, terminal
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import Root
from toolkit_installer.planning import plan as plan_of

SINCE = 1_700_000_000.0
"""2023-11-14 22:13:20 in UTC, a Tuesday."""
PROCESS = Process(1, "containerd", "/usr/bin/containerd", (), 0.0, None)
WAITS = Pending(("containerd",), "it is closed", SINCE, SINCE + 60.0)


@pytest.fixture
def window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReloadGate:
    monkeypatch.setattr(machine, "now", lambda: SINCE)
    gate = ReloadGate("Wed 02:00-04:00", Node.open(str(tmp_path), "/host"))
    gate.pending = WAITS
    return gate


def test_a_closed_window_is_worth_no_look_and_what_is_told_of_it_is_true(
    window: ReloadGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not window.may_be_allowed({idling.LATER})
    assert window.pending is not None
    assert window.pending.opens == SINCE + 3600 * 3 + 46 * 60 + 40  # 2023-11-15 02:00
    assert "(UTC, the node's time zone): the next window opens at 2023-11-15T02:00:00Z" in window.pending.reason
    assert window.pending.since == SINCE
    assert window.seconds_to_opening() == window.pending.opens - SINCE
    monkeypatch.setattr(machine, "now", lambda: SINCE + 4 * 3600)
    assert window.may_be_allowed({idling.LATER})
    assert window.seconds_to_opening() is None  # and not none at all, which would be an endless loop


def test_an_engine_that_was_restarted_is_worth_a_look_whatever_the_time_is(window: ReloadGate) -> None:
    assert window.may_be_allowed({idling.ENGINE})
    assert not window.may_be_allowed({idling.DRIFT, "SIGTERM"})
    window.pending = None
    assert not window.may_be_allowed({idling.ENGINE, idling.BUSY, idling.LATER})


def test_a_time_zone_that_broke_meanwhile_is_worth_a_look_that_says_so(window: ReloadGate, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/localtime").write_text("none")
    assert window.may_be_allowed({idling.LATER})


@pytest.mark.parametrize(
    "live, unseen",
    [(LiveState("2.1.4", {}, None), True), (LiveState("2.1.4", {}, None, PROCESS), False), (None, False)],
    ids=["no process is seen", "its process is seen", "it does not run"],
)
def test_an_engine_whose_containers_cannot_be_seen_is_never_taken_for_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: LiveState | None, *, unseen: bool
) -> None:
    monkeypatch.setattr(gpu_containers, "find_busy_reasons", lambda *_, **__: gpu_containers.BusyReasons(()))
    monkeypatch.setattr(plan_of, "find_superseded", lambda *_: ())
    monkeypatch.setattr(plan_of, "find_moved_engine", lambda *_: None)
    work = SimpleNamespace(
        name="containerd",
        inspection=SimpleNamespace(live=live),
        reload_why="it serves nothing",
        desired=DesiredState((), {"nvidia": "/n"}, None),
    )
    toolkit = SimpleNamespace(folder="/usr/local/nvidia/toolkit")
    seen: Any = SimpleNamespace(plan=SimpleNamespace(engines=(work,), toolkit=toolkit), receipt=None)
    pending_now = ReloadGate("idle", Node(str(tmp_path))).find_pending(seen)
    assert (pending_now is not None) is unseen
    if pending_now is not None:
        assert pending_now.reason == (
            "the node is not idle: the containers of containerd cannot be seen from here (hostPID: true)"
        )


BUDGET = (3, 600.0)


def record(*times: float, boot: str = "this") -> bytes:
    return json.dumps({"boot": boot, "reloads": times}).encode()


def test_the_fourth_reload_in_ten_minutes_is_refused_and_says_when_it_is_possible() -> None:
    reason = find_refusal((100.0, 200.0, 300.0), 400.0, BUDGET)
    assert reason is not None
    assert "3 times" in reason
    assert "in 300 s" in reason


def test_a_reload_is_allowed_once_the_oldest_has_expired() -> None:
    times = parse_times(record(100.0, 200.0, 300.0), "this", 701.0, BUDGET[1])
    assert times == (200.0, 300.0)
    assert find_refusal(times, 701.0, BUDGET) is None


def test_another_boot_forgets_everything() -> None:
    assert parse_times(record(1.0, 2.0, 3.0, boot="before"), "this", 5.0, 600.0) == ()


def test_times_of_the_future_do_not_count() -> None:
    assert parse_times(record(10.0), "this", 5.0, 600.0) == ()


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
    assert parse_times(content, "this", 5.0, 600.0) == ()


@given(st.binary(max_size=80))
def test_no_content_breaks_it(content: bytes) -> None:
    assert isinstance(parse_times(content, "this", 5.0, 600.0), tuple)


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 5), st.integers(1, 10_000))
def test_no_window_holds_more_reloads_than_the_budget_allows(moments: list[float], count: int, seconds: int) -> None:
    done: list[float] = []
    for now in sorted(moments):
        times = parse_times(record(*done), "this", now, seconds)
        if find_refusal(times, now, (count, seconds)) is None:
            done.append(now)
    for start in done:
        assert sum(start <= time < start + seconds for time in done) <= count


def test_what_an_earlier_package_wrote_forgave_nothing() -> None:
    assert parse_reloads(record(1.0, 2.0), "this", 5.0, 600.0) == ReloadTimes((1.0, 2.0), ())


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), max_size=60), st.integers(1, 4), st.integers(1, 1_000))
def test_however_often_reloads_are_forgiven_a_window_holds_at_most_four_budgets(
    steps: list[tuple[float, bool]], count: int, seconds: int
) -> None:
    known, done = ReloadTimes(), []
    for now, forgiven in sorted(steps):
        content = json.dumps({"boot": "this", "reloads": known.counting, "taken_back": known.forgiven}).encode()
        known = parse_reloads(content, "this", now, seconds)
        if find_any_refusal(known, now, (count, seconds)) is None:
            done.append(now)
            known = ReloadTimes((*known.counting, now), known.forgiven)
        if forgiven:
            known = ReloadTimes((), (*known.forgiven, *known.counting))
        assert len(known.counting) <= count
    for start in done:
        assert sum(start <= time < start + seconds for time in done) <= 4 * count


# --- a person at a terminal ---


def possible(budget: ReloadBudget, most: int = 20) -> int:
    """Return how many reloads the budget allows, up to `most`."""
    for number in range(most):
        try:
            budget.require_reload()
        except ConfigurationError:
            return number
        budget.spend()
    return most


@pytest.mark.parametrize("person, allowed", [(False, 3), (True, 12)])
def test_what_a_person_does_at_a_terminal_is_no_crash_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, person: bool, allowed: int
) -> None:
    monkeypatch.setattr(terminal, "is_started_by_person", lambda: person)
    budget = ReloadBudget(Files(Root(str(tmp_path)), SystemCalls()), "/toolkit.pid", BUDGET)
    assert possible(budget) == allowed


def test_a_person_does_not_use_up_what_a_pod_may_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = ReloadBudget(Files(Root(str(tmp_path)), SystemCalls()), "/toolkit.pid", BUDGET)
    monkeypatch.setattr(terminal, "is_started_by_person", lambda: True)
    for _ in range(5):
        budget.spend()
    monkeypatch.setattr(terminal, "is_started_by_person", lambda: False)
    assert possible(budget) == 3
