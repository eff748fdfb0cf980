"""Figures of the NRI plugin on a live containerd, while a hundred containers start at once that ask for nothing.

What the engine waits for is measured between the two, from the last piece of a question to the first of its answer:
how soon the plugin gets a processor beside a hundred starts, and how long it works. The engine counts more: when its
own threads get one again. That is the same for any plugin, and so the peer's stands beside it.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.idling import free_port, waiting
from tests.bench.made_node import Node
from tests.e2e.nri import made
from tests.e2e.nri.plugins import Peer, Recorder
from tests.support.built import go_tools
from tests.support.engines import cgroups, containers
from tests.support.engines.containers import PodContainers
from tests.support.engines.daemons import ContainerdEngine

COUNT = 100
ROUNDS = 2
_GOAL = 2.0
_BEGINNING = 2
"""Answers that are no container's: Configure and Synchronize."""
_METRICS = """
[metrics]
address = "127.0.0.1:@PORT@"
"""
_COUNTED = re.compile(
    r'^containerd_nri_plugin_latency_seconds_(sum|count)\{operation="CreateContainer",plugin="[^"]*"\} (\S+)$',
    re.MULTILINE,
)


class MissedError(Exception):
    """The engine did not ask about each container, or had no answer."""


def missing() -> str:
    """Return why these figures cannot be measured here; empty: they can."""
    if os.geteuid() != 0:
        return "an engine is started as root"
    absent = [*ContainerdEngine.missing(), *containers.missing()]
    return f"not installed: {', '.join(absent)}" if absent else ""


class _Burst:
    """A live engine, and how long it waited for each answer."""

    def __init__(self, engine: ContainerdEngine, pods: PodContainers, port: int) -> None:
        self._engine = engine
        self._pods = pods
        self._port = port

    def waits(
        self, name: str, path: Path, plugin: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> list[float]:
        """Start containers beside a plugin that connects to `path`; return milliseconds. Raises MissedError.

        They stay until the end, and do nothing: to delete them takes longer than all the rest.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with Recorder(made.nri(self._engine), path) as recorder, plugin():
            recorder.wait_for(_BEGINNING)
            self._pods.start_at_once(name, COUNT)
            waits = recorder.waits()[_BEGINNING:]
            if len(waits) != COUNT or not recorder.connected():
                raise MissedError(f"{len(waits)} answers for {COUNT} containers")
        return [1000 * each for each in waits]

    def counted(self) -> tuple[float, int]:
        """Return what the engine itself has counted so far: seconds, and answers."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)) as connection:
            connection.request("GET", "/v1/metrics")
            found = _COUNTED.findall(connection.getresponse().read().decode())
        return sum(float(value) for kind, value in found if kind == "sum"), sum(
            int(value) for kind, value in found if kind == "count"
        )


@contextlib.contextmanager
def _engine(folder: Path) -> Iterator[_Burst]:
    """Start containerd with NRI, the newest."""
    port = free_port()
    with (
        ContainerdEngine(folder, None, go_tools.build(go_tools.CONTAINERD)) as engine,
        cgroups.group() as group,
    ):
        folder.mkdir(mode=0o700)
        made.specify(folder / "cdi")
        text = (made.CONTAINERD + _METRICS).replace("@FOLDER@", str(folder)).replace("@PORT@", str(port))
        engine.config.write_text(text)
        engine.start()
        with PodContainers(engine, group) as pods:
            yield _Burst(engine, pods, port)


def figures(folder: Path, payload: Path, program: Path) -> list[Figure]:
    """Measure ours and the peer's in turn. Raises MissedError."""
    node = Node(folder / "burst", payload)
    flags = ("--enable-nri-plugin", "--nri-namespace", "gpu-operator", "--nri-socket", "/run/nri/nri.sock")
    ours = node.command("run", "--cleanup", "never", *flags)
    at, at_peers = node.folder / "run/nri/nri.sock", folder / "burst-peer.sock"
    plugins: dict[str, tuple[Path, Callable[[], contextlib.AbstractContextManager[object]]]] = {
        "ours": (at, lambda: waiting(ours, "Waiting for signal")),
        "theirs": (at_peers, lambda: Peer(program, at_peers, folder, payload)),
    }
    waits: dict[str, list[float]] = {name: [] for name in plugins}
    means: dict[str, list[float]] = {name: [] for name in plugins}
    with _engine(folder / "engine") as burst:
        for number in range(ROUNDS):
            for name, (path, plugin) in plugins.items():
                seconds, count = burst.counted()
                waits[name] += burst.waits(f"{name}-{number}", path, plugin)
                now, by_now = burst.counted()
                means[name].append(1000 * (now - seconds) / (by_now - count))
    last = {name: statistics.quantiles(each, n=100)[-1] for name, each in waits.items()}
    mean = {name: statistics.mean(each) for name, each in means.items()}
    return [
        Figure(f"NRI, {COUNT} at once: 99th percentile", "ms", last["ours"], last["theirs"], _GOAL),
        Figure(f"NRI, {COUNT} at once: engine's mean", "ms", mean["ours"], mean["theirs"]),
    ]
