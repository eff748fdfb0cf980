"""Made engines that live: a dockerd behind a socket that takes SIGHUP, a containerd and a CRI-O that systemd restarts.

The first is a process of its own, with the name, the socket, the answers and the signal of the real one. The others
answer in the place of the CRI and of systemctl, inside the program's process: what is tried with them is the order of
the program's own doing around a restart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import select
import signal
import socket
import struct
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, Self
from unittest import mock

from tests.node.engines.rules import Served, docker_reloaded, started
from tests.node.sweeps.trees import taken
from tests.support.fake_node import DAEMON_JSON, FakeNode
from tests.support.patching import answering, failing
from toolkit_installer.applying import reload
from toolkit_installer.engines.api import EngineSilentError, LiveState
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.crio.engine import Crio
from toolkit_installer.engines.crio.places import CrioLiveState
from toolkit_installer.engines.docker.engine import Docker
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram, ProgramError, Programs
from toolkit_installer.node.services import Services

SOCKET = "/run/docker.sock"
_ANSWER_SECONDS = 100.0
"""Where other work takes the processors, an answer may take long, and is none the worse."""
_ASK = Docker.ask
_SYSTEMCTL = "/bin/systemctl"


class LiveEngine(Protocol):
    """An engine whose state a test sets and reads."""

    def put(self, served: Served) -> None:
        """Make it serve this."""

    def take(self) -> Served:
        """Return what it serves."""

    def inside(self) -> contextlib.AbstractContextManager[object]:
        """Return what the program's process needs, to meet it."""

    def close(self) -> None:
        """End it."""


def keep_only(*kept: int) -> None:
    """Close every descriptor of a fork but the standard ones and these: others' ends must not outlive them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:  # the standard streams
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def _asked_for_long(engine: Docker, node: Node, socket_path: str, _: float) -> LiveState:
    return _ASK(engine, node, socket_path, _ANSWER_SECONDS)


class FakeDockerd:
    """A process named dockerd that serves the node's docker socket."""

    def __init__(self, node: FakeNode, **says: object) -> None:
        """`says`: what its answers to `/info` have beside the rest."""
        self._connection, other = multiprocessing.Pipe()
        listening = socket.socket(socket.AF_UNIX)
        folder = os.open(node.place("/run"), os.O_RDONLY | os.O_DIRECTORY)
        listening.bind(f"/proc/self/fd/{folder}/{os.path.basename(SOCKET)}")  # a socket's path has 107 bytes at most
        os.close(folder)
        listening.listen(8)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                keep_only(listening.fileno(), other.fileno())
                _Dockerd(node.place(DAEMON_JSON), listening, other, says).serve()
            finally:
                os._exit(1)
        listening.close()
        other.close()

    def put(self, served: Served) -> None:
        self._connection.send(served)

    def take(self) -> Served:
        self._connection.send(None)
        if not self._connection.poll(_ANSWER_SECONDS):
            raise AssertionError("the fake dockerd does not answer")
        served = self._connection.recv()
        assert isinstance(served, Served)
        return served

    def inside(self) -> contextlib.AbstractContextManager[object]:
        # there is no binary of it on the node, and a fork that finds this out costs more than all the rest
        absent = failing(ProgramError, "the made node has no programs")
        stack = contextlib.ExitStack()
        stack.enter_context(mock.patch.object(Programs, "run", absent))
        stack.enter_context(mock.patch.object(reload, "STEADY_SECONDS", 0.0))
        # it answers as soon as it gets a processor, or hangs up
        stack.enter_context(mock.patch.object(Docker, "ask", _asked_for_long))
        stack.enter_context(mock.patch.object(sockets, "_ANSWER_SECONDS", _ANSWER_SECONDS))
        return stack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._connection.close()


