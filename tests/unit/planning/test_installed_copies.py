"""When a file is known for a copy by its stamps: once the kernel's clock has moved on, which is waited for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from toolkit_installer.node import reading
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Tree
from toolkit_installer.planning.installed import Copies
from toolkit_installer.receipt.schema import Copy


class Clock:
    """The clock that files are stamped by: it stands still for as long as nobody waits."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += int(seconds * 1e9)


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    for folder in ("node/toolkit", "payload"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("first", "last"):
            (tmp_path / folder / name).write_text(name)
    return Copies(Node.open(str(tmp_path / "node"), "/host"), "/toolkit", Tree(str(tmp_path / "payload")))


def taken(copies: Copies, *names: str) -> list[Copy]:
    return [copy for name in names if (copy := copies.taken(name, name)) is not None]


def standing_at(monkeypatch: pytest.MonkeyPatch, now: int) -> Clock:
    clock = Clock(now)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _clock: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def test_what_was_copied_just_now_is_known_once_the_clock_has_moved_on(
    copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = standing_at(monkeypatch, (tmp_path / "node/toolkit/last").stat().st_ctime_ns)
    made = taken(copies, "first", "last")
    assert len(made) == 2
    assert copies.settled(made) == tuple(made)
    (wait,) = clock.waits
    assert time.clock_getres(reading._FILES_CLOCK) < wait < 0.05


def test_nobody_waits_for_what_was_copied_before(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = standing_at(monkeypatch, time.time_ns() + 10**9)
    made = taken(copies, "first", "last")
    assert copies.settled(made) == tuple(made)
    assert copies.settled([]) == ()
    assert clock.waits == []


def test_what_somebody_changed_since_is_neither_known_nor_waited_for(
    copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = taken(copies, "first", "last")
    for changed in ("node/toolkit/last", "payload/first"):
        (tmp_path / changed).write_text("somebody's")
    clock = standing_at(monkeypatch, 0)
    assert copies.settled(made) == ()
    assert clock.waits == []
