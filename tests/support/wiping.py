"""Command lines wiped as k3s wipes them: one word remains, and the rest of the memory of the arguments is zeros.

k3s links a library for the titles of processes, whose initialisation does this to every program in k3s's one binary,
its containerd among them. Here it is done from outside, so that any program can be made to look so, a real engine too.
The library gives the program copies first, which cannot be done from outside: a Go program's own flags are gone then as
well, so that a dockerd which is signalled looks for its file at no path.
"""

from __future__ import annotations

from pathlib import Path

_START, _END = 45, 46
"""`arg_start` and `arg_end` among the fields after the name in proc_pid_stat(5)."""


def wipe(pid: int, left: str) -> None:
    """Wipe a process's command line but for the word `left`. Needs root, or a process of one's own."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_START]), int(fields[_END])
    content = left.encode()
    assert len(content) < end - start, "there is no room for it"
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(content.ljust(end - start, b"\0"))
