"""A CRI socket that answers Version and Status and nothing else, from a process of its own (cri_server.py).

It stands for a containerd of a version that the machine does not have, so that what depends on the version alone can be
tested. It lists no handler and shows no configuration.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.node.engines import cri_queries, time_limits
from tests.support import coprocess, wiping

_PROGRAM = Path(__file__).with_name("cri_server.py")
_READY = b"ready\n"


@contextlib.contextmanager
def answering(socket: Path, version: str) -> Iterator[None]:
    """Answer on `socket` as a containerd of that version. The program waits for the answer, see time_limits."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    with (
        time_limits.with_engines(),
        cri_queries.forked_queries(),
        coprocess.borrow(sys.executable, _PROGRAM) as server,
    ):
        server.ask([str(socket.parent), socket.name, version])
        try:
            yield
        finally:
            server.ask([])


@contextlib.contextmanager
def answering_as_user(socket: Path, version: str, user: int) -> Iterator[None]:
    """Answer likewise from a process that becomes that user's."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    os.chown(socket.parent, user, user)
    # in its folder: a socket's path must be short
    command = [sys.executable, str(_PROGRAM), socket.name, version, str(user)]
    with time_limits.with_engines(), subprocess.Popen(command, stdout=subprocess.PIPE, cwd=socket.parent) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == _READY
            yield
        finally:
            server.kill()


@contextlib.contextmanager
def answering_within(  # what a containerd shows of itself
    root: Path, socket: str, version: str, *arguments: str, wiped: bool = False, opens: Sequence[str] = ()
) -> Iterator[int]:
    """Answer on the node's `socket` from a process called containerd that has `root` for its `/`; yield its PID.

    `wiped`: it wipes its command line, which ends with `arguments` else. It has the node's files `opens` open. The
    program waits for the answer, see time_limits.
    """
    for path in (socket, *opens):
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(_PROGRAM), socket, version, "0", str(root), ",".join(opens), *arguments]
    with time_limits.with_engines(), subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == _READY
            if wiped:
                wiping.wipe(server.pid, "containerd")
            yield server.pid
        finally:
            server.kill()
