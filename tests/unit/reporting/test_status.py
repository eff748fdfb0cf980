"""Why an engine does not answer: what systemd says of its unit, and the words of its log without secrets."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from toolkit_installer.engines.common import serving
from toolkit_installer.node import reading
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.services import Services
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.reporting import status
from toolkit_installer.reporting.status_verdict import ProcessState, SilentEngine
from toolkit_installer.settings import EngineName

ENGINE = EngineRecord(EngineName.DOCKER, "/run/docker.sock", None, (), None, ())
GONE = {"LoadState": "not-found", "ActiveState": "inactive"}
FAILED = {
    "LoadState": "loaded",
    "ActiveState": "failed",
    "Result": "exit-code",
    "InactiveExitTimestamp": "Sat 2026-11-28 15:50:14 UTC",
}


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Return what systemd says of docker's units, which a test may change."""
    told: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(Services, "properties", lambda _self, names, _: {name: told.get(name, GONE) for name in names})
    monkeypatch.setattr(Services, "trouble", lambda *_: [])
    monkeypatch.setattr(serving, "find_process", lambda *_: None)
    return told


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        yield process
        process.kill()


def explained(said: str = "dockerd does not answer: there is no such socket") -> SilentEngine:
    return status.explain_silence(Node("/"), ENGINE, said)


@pytest.mark.parametrize("state", ["inactive", "activating", "failed"])
def test_the_state_of_the_unit_that_is_there_is_told(units: dict[str, dict[str, str]], state: str) -> None:
    units["docker.service"] = {"LoadState": "loaded", "ActiveState": state, "Result": "success"}
    seen = explained()
    assert (seen.unit, seen.unit_state, seen.result) == ("docker.service", state, None)


def test_a_masked_unit_is_told_though_systemd_calls_it_inactive(units: dict[str, dict[str, str]]) -> None:
    units["docker.service"] = {"LoadState": "masked", "ActiveState": "inactive"}
    assert explained().unit_state == "masked"


def test_nothing_is_told_of_units_that_are_not_there(units: dict[str, dict[str, str]]) -> None:
    assert units == {}
    assert (explained().unit, explained().unit_state) == (None, None)


def test_the_last_words_of_the_engine_are_short_and_without_secrets(
    units: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    units["docker.service"] = FAILED
    monkeypatch.setitem(
        reading.cached_files, "/etc/docker/daemon.json", b'{"proxies": {"http-proxy": "http://u:hunter22@p"}}'
    )
    lines = [
        *(f"line {number}" for number in range(5)),
        'time="2026-11-28T15:50:14Z" level=fatal msg="bad proxy http://u:hunter22@p"',
        "docker.service: Main process exited, code=exited, status=1/FAILURE",
        "x" * 10_000,
        "Failed to start docker.service.",
    ]
    monkeypatch.setattr(Services, "trouble", lambda _self, unit, since, _: lines if (unit, since) != ("", "") else [])
    seen = explained()
    assert seen.result == "exit-code"
    assert len(seen.log) == 3
    assert seen.log[0] == "line 4"
    assert seen.log[1].startswith('"bad proxy ')
    assert "hunter22" not in " ".join(seen.log)
    assert max(map(len, seen.log)) <= 300


def test_a_process_that_is_stopped_is_told_from_one_that_is_only_silent(
    units: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]
) -> None:
    units["docker.service"] = FAILED | {"ActiveState": "active"}
    process = Process(sleeper.pid, "dockerd", "/usr/bin/dockerd", (), 0.0, "docker.service")
    monkeypatch.setattr(serving, "find_process", lambda *_: process)
    assert explained().process is None, "it refuses to answer, and does not hang"
    assert explained(f"dockerd does not answer: {serving.SILENCE}").process is ProcessState.SILENT
    sleeper.send_signal(19)
    deadline = time.monotonic() + 10
    while explained().process is not ProcessState.STOPPED:
        assert time.monotonic() < deadline
    assert explained().pid == sleeper.pid
