"""Calls a CRI socket: `cri_call.py SOCKET [SECONDS [FLAG]]`, one call a line on stdin, one answer a line on stdout.

It is a program so that grpc's threads stay out of the test process. A call is a JSON list: the method (of the
RuntimeService where no other is named, as in `ImageService/PullImage`), the request as an object from field number to
value (a string, a number, an object for a message, a list for a repeated field; numbers as in k8s.io/cri-api
`runtime/v1/api.proto`), and the numbers of the fields that lead to the message in the answer that is wanted. An answer
is `{"fields": {NUMBER: TEXT, ...}}` with the last value of each field (a number as one character, which is enough for
an exit code), or `{"error": TEXT}`. SECONDS is how long one call may take. With
FLAG, which is a kubelet's, it goes by that name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grpc
from cri_status import fields

_SECONDS = 60.0


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


if __name__ == "__main__":
    # an engine that restarts is tried again at once: the tests wait for it
    options = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200))
    limit = float(sys.argv[2]) if sys.argv[2:] else _SECONDS
    if sys.argv[3:]:  # a kubelet's flag
        Path("/proc/self/comm").write_text("kubelet")
    with grpc.insecure_channel(f"unix:{sys.argv[1]}", options=options) as channel:
        for line in sys.stdin:
            print(json.dumps(answer(channel, limit, *json.loads(line))), flush=True)  # noqa: T201 - this program's answer
