"""Asks an engine every 10 ms whether it is there, and prints what became of each question; until its stdin ends.

    probe.py ask docker SOCKET      `GET /_ping`
    probe.py ask cri SOCKET         the CRI's Status (containerd, CRI-O)
    probe.py respond SOCKET         answers `GET /_ping` itself: what an engine that is never busy looks like

It is a program, and needs the standard library only, so that nothing that a test does delays a question. Each question
has a connection of its own: no back-off of a client's is taken for an engine that is away, and the process that answers
is known (its credentials come with its first bytes, also where systemd made the socket).

Printed is one line for each question, as it is answered: when it was due, was sent and was done (ns of
CLOCK_MONOTONIC), the process that answered (0: none), and why there was no answer, if there was none.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

PERIOD = 10_000_000
"""ns from one question to the next, where the first was answered in time."""
PATIENCE = 5.0
"""Seconds after which no answer is taken for none."""
_CREDENTIALS = struct.Struct("=iII")
_PING = b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n"
_PONG = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK"

Receive = Callable[[], bytes]


class NoAnswerError(Exception):
    """The engine is not there, or not able to answer; the message says how that shows."""


# --- the two protocols ---


def ping(receive: Receive) -> None:
    """Read the answer to `_PING`. Raises NoAnswerError."""
    said = b""
    while b"\r\n" not in said:
        more = receive()
        if not more:
            raise NoAnswerError("closed without an answer")
        said += more
    status = said.split(maxsplit=2)[1:2]
    if status != [b"200"]:
        raise NoAnswerError(f"answered {said[:40]!r}")


def _literal(name: bytes, value: bytes) -> bytes:
    """Return an HPACK field without indexing or compression (RFC 7541, 6.2.2): short ones only."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return an HTTP/2 frame (RFC 9113, 4.1)."""
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


_DATA, _HEADERS, _SETTINGS, _GOAWAY = 0, 1, 4, 7
_END_STREAM, _END_HEADERS = 1, 4
_STATUS = b"".join(
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        _frame(_SETTINGS, 0, 0, b""),
        _frame(
            _HEADERS,
            _END_HEADERS,
            1,
            b"".join(
                [
                    _literal(b":method", b"POST"),
                    _literal(b":scheme", b"http"),
                    _literal(b":path", b"/runtime.v1.RuntimeService/Status"),
                    _literal(b":authority", b"localhost"),
                    _literal(b"content-type", b"application/grpc"),
                    _literal(b"te", b"trailers"),
                ]
            ),
        ),
        _frame(_DATA, _END_STREAM, 1, bytes(5)),  # an empty message: not compressed, 0 bytes
    ]
)


def _frames(receive: Receive) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, flags, stream and content of each frame until the connection ends."""
    said = b""
    while more := receive():
        said += more
        while len(said) >= 9 and len(said) >= 9 + (length := int.from_bytes(said[:3], "big")):
            yield said[3], said[4], int.from_bytes(said[5:9], "big"), said[9 : 9 + length]
            said = said[9 + length :]


def cri_status(receive: Receive) -> None:
    """Read the answer to `_STATUS`: a message, then the end of the stream. Raises NoAnswerError.

    An error has no message: so answers containerd whose CRI plugin did not load, or is not ready yet.
    """
    answered = False
    for kind, flags, stream, content in _frames(receive):
        if kind == _GOAWAY:
            raise NoAnswerError("said that it goes away")
        if stream == 1 and kind == _DATA:
            answered = answered or len(content) > 5  # longer than gRPC's own prefix
        if stream == 1 and flags & _END_STREAM and kind in (_DATA, _HEADERS):
            if answered:
                return
            raise NoAnswerError("the CRI answered with an error")
    raise NoAnswerError("closed without an answer")


PROTOCOLS = {"docker": (_PING, ping), "cri": (_STATUS, cri_status)}


# --- asking ---


def ask(path: str, question: bytes, understand: Callable[[Receive], None]) -> tuple[int, str]:
    """Ask once. Return the process that answered, and why it is no answer, if it is none."""
    pid = 0
    deadline = time.monotonic() + PATIENCE

    def receive() -> bytes:
        nonlocal pid
        client.settimeout(max(deadline - time.monotonic(), 0.001))
        data, ancillary, _, _ = client.recvmsg(1 << 16, socket.CMSG_SPACE(_CREDENTIALS.size))
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0] or pid
        return data

    with socket.socket(socket.AF_UNIX) as client:
        # before it is connected, or the first bytes may come without
        client.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        client.settimeout(PATIENCE)
        try:
            client.connect(path)
            client.sendall(question)
            understand(receive)
        except TimeoutError:
            return 0, "no answer in time"
        except (OSError, NoAnswerError) as error:
            return 0, str(error).replace("\n", " ")
    return pid, ""


def _ask_until_told(kind: str, path: str) -> None:
    question, understand = PROTOCOLS[kind]
    tick = time.monotonic_ns()
    free = tick
    while not select.select([sys.stdin], [], [], max(tick - time.monotonic_ns(), 0) / 1e9)[0]:
        due, sent = max(tick, free), time.monotonic_ns()
        pid, failure = ask(path, question, understand)
        free = time.monotonic_ns()
        os.write(1, f"{due} {sent} {free} {pid} {failure}\n".encode())
        tick += PERIOD
        if tick < free:  # the next of its ticks: those that passed meanwhile are not made up for
            tick += -(-(free - tick) // PERIOD) * PERIOD


def _respond_until_told(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        while sys.stdin not in select.select([sys.stdin, server], [], [])[0]:
            client, _ = server.accept()
            with client:
                if client.recv(len(_PING)):
                    client.sendall(_PONG)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask", kind, path]:
            _ask_until_told(kind, path)
        case ["respond", path]:
            _respond_until_told(path)
        case _:
            sys.exit(__doc__)
