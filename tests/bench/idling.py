"""Figures of waiting: the memory that is the process's own share (PSS), and how often it wakes up."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.made_node import Node
from tests.bench.peer import Peer

_SETTLED_SECONDS = 120
_WATCHED_SECONDS = 65


def _pss(pid: int) -> float:
    """Return megabytes (proc_pid_smaps(5))."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)[0]) / 1000


def _sleeps(pid: int) -> int:
    """Return how often all of its threads went to sleep so far (proc_pid_status(5))."""
    texts = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)


@contextlib.contextmanager
def _waiting(command: list[str], said: str) -> Iterator[int]:
    """Start a program and give its process once it has said that it waits; it is told to stop at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            if not any(said in line for line in process.stdout):
                raise RuntimeError(f"{command} ended and never said {said!r}")
            deadline = time.monotonic() + _SETTLED_SECONDS
            while Path(f"/proc/{process.pid}/comm").read_text().startswith("toolkit-") and time.monotonic() < deadline:
                time.sleep(0.1)  # until it has become the idle process
            time.sleep(2)
            yield process.pid
        finally:
            process.terminate()
            process.communicate()


def figures(folder: Path, payload: Path, program: Path) -> list[Figure]:
    """Watch ours and the peer for the same minute."""
    node = Node(folder / "idle-ours", payload)
    peer = Peer(program, Node(folder / "idle-theirs", payload))
    ours = node.command("run", "--cleanup", "never")
    with _waiting(ours, "Waiting for signal") as one, _waiting(peer.command(), "Waiting for signal") as other:
        before = [_sleeps(pid) for pid in (one, other)]
        time.sleep(_WATCHED_SECONDS)
        woken = [(_sleeps(pid) - was) * 60 / _WATCHED_SECONDS for pid, was in zip((one, other), before, strict=True)]
        memory = [_pss(pid) for pid in (one, other)]
    return [
        Figure("idle: PSS", "MB", memory[0], memory[1], 4.9),
        Figure("idle: wake-ups", "a minute", woken[0], woken[1]),
    ]
