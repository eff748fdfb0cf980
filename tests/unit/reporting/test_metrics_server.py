"""The process that answers over HTTP, by its own sockets: however somebody asks, the run is heard, and others are."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from toolkit_installer.reporting import metrics_server, metrics_text
from toolkit_installer.reporting.metrics_server import MetricsServer, ServedStatus, respond
from toolkit_installer.reporting.metrics_text import Metrics

METRICS = metrics_text.format_text(Metrics(ready=True)).encode()
MANY = 1000


class Asked:
    """An endpoint, what tells it, and whoever asks it; all in this process, step by step."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=metrics_server._OPEN)
        self.address = self.listener.getsockname()
        self.run, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.clients: list[socket.socket] = []
        self.endpoint = MetricsServer(os.dup(self.listener.fileno()), channel.detach())

    def close(self) -> None:
        for each in (*self.clients, self.listener, self.run):
            each.close()
        for fd in (*self.endpoint._open, self.endpoint._channel):
            os.close(fd)
        self.endpoint._listener.close()
        self.endpoint._poll.close()

    def say(self, ready: bytes, why: bytes = b"", metrics: bytes = METRICS) -> None:
        self.run.send(b"\0".join((ready, why, metrics)))
        assert self.endpoint.step()

    def connect(self, said: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.address)
        self.clients.append(client)
        self.endpoint.step()
        client.sendall(said)
        return client

    def ask(self, request: bytes) -> tuple[str, dict[str, str], bytes]:
        client = self.connect(request)
        return parsed(self.all_of(client))

    def all_of(self, client: socket.socket) -> bytes:
        """Return what a client gets until its connection is closed."""
        got = b""
        while self.endpoint._open:
            self.endpoint.step()
            with contextlib.suppress(BlockingIOError):
                while piece := client.recv(1 << 16, socket.MSG_DONTWAIT):
                    got += piece
        while piece := client.recv(1 << 16):
            got += piece
        return got


def parsed(said: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = said.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status.removeprefix("HTTP/1.1 "), dict(line.split(": ", 1) for line in lines), body


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.close()


def test_the_metrics_are_as_prometheus_reads_them(asked: Asked) -> None:
    asked.say(b"1")
    status, head, body = asked.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, body) == ("200 OK", METRICS)
    assert head["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert int(head["Content-Length"]) == len(body)
    assert head["Connection"] == "close"
    assert "toolkit_installer_ready" in {each.name for each in text_string_to_metric_families(body.decode())}


def test_a_node_of_which_nothing_is_known_is_not_ready_and_the_process_is_well(asked: Asked) -> None:
    assert asked.ask(b"GET /readyz HTTP/1.0\n\n")[::2] == (
        "503 Service Unavailable",
        b"nothing is known of the node yet\n",
    )
    assert asked.ask(b"GET /metrics HTTP/1.0\n\n")[::2] == ("200 OK", b"")
    assert asked.ask(b"GET /healthz?x=y HTTP/1.0\n\n")[::2] == ("200 OK", b"ok\n")


def test_a_run_that_leaves_says_so_and_its_last_metrics_do_not_say_ready(asked: Asked) -> None:
    asked.say(b"1", b"Serving: all")
    assert asked.ask(b"GET /readyz HTTP/1.1\r\n\r\n")[::2] == ("200 OK", b"Serving: all\n")
    asked.say(b"0", b"the run was told to stop", b"")
    status, _, body = asked.ask(b"GET /readyz HTTP/1.1\r\n\r\n")
    assert (status, body) == ("503 Service Unavailable", b"the run was told to stop\n")
    assert asked.ask(b"GET /metrics HTTP/1.1\r\n\r\n")[2] == metrics_text.format_text(Metrics(ready=False)).encode()


@pytest.mark.parametrize(
    "request_, status",
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET\r\n\r\n", "404 Not Found"),
        (b"GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", "405 Method Not Allowed"),
        (b"\r\n\r\n", "405 Method Not Allowed"),
        (b"\x16\x03\x01\x02\n\n", "405 Method Not Allowed"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (1 << 13), "431 Request Header Fields Too Large"),
    ],
    ids=lambda value: value[:24],
)
def test_what_is_not_understood_is_answered_all_the_same(asked: Asked, request_: bytes, status: str) -> None:
    assert asked.ask(request_)[0] == status
    assert asked.ask(b"GET /healthz HTTP/1.1\r\n\r\n")[0] == "200 OK"


