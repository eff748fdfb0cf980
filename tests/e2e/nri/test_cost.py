"""What containers cost that ask the NRI plugin for nothing, a hundred of them started at once on a live containerd.

Counts and proportions; `make bench ARGS=--nri` tells the milliseconds.
"""

from __future__ import annotations

import collections
import os
from pathlib import Path

import pytest

from tests.e2e.nri.made import DOMAIN, devices, nri
from tests.e2e.nri.plugins import Recorder
from tests.e2e.nri.test_run import CONNECTED, HAS_GPU, processes, waiting
from tests.e2e.program import Installer
from tests.support.built.releases import Suite
from tests.support.engines.containers import PodContainers
from tests.support.engines.daemons import ContainerdEngine
from tests.unit.nri import engine as wire

pytestmark = pytest.mark.alone
"""A hundred containers that start keep a machine busy, and what else it does keeps the plugin waiting."""

COUNT = 100
QUIET = ("nri-lost", "nri-served-again", "nri-unserved", "nri-malformed", "not-ready-plugin", "nri-in-turn")


def scheduled(pid: int) -> tuple[int, int]:
    """Return how long a process has worked, and how long it was kept waiting for a processor: both in nanoseconds."""
    worked, kept, _ = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
    return worked, kept


@pytest.mark.parametrize("containerd", [None, Suite.SID], indirect=True)
def test_a_hundred_containers_at_once_cost_one_quick_answer_each(
    containerd: ContainerdEngine, pods: PodContainers, installer: Installer, payload: Path, folder: Path
) -> None:
    with Recorder(nri(containerd), folder / "recorder.sock") as recorder:
        run = waiting(installer, containerd, payload, "--nri-socket", recorder.path)
        recorder.wait_for(2)  # Configure and Synchronize
        (process,) = processes(run)
        before = scheduled(process)
        names = pods.start_at_once("crowd", COUNT)
        worked, kept = (after - was for after, was in zip(scheduled(process), before, strict=True))
        by_engine, by_plugin = bytes(recorder.by_engine), bytes(recorder.by_plugin)
        assert collections.Counter(wire.asked(by_engine)) == collections.Counter(names), (
            "one was missed, or asked twice"
        )
        assert wire.methods(by_engine) == {"Configure": 1, "Synchronize": 1, "CreateContainer": COUNT}
        assert wire.given(by_engine, by_plugin) == dict.fromkeys(names, (0, []))
        assert len(recorder.waits()) == len(wire.answers(by_plugin))
        assert recorder.connected()
        assert os.sched_getscheduler(process) == os.SCHED_RR | os.SCHED_RESET_ON_FORK
        assert kept < worked, "the containers' own start came before the answers that they wait for"
        pods.start("asks", "", of_pod={DOMAIN: "example.com/gpu=0"})
        assert devices(pods, "asks") == HAS_GPU
        assert run.terminate() == 0
    assert run.output.count(CONNECTED) == 1
    assert not [word for word in QUIET if word in run.output], run.output
