"""Processes that are on a made node as its own: with its `/`, a name, a command line, files and sockets."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support import wiping

_PLAYER = """
import ctypes, json, os, socket, sys
more = json.loads(sys.stdin.readline())
os.chroot(sys.argv[1])
os.chdir("/")
kept = []
for path in (*more["opens"], *more["listens"]):
    os.makedirs(os.path.dirname(path), exist_ok=True)
kept += [open(path, "a") for path in more["opens"]]
for path in more["listens"]:
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(path)
    kept[-1].listen()
user = int(sys.argv[3])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)  # PR_SET_NAME
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process(  # what a process shows of itself
    root: Path,
    name: str,
    *arguments: str,
    user: int = 0,
    wiped: str | None = None,
    opens: Sequence[str] = (),
    listens: Sequence[str] = (),
) -> Iterator[int]:
    """Play a process of that name whose command line ends with `arguments`; yield its PID. Needs root, for chroot.

    `wiped`: what is left of its command line once it has wiped that. It has the files `opens` open, and listens on the
    sockets `listens` without ever answering, each by the node's path.
    """
    command = [sys.executable, "-I", "-c", _PLAYER, str(root), name, str(user), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as player:
        try:
            assert player.stdin is not None
            assert player.stdout is not None
            player.stdin.write(json.dumps({"opens": list(opens), "listens": list(listens)}).encode() + b"\n")
            player.stdin.flush()
            assert player.stdout.readline() == b"ready\n"
            if wiped is not None:
                wiping.wipe(player.pid, wiped)
            yield player.pid
        finally:
            player.kill()
