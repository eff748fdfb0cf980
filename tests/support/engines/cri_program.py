"""Queries CRI sockets, as a program of its own, so that grpc's threads stay out of the test process.

    cri_program.py [FLAG]       for each line on stdin, `[SOCKET, SECONDS, WHAT]`, one line on stdout, both JSON

It speaks the protocol by hand, field numbers as in k8s.io/cri-api `runtime/v1/api.proto`, so that a mistake in the
installer's own stubs cannot hide here. SECONDS is how long one call may take. With FLAG, which is a kubelet's, the
program goes by that name. WHAT is one of

- null: the verbose Status, as `conditions` (name to true or false), `handlers` (names; empty before containerd 2.0) and
  `config` (the CRI plugin's effective configuration), or `{"error": TEXT}`.
- a call: the method (of the RuntimeService where no other is named, as in `ImageService/PullImage`), the request as an
  object from field number to value (a string, a number, an object for a message, a list for a repeated field), and the
  numbers of the fields that lead to the message in the answer that is wanted. The answer is `{"fields": {NUMBER: TEXT,
  ...}}` with the last value of each field (a number as one character, which is enough for an exit code), or
  `{"error": TEXT}`.
- a list of chains of calls, which are begun at once: a chain is a method, its request, and the methods that are then
  called with the first answer's field 1, an id, as their own. The answer is a list: what the first call of each chain
  came to, or the first error.
"""

from __future__ import annotations

import concurrent.futures
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

_VERBOSE = b"\x08\x01"  # StatusRequest.verbose = true
# an engine that restarts is tried again at once: the tests wait for it
_AT_ONCE = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field; of a number its value as one byte, which is enough for a bool."""
    rest = iter(message)

    def varint() -> int:
        value, shift = 0, 0
        for byte in rest:
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        return value

    while tag := varint():
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, bytes([varint() & 0xFF])
        elif kind == 2:  # length-delimited
            length = varint()
            yield tag >> 3, bytes(next(rest) for _ in range(length))
        else:
            sys.exit(f"cri_program: wire type {kind} does not occur in a StatusResponse")


def status(channel: grpc.Channel, seconds: float) -> dict[str, object]:
    """Return what the CRI says of itself."""
    call = channel.unary_unary("/runtime.v1.RuntimeService/Status", request_serializer=None, response_deserializer=None)
    try:
        answer = call(_VERBOSE, timeout=seconds, wait_for_ready=True)
    except grpc.RpcError as error:
        return {"error": str(error)}
    conditions: dict[str, bool] = {}
    handlers: list[str] = []
    config: object = {}
    for number, content in fields(answer):
        if number == 1:  # status: its conditions
            for _, condition in fields(content):
                parts = dict(fields(condition))
                conditions[parts[1].decode()] = parts.get(2) == b"\x01"
        elif number == 2:  # info: one entry of the map
            entry = dict(fields(content))
            if entry[1] == b"config":
                config = json.loads(entry[2])
        elif number == 3:  # runtime_handlers
            handlers.append(dict(fields(content)).get(1, b"").decode())
    return {"conditions": conditions, "handlers": handlers, "config": config}


def message(content: dict[str, Any]) -> bytes:
    """Return a protobuf message."""
    return b"".join(
        _field(int(number), value)
        for number, values in content.items()
        for value in (values if isinstance(values, list) else [values])
    )


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = message(value) if isinstance(value, dict) else value.encode()
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    if number < 0x80:
        return bytes([number])
    return bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


def answer(
    channel: grpc.Channel, seconds: float, method: str, request: dict[str, Any], way: list[int]
) -> dict[str, Any]:
    """Return what the CRI answers."""
    path = f"/runtime.v1.{method if '/' in method else f'RuntimeService/{method}'}"
    call = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
    try:
        reply = call(message(request), timeout=seconds, wait_for_ready=True)
    except grpc.RpcError as error:
        return {"error": f"{method}: {error.code().name}: {error.details()}"}
    for step in way:
        reply = dict(fields(reply))[step]
    return {"fields": {number: content.decode(errors="replace") for number, content in fields(reply)}}


def chain(channel: grpc.Channel, seconds: float, method: str, request: dict[str, Any], *then: str) -> dict[str, Any]:
    """Make calls of which each needs the first one's id; return what that came to, or what went wrong."""
    told = answer(channel, seconds, method, request, [])
    for following in then:
        if "error" in told:
            break
        done = answer(channel, seconds, following, {"1": told["fields"][1]}, [])
        told = done if "error" in done else told
    return told


def together(channel: grpc.Channel, seconds: float, chains: list[list[Any]]) -> list[dict[str, Any]]:
    """Begin all of these at once, and return what each came to."""
    with concurrent.futures.ThreadPoolExecutor(len(chains)) as pool:
        return list(pool.map(lambda each: chain(channel, seconds, *each), chains))


def serve() -> None:
    """Answer the lines that come on stdin."""
    for line in sys.stdin:
        socket, seconds, what = json.loads(line)
        with grpc.insecure_channel(f"unix:{socket}", options=_AT_ONCE) as channel:
            told: object
            if what is None:
                told = status(channel, seconds)
            elif isinstance(what[0], list):
                told = together(channel, seconds, what)
            else:
                told = answer(channel, seconds, *what)
        print(json.dumps(told), flush=True)  # noqa: T201  # to the caller


if __name__ == "__main__":
    if sys.argv[1:]:  # a kubelet's
        Path("/proc/self/comm").write_text("kubelet")
    serve()