class _Dockerd:
    """What the fake dockerd's process does."""

    def __init__(self, config: Path, listening: socket.socket, orders: Connection, says: Mapping[str, object]) -> None:
        self.says = says
        self.config = config
        self.listening = listening
        self.orders = orders
        self.served = Served()

    def serve(self) -> None:
        Path("/proc/self/comm").write_text("dockerd", encoding="ascii")
        signal.signal(signal.SIGHUP, self._reload)
        heard: list[socket.socket | Connection] = [self.listening, self.orders]
        while True:
            ready, _, _ = select.select(heard, [], [])
            if self.orders in ready:
                self._obey()
            elif self.listening in ready:
                connection, _ = self.listening.accept()
                with connection, contextlib.suppress(ConnectionError):  # a client that was killed
                    self._answer(connection)

    def _reload(self, *_: object) -> None:
        content = self.config.read_bytes() if self.config.exists() else None
        if not self.served.down:
            self.served = docker_reloaded(self.served, content)

    def _obey(self) -> None:
        try:
            order = self.orders.recv()
        except EOFError:
            os._exit(0)  # the test has ended
        if isinstance(order, Served):
            self.served = order
        else:
            self.orders.send(self.served)

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            received = connection.recv(4096)
            if not received:
                return
            request += received
        if self.served.down:
            return  # nobody answers
        what = request.split(b" ")[1].rpartition(b"/")[2]
        runtimes = {name: {"path": path} for name, path in self.served.handlers}
        info = {"ServerVersion": "28.0", "Runtimes": runtimes, "DefaultRuntime": self.served.default, **self.says}
        version = {"Version": "28.0", "ApiVersion": "1.48", "MinAPIVersion": "1.24"}
        body = b"OK" if what == b"_ping" else json.dumps(version if what == b"version" else info).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
        # not closed at once: what the client has not read yet would be lost with it
        connection.shutdown(socket.SHUT_WR)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_ANSWER_SECONDS), 0))
        with contextlib.suppress(BlockingIOError):
            while connection.recv(4096):
                pass


class _Unit:
    """An engine and its unit, whose state lies in a file beside the node: it outlives the program's process."""

    name: str
    adapter: type[object]

    def __init__(self, node: FakeNode, cdi_folders: tuple[str, ...] | None = None) -> None:
        self.node = node
        self.cdi_folders = cdi_folders
        self.place = node.root.parent / f"{self.name}.json"
        self.put(Served())

    def put(self, served: Served) -> None:
        self.place.write_text(json.dumps(dataclasses.asdict(served)))

    def take(self) -> Served:
        state = json.loads(self.place.read_text())
        return Served(tuple((name, path) for name, path in state.pop("handlers")), **state)

    def close(self) -> None:
        """It has no process."""

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        with (
            mock.patch.object(self.adapter, "ask", self._ask),
            mock.patch.object(Services, "knows", answering(answer=True)),
            mock.patch.object(reload, "STEADY_SECONDS", 0.0),
            mock.patch.object(Programs, "find_program", self._find),
            mock.patch.object(Programs, "run", self._run),
        ):
            yield

    def _ask(self, *_: object) -> LiveState:
        served = self.take()
        if served.down:
            raise EngineSilentError(f"the fake {self.name} {served.down}")
        unit = f"{self.name}.service"
        return self._live(served, Process(4194305, self.name, f"/usr/bin/{self.name}", (), float(served.starts), unit))

    def _live(self, served: Served, process: Process) -> LiveState:
        """Return what it says of itself."""
        raise NotImplementedError

    def _find(self, name: str) -> str | None:
        return _SYSTEMCTL if name == "systemctl" else None

    def _run(self, command: list[str], **_: object) -> CompletedProgram:
        if command[:2] == [_SYSTEMCTL, "restart"]:
            self.put(dataclasses.replace(started(self.name, taken(self.node)), starts=self.take().starts + 1))
        elif command[0] != _SYSTEMCTL:
            raise ProgramError(f"the node has no {command[0]}")
        return CompletedProgram(0, b"", "")


class FakeContainerd(_Unit):
    """A containerd 2.1."""

    name = "containerd"
    adapter = Containerd

    def _live(self, served: Served, process: Process) -> LiveState:
        handlers: dict[str, Any] = dict(served.handlers)
        return LiveState("2.1.4", handlers, served.default, process, cdi_folders=self.cdi_folders if served.cdi else ())


class FakeCrio(_Unit):
    """A CRI-O 1.34 without pods."""

    name = "crio"
    adapter = Crio

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        with super().inside(), mock.patch.object(Crio, "stranded", answering(())):
            yield

    def _live(self, served: Served, process: Process) -> LiveState:
        handlers: dict[str, Any] = dict(served.handlers)
        return CrioLiveState("1.34.2", handlers, served.default, process, cdi_folders=self.cdi_folders)
