"""One capture that uses up the limits, or ends its process, is refused by itself; all others are answered."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from toolkit_installer.cli import capture_workers

KEPT: list[bytes] = []
MEGABYTE = 1 << 20
FINE = {str(number): str(number) for number in range(40)}
HARM: dict[str, tuple[Callable[[], object], str]] = {
    "time in one call": (lambda: sum(range(1 << 60)), "takes more than 10 s to plan for"),
    "memory": (lambda: bytearray(1 << 30), "takes more than 512 MiB of memory to plan for"),
    "a large result": (lambda: "x" * (17 * MEGABYTE), "leads to an answer of more than 16 MiB"),
    "a crash": (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended the process that looked at it, by signal 9"),
    "an end": (lambda: os._exit(0), "ended the process that looked at it, by exit status 0"),
    "a bug": (lambda: int("a"), "ended the process that looked at it, by exit status 103"),
}


@pytest.fixture(autouse=True)
def _one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_workers, "MOST_SECONDS", 1)


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def work(name: str) -> object:
    capture_workers.begin(f"/captures/{name}")
    return HARM[name][0]() if name in HARM else name


def lost(name: str, path: str | None, reason: str) -> str:
    return f"{name} {path}: {reason}"


@pytest.mark.parametrize("place", [0, 5, 39])
@pytest.mark.parametrize("name", HARM)
def test_what_does_harm_is_refused_alone(name: str, place: int) -> None:
    given = list(FINE)
    given[place] = name
    found = list(capture_workers.run_workers(work, given, lost))
    assert found[place] == f"{name} /captures/{name}: {HARM[name][1]}"
    assert [each for index, each in enumerate(found) if index != place] == [
        each for index, each in enumerate(given) if index != place
    ]


def test_a_fleet_of_nothing_but_harm_is_refused_one_by_one() -> None:
    given = ["memory", "a crash", "a large result"] * 4
    assert list(capture_workers.run_workers(work, given, lost)) == [
        f"{name} /captures/{name}: {HARM[name][1]}" for name in given
    ]


def test_time_of_earlier_captures_is_not_counted() -> None:
    def slow(name: str) -> str:
        capture_workers.begin(name)
        end = time.process_time() + 0.4
        while time.process_time() < end:
            pass
        return name

    given = list(FINE)[:12]
    assert list(capture_workers.run_workers(slow, given, lost)) == given


def test_memory_that_earlier_captures_keep_is_not_counted() -> None:
    def keeping(name: str) -> str:
        capture_workers.begin(name)
        KEPT.append(bytes(100 * MEGABYTE))
        return name

    given = list(FINE)[:16]
    assert list(capture_workers.run_workers(keeping, given, lost)) == given
    assert not KEPT


def test_each_is_answered_in_its_order_whoever_is_ready_first() -> None:
    def late(name: str) -> str:
        time.sleep(0.3 if int(name) < 20 else 0)
        return name

    assert list(capture_workers.run_workers(late, list(FINE)[15:25], lost)) == list(FINE)[15:25]


def test_nothing_given_is_nothing_made() -> None:
    assert list(capture_workers.run_workers(work, [], lost)) == []


def test_an_answer_is_there_before_the_last_capture_is_looked_at() -> None:
    def waiting(name: str) -> str:
        time.sleep(60 if name == "39" else 0)
        return name

    begun, children = time.monotonic(), Path("/proc/thread-self/children").read_text()
    found: Iterator[str] = capture_workers.run_workers(waiting, list(FINE), lost)
    assert [next(found) for _ in range(20)] == list(FINE)[:20]
    found.close()  # type: ignore[attr-defined]
    assert time.monotonic() - begun < 30
    assert Path("/proc/thread-self/children").read_text() == children  # an earlier test may have left some


def test_a_child_leaves_no_core_and_its_limits_are_its_own() -> None:
    def limits(_name: str) -> list[int]:
        capture_workers.begin("x")
        return [resource.getrlimit(each)[0] for each in (resource.RLIMIT_CORE, resource.RLIMIT_CPU)]

    before = [resource.getrlimit(each) for each in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)]
    assert next(capture_workers.run_workers(limits, ["a"], lost)) == [0, 2]
    assert before == [
        resource.getrlimit(each) for each in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_CORE)
    ]
