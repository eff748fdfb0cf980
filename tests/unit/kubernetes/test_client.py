"""Answers of a hostile API server, or of whatever answers in its place: none costs memory, time or the run."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import NAMESPACE, NODE_PATH, TOKEN, Server, real, serving, status
from toolkit_installer.kubernetes.client import ApiResponse, ApiServer, _parse_date

SECONDS = 30.0
"""More than any answer takes that ends."""
SHORT = 1.0
_PIECE = 1 << 16
_MOST = 24 << 20
"""Bytes that an answer may have sent before the client hangs up: its own limit, and what the kernel holds."""
OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n\r\n"
Say = Callable[[ssl.SSLSocket], int]


@contextlib.contextmanager
def saying(folder: Path, say: Say) -> Iterator[tuple[ApiServer, list[int]]]:
    """Yield an API server that answers each request by `say`, and how many bytes each answer had."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text(NAMESPACE)
    sent: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):  # it was shut down
                while True:
                    accepted, _ = listening.accept()
                    with accepted, contextlib.suppress(OSError):  # the client may hang up whenever it likes
                        connection = context.wrap_socket(accepted, server_side=True)
                        with connection:
                            connection.settimeout(5)
                            connection.recv(_PIECE)
                            sent.append(say(connection))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield ApiServer("127.0.0.1", listening.getsockname()[1], str(folder)), sent
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    assert not thread.is_alive()


def once(answer: bytes) -> Say:
    """Return what sends this answer, and hangs up."""

    def say(connection: ssl.SSLSocket) -> int:
        connection.sendall(answer)
        return len(answer)

    return say


def endless(head: bytes, piece: bytes) -> Say:
    """Return what sends the head, and then the piece until the client hangs up; of 4 GiB that is given up."""
    content = piece * (_PIECE // len(piece))

    def say(connection: ssl.SSLSocket) -> int:
        number = 0
        try:
            connection.sendall(head)
            while number < 1 << 32:
                connection.sendall(content)
                number += len(content)
        except OSError:
            pass
        return number

    return say


@pytest.mark.parametrize(
    "head, piece",
    [
        (b"", b"HTTP/1.1 "),
        (OK, b"X-Header: x\r\n"),
        (OK + b"X: ", b"x"),
        (OK + JSON, b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n" + JSON, b"1"),
        (OK + b"Transfer-Encoding: chunked\r\n" + JSON + b"1;", b"x"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", b"x"),
        (b"HTTP/1.1 404 Not Found\r\n" + JSON, b"x"),
    ],
    ids=["status", "headers", "one header", "body", "chunk's size", "chunk's extension", "redirect", "error"],
)
def test_an_answer_without_an_end_is_hung_up_on(tmp_path: Path, head: bytes, piece: bytes) -> None:
    with saying(tmp_path, endless(head, piece)) as (api, sent):
        answer = api.get(NODE_PATH, SECONDS)
    assert answer.body == {}
    assert sent[0] < _MOST, "it was read to the limit of time"


@pytest.mark.parametrize(
    "head, piece",
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n" + JSON + b"0\r\n", b"X: x\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n" + JSON, b"1\r\nx\r\n"),
    ],
    ids=["continue", "trailers", "chunks of one byte"],
)
def test_words_without_an_end_that_nobody_keeps_end_with_the_time(tmp_path: Path, head: bytes, piece: bytes) -> None:
    with saying(tmp_path, endless(head, piece)) as (api, _):
        began = time.monotonic()
        answer = api.get(NODE_PATH, SHORT)
        assert time.monotonic() - began < 5 * SHORT
    assert answer.body == {}


def test_a_compressed_answer_is_not_unpacked(tmp_path: Path) -> None:
    bomb = gzip.compress(json.dumps({"kind": "Node", "x": "x" * (1 << 20)}).encode())
    with saying(tmp_path, once(OK + b"Content-Encoding: gzip\r\n" + JSON + bomb)) as (api, _):
        answer = api.get(NODE_PATH, SECONDS)
    assert (answer.status, answer.body) == (200, {})
    assert "compressed" in answer.words


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0" * 100,
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 9999999 X\r\n\r\n{}",
        b"HTTP/1.1 -1 X\r\n\r\n{}",
        b"HTTP/1.1 abc X\r\n\r\n{}",
        b"HTTP/9.9 200 OK\r\n\r\n{}",
        OK + b"Content-Length: -1\r\n" + JSON + b"{}",
        OK + b"Content-Length: abc\r\n" + JSON + b"{}",
        OK + b"Content-Length: 1, 2\r\n" + JSON + b"{}",
        OK + b"Content-Length: 99\r\n" + JSON + b"{}",
        OK + b"Transfer-Encoding: chunked\r\n" + JSON + b"-1\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n" + JSON + b"ffffffffffffffffffff\r\n{}",
        OK + b"no header\r\n" + JSON + b"{}",
        OK + b"\xff\xfe: \xff\r\n" + JSON + b"{}",
        OK + b"Retry-After: " + b"9" * 60_000 + b"\r\n" + JSON + b"{}",
        OK + b"Date: " + b"9" * 60_000 + b"\r\n" + JSON + b"{}",
        OK + JSON + b"1" * 100_000,
        OK + JSON + b'{"metadata": ' + b"[" * 100_000,
        OK + JSON + b"\xff",
        OK + JSON + b'{"kind": 5, "message": ["x"]}',
        b"HTTP/1.1 302 Found\r\nLocation: http://[x\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\n\r\n",
    ],
    ids=lambda answer: repr(answer[:60]),
)
def test_whatever_an_answer_is_it_is_no_object_and_no_bug(tmp_path: Path, answer: bytes) -> None:
    with saying(tmp_path, once(answer)) as (api, _):
        found = api.get(NODE_PATH, SECONDS)
    assert found.body in ({}, {"kind": 5, "message": ["x"]})


