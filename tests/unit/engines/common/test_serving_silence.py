"""What is said of an engine that does not answer: in words, and with where to look."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests.exceptions
import urllib3.exceptions

from toolkit_installer.engines.api import EngineSilentError
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.common.serving import SILENCE, NoAnswerError
from toolkit_installer.engines.docker import client as docker
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
POOL: Any = "UnixHTTPConnectionPool(host='localhost', port=None)"
SOCKET = "/run/docker.sock"


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(f"{tmp_path}{SOCKET}")
        yield found


@pytest.mark.parametrize(
    "error, words",
    [
        (REFUSED, "Connection refused"),
        (urllib3.exceptions.ProtocolError("Connection aborted.", REFUSED), "Connection refused"),
        (
            requests.exceptions.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", REFUSED)),
            "Connection refused",
        ),
        (TimeoutError(errno.ETIMEDOUT, "it did not answer whole within 3 s"), SILENCE),
        (urllib3.exceptions.ReadTimeoutError(POOL, "/info", "Read timed out."), SILENCE),
        (OSError("its answer is not JSON"), "its answer is not JSON"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
    ids=["plain", "wrapped", "wrapped twice", "too late", "too late for a library", "our own", "without a word"],
)
def test_an_error_that_libraries_have_wrapped_is_said_in_words(error: BaseException, words: str) -> None:
    assert serving.describe_error(error, urllib3.exceptions.TimeoutError) == words


def test_a_dockerd_that_accepts_and_says_nothing_is_said_to_be_late(tmp_path: Path, listening: socket.socket) -> None:
    listening.listen()
    with pytest.raises(NoAnswerError) as found:
        docker.query_info(Node.open(str(tmp_path), "/host").root, SOCKET, 0.2)
    assert found.value.reason == SILENCE


@pytest.mark.parametrize(
    "unit, known, expected",
    [
        ("my-docker.service", (), "my-docker.service"),
        (None, ("docker.service",), "docker.service"),
        (None, (), None),
    ],
    ids=["that of its process", "the usual one", "none"],
)
def test_where_to_look_is_the_unit_of_the_engine_as_far_as_it_is_known(
    monkeypatch: pytest.MonkeyPatch, unit: str | None, known: tuple[str, ...], expected: str | None
) -> None:
    monkeypatch.setattr(serving, "find_process", lambda *_: SimpleNamespace(unit=unit) if unit else None)
    node: Any = SimpleNamespace(services=SimpleNamespace(knows=lambda each: each in known))
    assert serving.find_unit(node, EngineName.DOCKER, "/var/run/docker.sock") == expected


def test_once_an_engine_was_silent_its_process_is_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been started since the last look, and is then not to be taken for one that does not run."""
    looks = []

    def pids() -> list[int]:
        looks.append("a look")
        return []

    monkeypatch.setattr(processes, "list_pids", pids)

    class Silent:
        name = EngineName.DOCKER

        def ask(self, *_: object) -> None:
            looks.append("asked")
            raise EngineSilentError("nothing")

    engine: Any = Silent()
    node = Node.open(str(tmp_path), "/host")
    with processes.cache_names():
        processes.names()
        assert serving.query_engine(engine, node, SOCKET, 1)[0] is None
        serving.find_process(node, EngineName.DOCKER, SOCKET)
    assert looks == ["a look", "asked", "a look"]
