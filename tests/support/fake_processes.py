"""Processes that are on a made node as its own: with its `/`, a name, a command line, files and sockets."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support import wiping

_PLAYER = Path(__file__).with_name("fake_process.py")


@contextlib.contextmanager
def process(  # what a process shows of itself
    root: Path,
    name: str,
    *arguments: str,
    user: int = 0,
    wiped: str | None = None,
    opens: Sequence[str] = (),
    listens: Sequence[str] = (),
    folder: str = "/",
) -> Iterator[int]:
    """Play a process of that name whose command line ends with `arguments`; yield its PID. Needs root, for chroot.

    `wiped`: what is left of its command line once it has wiped that. It has the files `opens` open, and listens on the
    sockets `listens` without ever answering, and works in `folder`: each by the node's path.
    """
    command = [sys.executable, "-I", str(_PLAYER), str(root), name, str(user), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as player:
        try:
            assert player.stdin is not None
            assert player.stdout is not None
            more = {"opens": list(opens), "listens": list(listens), "folder": folder}
            player.stdin.write(json.dumps(more).encode() + b"\n")
            player.stdin.flush()
            assert player.stdout.readline() == b"ready\n"
            if wiped is not None:
                wiping.wipe(player.pid, wiped)
            yield player.pid
        finally:
            player.kill()