def test_the_words_of_an_error_are_short_and_can_be_printed(tmp_path: Path) -> None:
    body = json.dumps({"kind": "Status", "message": "\ud800" + "x" * (1 << 20)}).encode()
    with saying(tmp_path, once(b"HTTP/1.1 403 Forbidden\r\n" + JSON + body)) as (api, _):
        answer = api.get(NODE_PATH, SECONDS)
    assert len(answer.words) <= 1024
    assert answer.words.encode()


@given(
    st.one_of(
        st.text(),
        st.lists(
            st.sampled_from(["Fri,", "1", "Jan", "2026", "10:11:12", "1.2.3.4", ":", "-", "+99999999", "GMT", " "])
        ).map(" ".join),
    )
)
def test_no_date_is_a_bug(text: str) -> None:
    found = _parse_date(text)
    assert found is None or isinstance(found, float)


def test_an_answer_about_another_object_is_none(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        other = real("node")
        other["metadata"]["name"] = "gpu-node-2"
        server.cluster.objects[NODE_PATH] = other
        answer = _get(server)
        assert (answer.status, answer.body) == (200, {})
        assert "another object" in answer.words


@pytest.mark.parametrize("metadata", [None, [], "x", {}, {"name": 5}], ids=str)
def test_an_object_without_a_name_is_none(tmp_path: Path, metadata: Any) -> None:
    with serving(tmp_path) as server:
        server.cluster.objects[NODE_PATH] = real("node") | {"metadata": metadata}
        assert _get(server).body == {}


@pytest.mark.parametrize("details", [None, {}, {"name": "gpu-node-2"}, [], {"name": ["gpu-node-1"]}], ids=str)
def test_what_does_not_exist_is_the_object_that_was_requested_or_nothing_is_known(tmp_path: Path, details: Any) -> None:
    with serving(tmp_path) as server:
        del server.cluster.objects[NODE_PATH]
        assert (_get(server).status, _get(server).kind) == (404, "Status")
        found = status(404, "NotFound", "the server could not find the requested resource") | {"details": details}
        server.cluster.sick = (404, json.dumps(found))
        answer = _get(server)
        assert (answer.status, answer.body) == (404, {})
        assert "another object" in answer.words


def _get(server: Server) -> ApiResponse:
    return ApiServer("127.0.0.1", server.port, str(server.account)).get(NODE_PATH, SECONDS)
