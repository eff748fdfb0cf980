"""Asks a CRI socket for its verbose Status and prints it as JSON: `cri_status.py SOCKET SECONDS`.

It is a program so that grpc's threads stay out of the test process. It speaks the protocol by hand, field numbers as in
k8s.io/cri-api `runtime/v1/api.proto`, so that a mistake in the installer's own stubs cannot hide here.

Printed: `conditions` (name to true or false), `handlers` (names; empty before containerd 2.0) and `config` (the CRI
plugin's effective configuration). Exit code 1 and the reason on stderr when there was no answer in time.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

VERBOSE = b"\x08\x01"  # StatusRequest.verbose = true


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
            sys.exit(f"cri_status: wire type {kind} does not occur in a StatusResponse")


def status(socket: str, seconds: float) -> dict[str, object]:
    """Return what the CRI at `socket` says of itself within `seconds`. Raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        ask = channel.unary_unary(
            "/runtime.v1.RuntimeService/Status", request_serializer=None, response_deserializer=None
        )
        answer = ask(VERBOSE, timeout=seconds, wait_for_ready=True)
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


if __name__ == "__main__":
    try:
        print(json.dumps(status(sys.argv[1], float(sys.argv[2]))))  # noqa: T201 - this program's answer
    except grpc.RpcError as error:
        sys.exit(f"cri_status: {error}")
