"""The plugin's connection: what it does by itself, and when it connects again; the clock is the test's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.nri import engine
from toolkit_installer.node.root import Root
from toolkit_installer.nri.connection import (
    CHECK_SECONDS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    REGISTRATION_SECONDS,
    STEADY_SECONDS,
    Backoff,
    ConnectionLost,
    Plugin,
    serve,
)
from toolkit_installer.nri.decision import DOMAIN, Policy
from toolkit_installer.nri.session import (
    Answered,
    Event,
    PluginConfigured,
    PluginIdentity,
    Rejected,
    Serving,
    Unsupported,
)

SECONDS = 20
OTHER = 65534


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """Listens in a folder; what it says is the test's."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "nri.sock"
        self.listener: socket.socket | None = None
        self.connections: list[socket.socket] = []

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()

    def accept(self) -> socket.socket:
        assert self.listener is not None
        connection, _ = self.listener.accept()
        connection.settimeout(SECONDS)
        self.connections.append(connection)
        return connection

    def stop(self) -> None:
        for each in (self.listener, *self.connections):
            if each is not None:
                each.close()
        self.connections.clear()


@pytest.fixture
def nri(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plugin(nri: Engine, clock: Clock) -> Iterator[Plugin]:
    policy = Policy(frozenset({"gpu-operator"}))
    made = Plugin(Root("/"), str(nri.path), PluginIdentity("toolkit-installer", 10), policy, clock)
    yield made
    made.close()


def waited(plugin: Plugin, clock: Clock) -> list[Event | ConnectionLost]:
    """Let the time pass that the plugin can wait."""
    patience = plugin.patience()
    assert patience is not None
    clock.now += patience
    return plugin.due()


def registered(nri: Engine, plugin: Plugin) -> socket.socket:
    assert plugin.due() == []
    connection = nri.accept()
    assert engine.messages(connection.recv(4096), engine.RUNTIME)
    connection.sendall(engine.taken() + engine.configure() + engine.synchronize())
    assert [type(event) for event in plugin.ready()] == [PluginConfigured, Serving]
    connection.recv(4096)
    return connection


def test_it_registers_and_answers(nri: Engine, plugin: Plugin) -> None:
    nri.start()
    connection = registered(nri, plugin)
    assert plugin.patience() is None
    connection.sendall(engine.create(5, "default", {DOMAIN: "nvidia.com/gpu=0"}))
    (event,) = plugin.ready()
    assert isinstance(event, Answered)
    assert engine.devices(engine.answers(connection.recv(4096))[5][2]) == ["nvidia.com/gpu=0"]
    assert not plugin.writing


def test_without_an_engine_it_tries_again_and_tells_it_once(nri: Engine, plugin: Plugin, clock: Clock) -> None:
    assert plugin.fileno() is None
    assert plugin.due() == [ConnectionLost("No such file or directory")]
    for _ in range(20):
        assert waited(plugin, clock) == []
    nri.start()
    registered(nri, plugin)


def test_an_engine_that_is_started_anew_has_the_plugin_again(nri: Engine, plugin: Plugin, clock: Clock) -> None:
    nri.start()
    for _ in range(3):
        registered(nri, plugin)
        clock.now += STEADY_SECONDS
        nri.stop()
        assert plugin.ready() == [ConnectionLost("the engine closed the connection")]
        assert plugin.fileno() is None
        assert waited(plugin, clock) == [ConnectionLost("Connection refused")]
        nri.start()
        patience = plugin.patience()
        assert patience is not None
        assert patience <= 1
        clock.now += patience


def test_an_engine_that_is_killed_with_data_unread_has_closed_the_connection(nri: Engine, plugin: Plugin) -> None:
    nri.start()
    assert plugin.due() == []
    nri.accept().close()
    assert plugin.ready() == [ConnectionLost("the engine closed the connection")]


def test_an_engine_that_does_not_configure_it_is_given_up(nri: Engine, plugin: Plugin, clock: Clock) -> None:
    nri.start()
    assert plugin.due() == []
    connection = nri.accept()
    connection.sendall(engine.taken())
    assert plugin.ready() == []
    assert plugin.patience() == REGISTRATION_SECONDS
    assert waited(plugin, clock) == [ConnectionLost("the engine has not configured the plugin within 5 s")]


def test_an_engine_that_does_not_take_it_is_left_and_asked_again(nri: Engine, plugin: Plugin, clock: Clock) -> None:
    nri.start()
    plugin.due()
    nri.accept().sendall(engine.refused("two of that name"))
    assert plugin.ready() == [
        Rejected("two of that name"),
        ConnectionLost("the engine did not take the plugin: two of that name"),
    ]
    assert plugin.fileno() is None
    waited(plugin, clock)
    assert plugin.fileno() is not None


def test_who_does_not_speak_the_protocol_is_left(nri: Engine, plugin: Plugin) -> None:
    nri.start()
    plugin.due()
    nri.accept().sendall(b"HTTP/1.1 400 Bad Request\r\n")
    (event,) = plugin.ready()
    assert isinstance(event, ConnectionLost)
    assert event.reason.startswith("the engine does not speak NRI: ")


def test_answers_that_the_engine_does_not_read_wait_and_then_it_is_left(
    nri: Engine, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolkit_installer.nri.connection._MAX_UNREAD", 300_000)
    nri.start()
    connection = registered(nri, plugin)
    names = ",".join(f"nvidia.com/gpu={number}" for number in range(2000))
    told: list[Event | ConnectionLost] = []
    for call in range(5, 400, 2):
        connection.sendall(engine.create(call, "default", {DOMAIN: names}))
        told = plugin.ready()
        if plugin.fileno() is None:
            break
    assert plugin.fileno() is None
    assert told[-1] == ConnectionLost("the engine does not read its answers")
    assert not plugin.writing


def test_what_could_not_be_sent_at_once_is_sent_later(nri: Engine, plugin: Plugin) -> None:
    nri.start()
    connection = registered(nri, plugin)
    names = [f"nvidia.com/gpu={number}" for number in range(2500)]
    calls, call = [], 5
    while not plugin.writing:
        connection.sendall(engine.create(call, "default", {DOMAIN: ",".join(names)}))
        plugin.ready()
        calls.append(call)
        call += 2
    data = b""
    while len(engine.answers(data)) < len(calls):
        data += connection.recv(1 << 20)
        plugin.ready()
    assert all(engine.devices(payload) == names for _, _, payload in engine.answers(data).values())
    assert not plugin.writing


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who can give a file away")
def test_a_socket_that_is_somebody_elses_is_not_believed(nri: Engine, plugin: Plugin) -> None:
    nri.start()
    os.chown(nri.path, OTHER, OTHER)
    (event,) = plugin.due()
    assert isinstance(event, ConnectionLost)
    assert f"of user {OTHER}" in event.reason
    assert "--nri-socket" in event.reason


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who can become somebody else")
def test_somebody_else_who_listens_is_not_believed(nri: Engine, plugin: Plugin) -> None:
    """The socket is root's; who called listen(2) is what the kernel tells."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(nri.path))
        script = f"import os, socket; os.setuid({OTHER}); socket.socket(fileno={listener.fileno()}).listen()"
        command = [sys.executable, "-I", "-S", "-c", script]
        subprocess.run(command, pass_fds=[listener.fileno()], check=True, timeout=SECONDS)
        (event,) = plugin.due()
        assert isinstance(event, ConnectionLost)
        assert f"user {OTHER}" in event.reason
        assert "--nri-socket" in event.reason
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b""


def test_a_plain_file_in_its_place_is_no_engine(nri: Engine, plugin: Plugin) -> None:
    nri.path.write_text("")
    assert plugin.due() == [ConnectionLost("Connection refused")]


def test_an_engine_that_would_leave_the_devices_out_is_told_so_with_the_versions(nri: Engine, plugin: Plugin) -> None:
    nri.start()
    plugin.due()
    connection = nri.accept()
    connection.sendall(engine.taken() + engine.configure(version="v1.7.24"))
    (event,) = plugin.ready()
    assert isinstance(event, Unsupported)
    assert "v1.7.24" in event.reason
    assert "1.7.30" in event.reason
    code, words, _ = engine.answers(connection.recv(4096))[1]
    assert (code, words) == (9, event.reason)


class Listener:
    """Listens to nothing."""

    def handle_event(self, event: Event | ConnectionLost) -> None:
        """Take what happened."""

    def patience(self) -> float | None:
        """Wait for the next event."""
        return None

    def due(self) -> None:
        """Do nothing."""


def test_it_stops_when_it_is_told_to(nri: Engine, plugin: Plugin) -> None:
    nri.start()
    connection = registered(nri, plugin)
    reader, writer = os.pipe()
    os.close(writer)
    with os.fdopen(reader):
        serve(plugin, Listener(), reader)
    assert connection.recv(1) == b""


def pauses(*, there: bool, count: int) -> list[float]:
    """Return the pauses between tries at a socket that stays as it is."""
    backoff, now, found = Backoff(), 0.0, []
    for _ in range(count):
        backoff.record_failure(now, "the socket", there=there)
        tried = now
        while not backoff.is_due(now, "the socket"):
            assert 0 < backoff.find_next_check() - now <= CHECK_SECONDS + 1e-6
            now = backoff.find_next_check()
        found.append(round(now - tried, 6))
    return found


def test_the_first_try_is_at_once() -> None:
    assert Backoff().is_due(0.0, "anything")


def test_where_nobody_listens_it_tries_fast_at_first_and_each_second_later() -> None:
    assert pauses(there=False, count=8) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_what_listens_and_is_of_no_use_is_tried_less_and_less() -> None:
    found = pauses(there=True, count=14)
    assert found[:4] == [0.05, 0.1, 0.2, 0.4]
    assert found[-2:] == [LONGEST_PAUSE, LONGEST_PAUSE]


def test_a_socket_that_was_made_anew_is_tried_at_the_next_look() -> None:
    backoff, now = Backoff(), 0.0
    for _ in range(20):
        backoff.record_failure(now, "old", there=True)
        now += LONGEST_PAUSE
    backoff.record_failure(now, "old", there=True)
    assert backoff.find_next_check() - now == CHECK_SECONDS
    assert not backoff.is_due(now + CHECK_SECONDS, "old")
    assert backoff.is_due(now + CHECK_SECONDS, "new")
    backoff.record_failure(now + CHECK_SECONDS, "new", there=True)
    assert backoff.find_next_check() == now + CHECK_SECONDS + FIRST_PAUSE


@given(st.floats(0, STEADY_SECONDS * 2))
def test_a_connection_that_was_good_for_a_while_is_made_again_at_once(served: float) -> None:
    backoff = Backoff()
    for _ in range(10):
        backoff.record_failure(0.0, "it", there=True)
    backoff.record_loss(100.0, 100.0 - served, "it")
    assert backoff.is_due(100.0 + FIRST_PAUSE, "it") == (100.0 - (100.0 - served) >= STEADY_SECONDS)
