"""An engine that systemd would start for whoever connects to its socket: told from all others without connecting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from toolkit_installer.engines.common import serving
from toolkit_installer.settings import EngineName

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

    monkeypatch.setattr(serving, "bound", bound)
    monkeypatch.setattr(serving, "process_of", lambda *_: object() if runs else None)
    assert serving.starts_when_asked(NODE, EngineName.DOCKER, SOCKET) is expected
    assert asked == [1]
