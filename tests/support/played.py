"""Processes that are on a made node as its own: with its `/`, a name, and a command line."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PLAYER = """
import ctypes, os, sys
os.chroot(sys.argv[1])
os.chdir("/")
user = int(sys.argv[3])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)  # PR_SET_NAME
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process(root: Path, name: str, *arguments: str, user: int = 0) -> Iterator[int]:
    """Play a process of that name whose command line ends with `arguments`; yield its PID. Needs root, for chroot."""
    command = [sys.executable, "-I", "-c", _PLAYER, str(root), name, str(user), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as player:
        try:
            assert player.stdout is not None
            assert player.stdout.readline() == b"ready\n"
            yield player.pid
        finally:
            player.kill()
