"""Which process serves a socket, and how long it is waited for; the processes are real, what answers is played."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit_installer.engines.api import EngineSilentError, LiveState
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.common.serving import EngineBrokenError
from toolkit_installer.engines.registry import find_usual_distribution
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import HANDLED, STOPPING, Stopped
from toolkit_installer.settings import EngineName

SLEEP = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Yield what starts a process that is called like an engine, with a command line; no others are seen."""
    children: list[subprocess.Popen[bytes]] = []
    script = tmp_path / "engine.py"
    script.write_text(SLEEP)

    def ours(names: frozenset[str]) -> list[processes.Process]:
        return [
            process for process in processes.find_by_name(names) if process.pid in {child.pid for child in children}
        ]

    monkeypatch.setattr(serving, "find_by_name", ours)

    def start(name: str, *arguments: str) -> int:
        command = [sys.executable, "-I", "-S", str(script), name, *arguments]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child.pid

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def node() -> Node:
    return Node("/", whole=True)


def found(node: Node, engine: EngineName, path: Path) -> int | None:
    process = serving.find_process(node, engine, str(path))
    return None if process is None else process.pid


def test_an_engine_that_was_told_the_socket_is_found_and_one_with_another_is_not(
    node: Node, start: Callable[..., int], tmp_path: Path
) -> None:
    ours, other = tmp_path / "ours.sock", tmp_path / "other.sock"
    start("dockerd", "--host", "tcp://127.0.0.1:1", f"--host=unix://{other}")
    start("containerd", "--address", str(ours))
    assert found(node, EngineName.DOCKER, ours) is None
    pid = start("dockerd", "--host", "tcp://127.0.0.1:1", "-H", f"unix://{ours}")
    assert found(node, EngineName.DOCKER, ours) == pid


def test_a_containerd_is_known_by_the_address_in_its_configuration(
    node: Node, start: Callable[..., int], tmp_path: Path
) -> None:
    config = tmp_path / "containerd.toml"
    config.write_text(f'[grpc]\naddress = "{tmp_path}/other.sock"\n')
    pid = start("containerd", "--config", str(config))
    assert found(node, EngineName.CONTAINERD, tmp_path / "ours.sock") is None
    assert found(node, EngineName.CONTAINERD, tmp_path / "other.sock") == pid
    config.write_text("[")
    assert found(node, EngineName.CONTAINERD, tmp_path / "ours.sock") == pid, "it cannot be told, so it may be it"
    config.unlink()
    assert found(node, EngineName.CONTAINERD, tmp_path / "containerd.sock") is None


@pytest.mark.parametrize("engine, name", [(EngineName.DOCKER, "dockerd"), (EngineName.CONTAINERD, "containerd")])
def test_an_engine_that_was_told_no_socket_serves_the_usual_one(
    node: Node,
    start: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: EngineName,
    name: str,
) -> None:
    # this machine's own may be configured, and may have no folder for its socket yet
    row = msgspec.structs.replace(
        find_usual_distribution(engine), sockets=(f"{tmp_path}/usual.sock",), config=f"{tmp_path}/usual.toml"
    )
    monkeypatch.setattr(serving, "find_usual_distribution", {engine: row}.get)
    assert found(node, engine, tmp_path / "usual.sock") is None
    pid = start(name)
    assert found(node, engine, tmp_path / "usual.sock") == pid
    assert found(node, engine, tmp_path / "ours.sock") is None


def test_a_socket_is_the_same_through_another_name_of_its_folder(
    node: Node, start: Callable[..., int], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to(tmp_path / "run")
    pid = start("containerd", "-a", str(tmp_path / "var" / "c.sock"))
    assert found(node, EngineName.CONTAINERD, tmp_path / "run" / "c.sock") == pid


def test_a_process_tells_the_sockets_that_it_has_bound(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "made.sock"))
        assert str(tmp_path / "made.sock") in (processes.list_bound_sockets(os.getpid()) or [])
    assert processes.list_bound_sockets(2**22 + 1) is None


def test_a_process_of_another_node_is_not_this_ones(start: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    start("dockerd", "-H", f"unix://{tmp_path}/run/docker.sock")
    assert found(Node(str(tmp_path)), EngineName.DOCKER, Path("/run/docker.sock")) is None


@dataclasses.dataclass
class Player:
    """An engine that answers the `silent`-th time it is asked, and counts."""

    silent: int
    name: EngineName = EngineName.DOCKER
    broken: bool = False
    asked: int = 0

    def ask(self, _node: Node, socket: str, _seconds: float) -> LiveState:
        self.asked += 1
        if self.broken:
            raise EngineBrokenError("UNIMPLEMENTED", path=socket)
        if self.asked <= self.silent:
            raise EngineSilentError("connection refused", path=socket)
        return LiveState("1.0", {}, None)


def waited(player: Player, node: Node, socket: str, seconds: float) -> LiveState:
    engine: Any = player  # it has of an engine what is used here
    return serving.wait_for_engine(engine, node, socket, seconds)


def test_a_starting_engine_is_waited_for(node: Node, start: Callable[..., int], tmp_path: Path) -> None:
    start("dockerd", "-H", f"unix://{tmp_path}/docker.sock")
    player = Player(silent=3)
    assert waited(player, node, f"{tmp_path}/docker.sock", 60).version == "1.0"
    assert player.asked == 4


def test_an_engine_that_hangs_is_given_up_at_the_deadline(
    node: Node, start: Callable[..., int], tmp_path: Path
) -> None:
    start("dockerd", "-H", f"unix://{tmp_path}/docker.sock")
    player = Player(silent=1 << 30)
    with pytest.raises(EngineSilentError):
        waited(player, node, f"{tmp_path}/docker.sock", 0.5)
    assert player.asked > 1


@pytest.mark.usefixtures("start")
def test_an_engine_that_does_not_run_is_not_waited_for(node: Node, tmp_path: Path) -> None:
    player = Player(silent=1 << 30)
    with pytest.raises(EngineSilentError):
        waited(player, node, f"{tmp_path}/docker.sock", 600)
    assert player.asked == 1


def test_an_engine_without_the_service_is_not_waited_for(node: Node, start: Callable[..., int], tmp_path: Path) -> None:
    start("dockerd", "-H", f"unix://{tmp_path}/docker.sock")
    player = Player(silent=0, broken=True)
    with pytest.raises(EngineBrokenError):
        waited(player, node, f"{tmp_path}/docker.sock", 600)
    assert player.asked == 1


def test_a_request_to_stop_ends_the_wait_and_stays_pending(
    node: Node, start: Callable[..., int], tmp_path: Path
) -> None:
    start("dockerd", "-H", f"unix://{tmp_path}/docker.sock")
    old = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM"):
            waited(Player(silent=1 << 30), node, f"{tmp_path}/docker.sock", 600)
        assert signal.sigtimedwait(STOPPING, 0) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
