"""An engine behind an NRI socket: it takes the plugins that register, and asks the last of them about containers."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tests.unit.nri import engine as wire

SECONDS = 30.0
"""Far more than anything takes: only what hangs meets it."""
_READ = 1 << 16


class Answer(NamedTuple):
    """What the plugin says about a container."""

    code: int
    words: str
    devices: tuple[str, ...]


class NriEngine:
    """Listens at `path` from `start` to `stop`, as an engine does between two of its own starts."""

    def __init__(self, path: Path, name: str = "containerd", version: str = "v2.1.4") -> None:
        self.path = path
        self.name = name
        self.version = version
        self.takes = True
        """Whether who connects is told anything."""
        self.plugins: list[str] = []
        """The names of those that registered, with their places."""
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._taken = threading.Condition()
        self._connection: socket.socket | None = None
        self._call = 3

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Make the socket, and take plugins from now on."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        folder = os.open(self.path.parent, os.O_PATH)
        self._listener.bind(f"/proc/self/fd/{folder}/{self.path.name}")  # a socket's path has 107 bytes at most
        os.close(folder)
        self._listener.listen()
        self._thread = threading.Thread(target=self._take, args=(self._listener,))
        self._thread.start()

    def stop(self) -> None:
        """End: the socket stays behind, and nobody answers there."""
        if self._listener is not None and self._thread is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()
            self._listener.close()
            self._listener = None
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection to the plugin."""
        with self._taken:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def wait_for_plugin(self) -> None:
        """Wait until a plugin is registered, whether or not one was before the last `hang_up`."""
        with self._taken:
            assert self._taken.wait_for(lambda: self._connection is not None, SECONDS), "no plugin comes"

    def ask(self, namespace: str, annotations: Mapping[str, str], pod: str = "train") -> Answer:
        """Ask about a container of this pod."""
        self.wait_for_plugin()
        assert self._connection is not None
        self._call += 2
        self._connection.sendall(wire.create(self._call, namespace, annotations, pod))
        heard = b""
        while self._call not in wire.answers(heard):
            data = self._connection.recv(_READ)
            assert data, "the plugin hung up"
            heard += data
        code, words, payload = wire.answers(heard)[self._call]
        return Answer(code, words, tuple(wire.devices(payload)))

    def _take(self, listener: socket.socket) -> None:
        # signals are for the test itself: one that waits for them would miss what this thread gets
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # it stops
            self.hang_up()  # on a plugin before it, which may have ended: nobody is asked until this one is taken
            connection.settimeout(SECONDS)
            if not self.takes:
                self._keep(connection)
                continue
            registration = wire.messages(connection.recv(_READ), wire.RUNTIME)
            name, place = _registered(registration[0][2])
            self.plugins.append(f"{place}-{name}")
            connection.sendall(wire.taken() + wire.configure(1, self.name, self.version))
            answers: dict[int, tuple[int, str, bytes]] = {}
            while 1 not in answers:
                answers = wire.answers(connection.recv(_READ))
            if answers[1][0]:  # the plugin does not want this engine
                connection.close()
                continue
            connection.sendall(wire.synchronize(3))
            while 3 not in answers:
                answers = wire.answers(connection.recv(_READ))
            self._keep(connection)

    def _keep(self, connection: socket.socket) -> None:
        with self._taken:
            if self._connection is not None:
                self._connection.close()
            self._connection = connection
            self._taken.notify_all()


def _registered(body: bytes) -> tuple[str, str]:
    payload = dict(wire.fields(body))[3]
    assert isinstance(payload, bytes)
    said = dict(wire.fields(payload))
    name, place = said[1], said[2]
    assert isinstance(name, bytes)
    assert isinstance(place, bytes)
    return name.decode(), place.decode()
