"""Answers on CRI sockets, as a program of its own, so that grpc's threads stay out of the test process.

    cri_server.py                                    on one socket after the other, as stdin says
    cri_server.py SOCKET VERSION USER [ROOT OPENS]   on this one, as that user, and with ROOT as its `/`

A line on stdin is a JSON list: the folder of the next socket, its name and the version; or an empty one for its end,
after which the socket stays as one of an engine that was killed. It is answered by null once that is done. Where the
socket is an argument, "ready" is printed once it answers.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from concurrent import futures

import grpc

_SERVICE = "runtime.v1.RuntimeService"


def text(number: int, value: str) -> bytes:
    """Return a field of a message, as protobuf writes it (short strings only)."""
    content = value.encode()
    return bytes([number << 3 | 2, len(content)]) + content


def made(version: str) -> grpc.Server:
    """Return what answers as a containerd of that version."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    # VersionResponse: version, runtime_name, runtime_version, runtime_api_version; StatusResponse: nothing set
    answers = {"Version": text(1, "0.1.0") + text(2, "containerd") + text(3, version) + text(4, "v1"), "Status": b""}

    def handler(answer: bytes) -> grpc.RpcMethodHandler:
        reply: Callable[[object, object], bytes] = lambda _request, _context: answer  # noqa: E731
        return grpc.unary_unary_rpc_method_handler(reply)

    methods = {name: handler(answer) for name, answer in answers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    return server


def start(server: grpc.Server, name: str) -> None:
    """Have it answer on a socket."""
    server.add_insecure_port(f"unix:{name}")
    server.start()


def serve_one_after_the_other() -> None:
    """Answer on the sockets that stdin says, until it ends."""
    serving, name = None, ""
    for line in sys.stdin:
        match json.loads(line):
            case [folder, name, version]:
                os.chdir(folder)  # a socket's path must be short
                serving = made(version)
                start(serving, name)
            case _:
                assert serving is not None
                serving.stop(None).wait()
                if not os.path.lexists(name):
                    with socket.socket(socket.AF_UNIX) as left:
                        left.bind(name)
                os.chdir("/")
        print("null", flush=True)  # noqa: T201  # to whoever started it


def serve(name: str, version: str, user: int, root: str = "", opens: str = "") -> None:
    """Answer until the process is ended."""
    server = made(version)
    if user:
        os.setresuid(user, user, user)
    kept = []
    if root:
        os.chroot(root)
        os.chdir("/")
        kept = [os.open(path, os.O_RDWR | os.O_CREAT) for path in opens.split(",") if path]
        ctypes.CDLL(None).prctl(15, b"containerd", 0, 0, 0)  # PR_SET_NAME
    start(server, name)
    print("ready", flush=True)  # noqa: T201  # as above
    server.wait_for_termination()
    for fd in kept:
        os.close(fd)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        serve_one_after_the_other()
    else:
        serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:6])
