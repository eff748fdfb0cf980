"""Figures of waiting: the memory that is the process's own share (PSS), and how often it wakes up."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.made_node import Node
from tests.bench.peer import Peer
from tests.unit.nri.nri_engine import NriEngine

_SETTLED_SECONDS = 120
_WATCHED_SECONDS = 65
_REQUESTS = 200
_QUESTIONS = 1000
_BARE = """
import socket, sys
body = sys.argv[1].encode()
answer = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n%s" % (len(body), body)
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        client, _ = server.accept()
        with client:
            client.recv(8192)
            client.sendall(answer)
"""
"""The least that a server in Python does: whatever it is asked, it says the same, to one after the other."""


def _pss(pid: int) -> float:
    """Return megabytes (proc_pid_smaps(5))."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)[0]) / 1000


def _sleeps(pid: int) -> int:
    """Return how often all of its threads went to sleep so far (proc_pid_status(5))."""
    texts = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def _with_children(pid: int) -> list[int]:
    """Return a process and those that it started."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _answer(port: int) -> str:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def _answered(port: int) -> float:
    """Return how many milliseconds an answer takes, from connecting to its end."""
    began = time.perf_counter()
    _answer(port)
    return (time.perf_counter() - began) * 1000


@contextlib.contextmanager
def _bare(body: str) -> Iterator[int]:
    """Start a server that only says `body`, and give its port."""
    command = [sys.executable, "-I", "-S", "-c", _BARE, body]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextlib.contextmanager
def waiting(command: list[str], said: str) -> Iterator[int]:
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
    with waiting(ours, "Waiting for signal") as one, waiting(peer.command(), "Waiting for signal") as other:
        before = [_sleeps(pid) for pid in (one, other)]
        time.sleep(_WATCHED_SECONDS)
        woken = [(_sleeps(pid) - was) * 60 / _WATCHED_SECONDS for pid, was in zip((one, other), before, strict=True)]
        memory = [_pss(pid) for pid in (one, other)]
    return [
        Figure("idle: PSS", "MB", memory[0], memory[1], 4.9),
        Figure("idle: wake-ups", "a minute", woken[0], woken[1]),
        *_served(Node(folder / "idle-served", payload), memory[1]),
        *_plugged(Node(folder / "idle-plugged", payload), memory[1]),
    ]


def _served(node: Node, theirs: float) -> list[Figure]:
    """Watch ours with metrics, alone: what two processes have in common counts half for each."""
    port = free_port()
    command = node.command("run", "--cleanup", "never", "--metrics-address", f"127.0.0.1:{port}")
    with waiting(command, "Waiting for signal") as pid:
        memory = sum(map(_pss, _with_children(pid)))
        with _bare(_answer(port)) as bare:
            answered = [(_answered(port), _answered(bare)) for _ in range(_REQUESTS)]
    ours, least = map(statistics.median, zip(*answered, strict=True))
    return [
        Figure("idle, metrics served: PSS", "MB", memory, theirs, 10.7),
        Figure("metrics: an answer", "ms", ours, None, 10.0),
        Figure("metrics: over a bare server", "x", ours / least),
    ]


def _plugged(node: Node, theirs: float) -> list[Figure]:
    """Watch ours with the NRI plugin, alone likewise, beside an engine that asks about containers without annotations.

    The peer serves its plugin by threads of the process that waits, which has that memory without one.
    """
    with NriEngine(node.folder / "run/nri/nri.sock") as engine:
        flags = ("--enable-nri-plugin", "--nri-namespace", "gpu-operator", "--nri-socket", "/run/nri/nri.sock")
        with waiting(node.command("run", "--cleanup", "never", *flags), "Waiting for signal") as pid:
            every = _with_children(pid)
            before = sum(map(_sleeps, every))
            time.sleep(_WATCHED_SECONDS)
            woken = (sum(map(_sleeps, every)) - before) * 60 / _WATCHED_SECONDS
            memory = sum(map(_pss, every))
            asked = [_asked(engine) for _ in range(_QUESTIONS)]
    return [
        Figure("idle, NRI plugin served: PSS", "MB", memory, theirs),
        Figure("idle, NRI plugin served: wake-ups", "a minute", woken),
        Figure("NRI: an answer, 99th percentile", "ms", statistics.quantiles(asked, n=100)[-1], None, 2.0),
    ]


def _asked(engine: NriEngine) -> float:
    """Return how many milliseconds the engine waits for an answer."""
    began = time.perf_counter()
    engine.ask("default", {})
    return (time.perf_counter() - began) * 1000
