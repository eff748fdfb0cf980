"""The fleet: many nodes, each with an engine that counts its reloads, and a run of the program with --cleanup auto.

Runs are started in batches, against one API server that counts what it is asked.
"""

from __future__ import annotations

import collections
import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.bench.counts import Count
from tests.node.engines import live, rules
from tests.node.sweeps.trees import taken
from tests.support import payloads
from tests.support.api_server import Server, serving, status
from tests.support.fake_node import WAITING, FakeNode, Run, patiently

BATCH = 50
_AWAY_SECONDS = 60
_RESOURCES = {"daemonsets": "DaemonSet", "namespaces": "Namespace", "nodes": "Node", "selfsubjectreviews": "review"}


class _Counting(live._Dockerd):
    """A dockerd that notes each SIGHUP in a file beside its socket."""

    def _reload(self, *frames: object) -> None:
        with (self.config.parents[2] / "run" / "reloads").open("a") as file:
            file.write("1")
        super()._reload(*frames)


class Fleet:
    """The nodes, of which a batch is on at a time."""

    def __init__(self, folder: Path, server: Server, nodes: int, batch: int = BATCH) -> None:
        self.server = server
        payload = payloads.build(folder / "fleet-payload")
        self.nodes = []
        self._batch = batch
        for number in range(nodes):
            root = folder / f"fleet/{number}"
            for name in ("etc/docker", "run", "usr/local"):
                (root / name).mkdir(parents=True)
            (root / "var").mkdir()
            (root / "var/run").symlink_to("/run")
            (root / "etc/docker/daemon.json").write_text('{\n  "log-driver": "json-file"\n}\n')
            self.nodes.append(FakeNode(root, payload))

    def passed(self, name: str, nodes: list[FakeNode] | None = None) -> dict[str, Any]:
        """Start a run on each node, have it wait, and tell it to stop; return what that came to."""
        nodes = self.nodes if nodes is None else nodes
        asked, reloads, outcomes = len(self.server.cluster.asked), 0, collections.Counter[str]()
        spent = 0.0
        for start in range(0, len(nodes), self._batch):
            batch = nodes[start : start + self._batch]
            with _engines(batch):
                was, before = sum(map(_reloads, batch)), _spent()
                runs = [node.start(*self.server.flags) for node in batch]
                for run in runs:
                    patiently(run, WAITING)
                for run in runs:
                    run.process.terminate()
                outcomes.update(_outcome(run) for run in runs)
                spent += _spent() - before
                reloads += sum(map(_reloads, batch)) - was
        return {
            "name": name,
            "nodes": len(nodes),
            "reloads": reloads,
            "requests": _by_resource(self.server.cluster.asked[asked:], len(nodes)),
            "seconds": round(spent / len(nodes), 3),
            "outcome": ", ".join(f"{count} {text}" for text, count in sorted(outcomes.items())),
        }


def _outcome(run: Run) -> str:
    """Return in words how a run ended."""
    code = run.finish()
    run.close()
    return "stay configured" if code == 0 and "Leaving the node configured" in run.output else f"end with {code}"


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _reloads(node: FakeNode) -> int:
    file = node.place("/run/reloads")
    return len(file.read_text()) if file.exists() else 0


def _by_resource(paths: list[str], nodes: int) -> dict[str, float]:
    """Return how often each kind of object was asked for, a node."""
    kinds = (
        parts[-2] if len(parts) > 4 and parts[-1] != "selfsubjectreviews" else parts[-1] for parts in _split(paths)
    )
    return {_RESOURCES[kind]: round(count / nodes, 2) for kind, count in collections.Counter(kinds).items()}


def _split(paths: list[str]) -> Iterator[list[str]]:
    return (path.split("/") for path in paths)


@contextlib.contextmanager
def _engines(nodes: list[FakeNode]) -> Iterator[None]:
    """Have each node's dockerd run: it serves what its file says when it starts."""
    started = []
    try:
        with mock.patch.object(live, "_Dockerd", _Counting):
            for node in nodes:
                node.place(live.SOCKET).unlink(missing_ok=True)
                engine = live.FakeDockerd(node)
                engine.put(rules.started("docker", taken(node)))
                started.append(engine)
        yield
    finally:
        for engine in started:
            engine.close()


def _come_back(server: Server) -> threading.Thread:
    server.socket = socket.create_server(server.server_address[:2], backlog=128)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    return thread


def _back_after(server: Server) -> None:
    time.sleep(_AWAY_SECONDS)
    _come_back(server)


def measured(folder: Path, nodes: int) -> dict[str, Any]:
    """Return what each scenario came to; in the last two, of one batch."""
    with serving(folder) as server:
        server.socket.listen(128)
        fleet = Fleet(folder, server, nodes)
        found = [fleet.passed("cold start"), fleet.passed("rolling update, nothing changed")]
        few = fleet.nodes[:BATCH]
        server.cluster.sick = (429, _sick())
        found.append(fleet.passed("update, the API server answers 429", few))
        server.cluster.sick = None
        server.shutdown()
        server.server_close()
        waiting = threading.Thread(target=_back_after, args=(server,))
        waiting.start()
        found.append(fleet.passed(f"update, the API server is away for {_AWAY_SECONDS} s", few))
        waiting.join()
        found.append(fleet.passed("update, once it is back", few))
    return {"batch": min(BATCH, nodes), "scenarios": found}


def _sick() -> str:
    return json.dumps(status(429, "TooManyRequests", "the server has received too many requests"))


_ASKED = 6
"""Requests of a node: three at its start and three at its end."""


def counts(folder: Path) -> list[Count]:
    """Count what a small fleet asks and reloads: once to install, never in an update that changes nothing."""
    with serving(folder) as server:
        fleet = Fleet(folder, server, 4)
        first, second = fleet.passed("cold start"), fleet.passed("update")
    return [
        Count("cold start: engine reloads of 4 nodes", first["reloads"], 4),
        Count("cold start: API requests a node", sum(first["requests"].values()), _ASKED),
        Count("update: engine reloads of 4 nodes", second["reloads"], 0),
        Count("update: API requests a node", sum(second["requests"].values()), _ASKED),
    ]
