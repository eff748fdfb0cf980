"""Asks a CRI socket who it is and what it serves; run as a program of its own, because gRPC leaves threads behind.

    python -I -m toolkit_installer.node.cri.ask SOCKET-NAME SECONDS      (in the socket's folder)

prints one JSON object, or says on stderr what the engine said, and exits with 1.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc

from toolkit_installer.node.cri import runtime_pb2

_SERVICE = "/runtime.v1.RuntimeService"


def ask(target: str, seconds: float) -> dict[str, Any]:
    """Return version, conditions, handlers and verbose info of the CRI at `target`. Raises grpc.RpcError."""
    # some servers refuse the socket's path as the authority of an HTTP/2 request
    options = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20))
    with grpc.insecure_channel(target, options=options) as channel:
        version = channel.unary_unary(
            f"{_SERVICE}/Version",
            request_serializer=runtime_pb2.VersionRequest.SerializeToString,
            response_deserializer=runtime_pb2.VersionResponse.FromString,
        )(runtime_pb2.VersionRequest(), timeout=seconds)
        status = channel.unary_unary(
            f"{_SERVICE}/Status",
            request_serializer=runtime_pb2.StatusRequest.SerializeToString,
            response_deserializer=runtime_pb2.StatusResponse.FromString,
        )(runtime_pb2.StatusRequest(verbose=True), timeout=seconds)
    return {
        "name": version.runtime_name,
        "version": version.runtime_version,
        "conditions": {
            condition.type: {"ok": condition.status, "reason": condition.reason, "message": condition.message}
            for condition in status.status.conditions
        },
        "handlers": [handler.name for handler in status.runtime_handlers],
        "info": dict(status.info),
    }


def main() -> int:
    """Ask, print, and return the exit status."""
    name, seconds = sys.argv[1:]
    try:
        answer = ask(f"unix:{name}", float(seconds))
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)  # noqa: T201  # a program's own answer
        return 1
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
