"""Whatever becomes of the metrics, the node is given back; and whoever reads them learns no secret."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest

from tests.node import faults
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.support.fake_node import DAEMON_JSON, DEADLINE, DOCKER, TOOLKIT, FakeNode
from toolkit_installer.waiting.readiness import EngineAnswers

NO_MORE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture(autouse=True)
def dockerd(node: FakeNode) -> Iterator[None]:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    with FakeDockerd(node):
        yield


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def told_to_stop(node: FakeNode, folder: Path, meanwhile: Callable[[], object], *flags: str) -> faults.Outcome:
    """Return how a run ends that is told to stop when it would wait, right after something happened `meanwhile`."""

    def stop(*_: object, **__: object) -> None:
        assert node.docker()["default-runtime"] == "nvidia"
        meanwhile()
        os.kill(os.getpid(), signal.SIGTERM)

    with mock.patch("toolkit_installer.waiting.wait.wait", stop):
        return faults.run(node, folder, "run", "--socket", SOCKET, *flags)


def test_a_process_that_cannot_be_told_or_replaced_keeps_no_node_configured(node: FakeNode, tmp_path: Path) -> None:
    port = free_port()

    def fail() -> None:
        for pid in Path("/proc/thread-self/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
            os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)
        patched = ExitStack()
        of_socket, of_os = (
            ("reporting.metrics.socket.create_server", "waiting.child_process.socket.socketpair"),
            "waiting.child_process.os.posix_spawn",
        )
        for name in ("waiting.child_process.open", *of_socket, of_os):
            patched.enter_context(mock.patch(f"toolkit_installer.{name}", side_effect=NO_MORE, create=True))

    outcome = told_to_stop(node, tmp_path, fail, "--metrics-address", f"127.0.0.1:{port}")
    assert outcome.code == 0, outcome.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


def test_a_file_that_cannot_be_removed_keeps_no_node_configured(node: FakeNode, tmp_path: Path) -> None:
    file = tmp_path / "x.prom"

    def fail() -> None:
        file.unlink()
        (file / "theirs").mkdir(parents=True)

    outcome = told_to_stop(node, tmp_path, fail, "--metrics-textfile", str(file))
    assert outcome.code == 0, outcome.output
    assert "The metrics file stays, and is out of date" in outcome.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


def test_a_run_that_is_stopped_before_its_process_began_changes_nothing(node: FakeNode, tmp_path: Path) -> None:
    port = free_port()
    waits = "os.read(int(sys.argv[2]), 1)"  # until the run closes the channel
    program = f"import os, signal, sys\nos.kill(os.getppid(), signal.SIGTERM)\n{waits}\n"
    with mock.patch("toolkit_installer.reporting.metrics._PROGRAM", program):
        outcome = faults.run(node, tmp_path, "run", "--socket", SOCKET, "--metrics-address", f"127.0.0.1:{port}")
    assert outcome.code == 0, outcome.output
    assert "Stopped before the work was done" in outcome.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


def test_whoever_asks_why_a_node_is_not_ready_learns_no_secret(node: FakeNode, tmp_path: Path) -> None:
    port, said = free_port(), tmp_path / "answer"

    def ask() -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
            connection.request("GET", "/readyz")
            said.write_bytes(connection.getresponse().read())

    wrong = EngineAnswers(
        ("docker: http://proxy:hunter2@registry.example/ does not answer",), unserved=frozenset({"docker"})
    )
    with mock.patch("toolkit_installer.waiting.readiness.query_engines", return_value=wrong):
        outcome = told_to_stop(node, tmp_path, ask, "--metrics-address", f"127.0.0.1:{port}")
    assert outcome.code == 0, outcome.output
    assert said.read_text() == "Drift: docker: http://****@registry.example/ does not answer\n"
