"""An engine that systemd would start for whoever connects to its socket: told from all others without connecting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolkit_installer.engines.common import serving
from toolkit_installer.reporting import support_bundle
from toolkit_installer.settings import EngineName, EngineSettings, Settings

SOCKET, HELD = "/var/run/docker.sock", "/run/docker.sock"
NODE: Any = SimpleNamespace(files=SimpleNamespace(canonical=lambda path: path.replace("/var/run", "/run")))


@pytest.mark.parametrize(
    "held, runs, expected",
    [
        ([HELD], False, True),
        ([HELD], True, False),
        (["/run/other.sock"], False, False),
        ([], False, False),
        (None, False, False),
    ],
    ids=["stopped", "running", "of another", "no socket unit", "PID 1 is not to be looked at"],
)
def test_it_is_one_whose_socket_pid_1_holds_and_that_has_no_process(
    monkeypatch: pytest.MonkeyPatch, held: list[str] | None, *, runs: bool, expected: bool
) -> None:
    asked: list[int] = []

    def bound(pid: int) -> list[str] | None:
        asked.append(pid)
        return held

    monkeypatch.setattr(serving, "list_bound_sockets", bound)
    monkeypatch.setattr(serving, "find_process", lambda *_: object() if runs else None)
    assert serving.is_socket_activated(NODE, EngineName.DOCKER, SOCKET) is expected
    assert asked == [1]


@pytest.mark.parametrize(
    "stopped, named",
    [
        (set(), None),
        ({SOCKET}, SOCKET),
        ({"/run/a.sock", SOCKET}, f"/run/a.sock, {SOCKET}"),
    ],
    ids=["none", "the usual one", "two"],
)
def test_a_report_asks_no_engine_where_that_would_start_one_and_says_which(
    monkeypatch: pytest.MonkeyPatch, stopped: set[str], named: str | None
) -> None:
    recorded: Any = SimpleNamespace(
        served_engines=lambda: [SimpleNamespace(name=EngineName.CONTAINERD, socket="/run/a.sock")],
    )
    monkeypatch.setattr(serving, "is_socket_activated", lambda _node, _engine, socket: socket in stopped)
    said = support_bundle.explain_blocked_queries(NODE, Settings(), recorded)
    wanted = f"the engine on {named} does not run, and systemd would start it for whoever asks it"
    assert said == (wanted if named is not None else None)


def test_the_docker_that_was_named_is_the_one_that_would_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "is_socket_activated", lambda *_: True)
    settings = Settings(engine=EngineSettings(socket="/srv/docker.sock"))
    said = support_bundle.explain_blocked_queries(NODE, settings, None)
    assert said is not None
    assert said.startswith("the engine on /srv/docker.sock does not run")
