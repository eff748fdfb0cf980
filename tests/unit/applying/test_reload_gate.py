"""When a run whose reload is pending looks again, and what it remembers meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit_installer.applying import gpu_containers
from toolkit_installer.applying.reload_gate import ReloadGate
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.engines.api import DesiredState, LiveState
from toolkit_installer.node import idling, machine
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
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