def test_whoever_asks_for_the_head_alone_gets_no_more(asked: Asked) -> None:
    asked.say(b"1")
    _, head, body = asked.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (int(head["Content-Length"]), body) == (len(METRICS), b"")


def test_a_request_that_comes_byte_by_byte_is_answered(asked: Asked) -> None:
    client = asked.connect()
    for number in b"GET /healthz HTTP/1.1\r\n\r\n":
        client.sendall(bytes([number]))
        assert asked.endpoint.step()
    assert parsed(asked.all_of(client))[2] == b"ok\n"


def test_an_answer_that_does_not_fit_at_once_goes_on_when_it_is_read(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_SECONDS", 600.0)  # a busy machine takes longer than a connection may last
    large = b"#" * (1 << 24)
    asked.endpoint.status.metrics = large
    client = asked.connect(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert parsed(asked.all_of(client))[2] == large


def test_a_thousand_that_say_nothing_keep_nobody_out(asked: Asked) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * MANY + soft), hard))
    try:
        for _ in range(MANY):
            asked.connect(b"GET /met")
        client = asked.connect(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert asked.endpoint.step()
        assert parsed(client.recv(1 << 16))[2] == b"ok\n"
        assert len(asked.endpoint._open) <= metrics_server._OPEN
        asked.say(b"1", b"Serving: all")
        assert asked.endpoint.status.ready
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_megabyte_of_headers_is_refused_after_the_first_of_it(asked: Asked) -> None:
    client = asked.connect(b"GET /metrics HTTP/1.1\r\n")
    line = b"X: " + b"x" * 1020 + b"\r\n"
    sent = 0
    with contextlib.suppress(ConnectionError):
        while asked.endpoint._open:
            with contextlib.suppress(BlockingIOError):
                sent += client.send(line, socket.MSG_DONTWAIT)
            asked.endpoint.step()
        while sent < 1 << 20:
            sent += client.send(line)
    assert sent < 1 << 20


def test_a_connection_whose_time_is_over_is_closed(asked: Asked) -> None:
    client = asked.connect(b"GET /met")
    (connection,) = asked.endpoint._open.values()
    connection.until = 0.0
    assert asked.all_of(client) == b""
    assert not asked.endpoint._open


def test_whoever_goes_away_is_forgotten(asked: Asked) -> None:
    asked.connect(b"GET /met").close()
    while asked.endpoint._open:
        assert asked.endpoint.step()
    asked.endpoint.status.metrics = b"#" * (1 << 22)
    asked.connect(b"GET /metrics HTTP/1.1\r\n\r\n").close()
    while asked.endpoint._open:
        assert asked.endpoint.step()


def test_it_says_of_each_packet_that_it_heard_it(asked: Asked) -> None:
    for ready in (b"0", b"1"):
        asked.say(ready)
        assert asked.run.recv(metrics_server.MAX_PACKET) == metrics_server.READY


def test_it_ends_with_a_run_that_did_not_wait_for_its_word(asked: Asked) -> None:
    asked.say(b"1")
    asked.run.close()
    assert not asked.endpoint.step()


def test_it_ends_with_the_run(asked: Asked) -> None:
    asked.run.close()
    assert not asked.endpoint.step()


def test_a_machine_without_descriptors_keeps_whoever_connects_waiting(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_PAUSE", 0.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.create_connection(asked.address)
    asked.clients.append(client)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    kept = []
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    try:
        assert asked.endpoint.step()
        assert not asked.endpoint._open
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in kept:
            os.close(fd)
    assert asked.endpoint.step()
    client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert parsed(asked.all_of(client))[2] == b"ok\n"


@given(request_=st.binary(max_size=2 * metrics_server._HEAD))
def test_every_request_has_an_answer_of_which_the_length_is_told(request_: bytes) -> None:
    told = ServedStatus()
    told.store(b"1\0why\0" + METRICS)
    status, head, body = parsed(respond(request_, told))
    assert status[:3] in {"200", "404", "405", "431"}
    assert int(head["Content-Length"]) == len(body) or (not body and request_.startswith(b"HEAD"))
