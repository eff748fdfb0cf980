"""A CRI socket that answers Version and Status and nothing else: `cri_socket.py SOCKET VERSION`.

It stands for a containerd of a version that the machine does not have, so that what depends on the version alone can be
tested. It lists no handler and shows no configuration. "ready" is printed once it listens.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path

if __name__ != "__main__":  # the program itself needs nothing of the tests
    from tests.node.engines import patience
    from tests.support import wiping

SERVICE = "runtime.v1.RuntimeService"


@contextlib.contextmanager
def answering(socket: Path, version: str, user: int = 0) -> Iterator[None]:
    """Answer on `socket` as a containerd of that version, from a process of its own, which becomes that user's.

    The program waits for the answer, see patience.
    """
    socket.parent.mkdir(parents=True, exist_ok=True)
    if user:
        os.chown(socket.parent, user, user)
    # in its folder: a socket's path must be short
    command = [sys.executable, __file__, socket.name, version, str(user)]
    with patience.with_engines(), subprocess.Popen(command, stdout=subprocess.PIPE, cwd=socket.parent) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield
        finally:
            server.kill()


@contextlib.contextmanager
def within(  # what a containerd shows of itself
    root: Path, socket: str, version: str, *arguments: str, wiped: bool = False, opens: Sequence[str] = ()
) -> Iterator[int]:
    """Answer on the node's `socket` from a process called containerd that has `root` for its `/`; yield its PID.

    `wiped`: it wipes its command line, which ends with `arguments` else. It has the node's files `opens` open. The
    program waits for the answer, see patience.
    """
    for path in (socket, *opens):
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, socket, version, "0", str(root), ",".join(opens), *arguments]
    with patience.with_engines(), subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            if wiped:
                wiping.wipe(server.pid, "containerd")
            yield server.pid
        finally:
            server.kill()


def text(number: int, value: str) -> bytes:
    """Return a field of a message, as protobuf writes it (short strings only)."""
    content = value.encode()
    return bytes([number << 3 | 2, len(content)]) + content


def serve(socket: str, version: str, user: int, root: str = "", opens: str = "") -> None:
    """Answer until the process is ended."""
    import grpc  # noqa: PLC0415  # it leaves threads behind: not in a process that imports this for `answering`

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    # VersionResponse: version, runtime_name, runtime_version, runtime_api_version; StatusResponse: nothing set
    answers = {"Version": text(1, "0.1.0") + text(2, "containerd") + text(3, version) + text(4, "v1"), "Status": b""}

    def handler(answer: bytes) -> grpc.RpcMethodHandler:
        reply: Callable[[object, object], bytes] = lambda _request, _context: answer  # noqa: E731
        return grpc.unary_unary_rpc_method_handler(reply)

    methods = {name: handler(answer) for name, answer in answers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    if user:
        os.setresuid(user, user, user)
    kept = []
    if root:
        os.chroot(root)
        os.chdir("/")
        kept = [os.open(path, os.O_RDWR | os.O_CREAT) for path in opens.split(",") if path]
        ctypes.CDLL(None).prctl(15, b"containerd", 0, 0, 0)  # PR_SET_NAME
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    print("ready", flush=True)  # noqa: T201  # to whoever started it
    server.wait_for_termination()
    for fd in kept:
        os.close(fd)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:6])
