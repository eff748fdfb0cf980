"""The prober alone: engines that are there, frozen, killed, restarted, without a CRI; and a prober that is late."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.matrix.prober import Prober

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.engines.daemons import ContainerdEngine, DockerEngine

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
FROZEN = 0.5
"""Seconds: more than a live engine may take to answer."""


@pytest.fixture(params=["docker", "containerd"])
def engine(request: pytest.FixtureRequest) -> DockerEngine | ContainerdEngine:
    made: DockerEngine | ContainerdEngine = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def prober(engine: DockerEngine | ContainerdEngine, folder: Path) -> Iterator[Prober]:
    kind = "docker" if engine.name == "docker" else "cri"
    with Prober(kind, engine.socket, folder / "prober") as made:
        made.settle()
        yield made


def test_an_idle_engine_answers_every_question_and_is_known_by_its_process(
    engine: DockerEngine | ContainerdEngine, prober: Prober
) -> None:
    start = time.monotonic_ns()
    end = prober.settle(answers=20)
    told = prober.between(start, end)
    assert told.probes >= 20
    assert (told.failed, told.restarts, told.total) == (0, 0, 0)
    assert {sample.pid for sample in prober.samples if sample.sent >= start} == {engine.pid}


def test_a_frozen_engine_is_away_and_is_not_taken_for_restarted(
    engine: DockerEngine | ContainerdEngine, prober: Prober
) -> None:
    start = time.monotonic_ns()
    os.kill(engine.pid, signal.SIGSTOP)
    try:
        time.sleep(FROZEN)
    finally:
        os.kill(engine.pid, signal.SIGCONT)
    told = prober.between(start, prober.settle())
    assert (told.failed, told.restarts) == (0, 0)
    assert told.total > 1000 * FROZEN / 2


def test_an_engine_that_is_killed_and_started_is_one_restart_with_its_time_away(
    engine: DockerEngine | ContainerdEngine, prober: Prober
) -> None:
    start = time.monotonic_ns()
    engine.kill()
    engine.start()
    told = prober.between(start, prober.settle())
    assert told.restarts == 1
    assert told.failed > 0
    assert told.total == told.longest > 0
    start = time.monotonic_ns()
    engine.restart()
    assert prober.between(start, prober.settle()).restarts == 1


def test_a_prober_that_was_held_up_itself_blames_no_engine(prober: Prober) -> None:
    start = time.monotonic_ns()
    probing = prober.asking
    for process in probing:
        os.kill(process, signal.SIGSTOP)
    time.sleep(FROZEN)
    for process in probing:
        os.kill(process, signal.SIGCONT)
    told = prober.between(start, prober.settle())
    assert (told.failed, told.restarts, told.total) == (0, 0, 0)
    assert max(told.late, told.slowest) > 1000 * FROZEN / 2, "it was not held up, and this test proves nothing"


def test_a_containerd_without_its_cri_does_not_count_as_there(docker: DockerEngine, folder: Path) -> None:
    with Prober("cri", docker.containerd.socket, folder / "prober") as prober:
        started = time.monotonic()
        while not prober.samples:
            assert time.monotonic() < started + 60
            time.sleep(0.02)
        assert {sample.failure for sample in prober.samples} == {"the CRI answered with an error"}


def test_probers_end_with_tests_that_are_killed(folder: Path) -> None:
    script = f"""
        import os, pathlib, signal
        from tests.e2e.matrix.prober import Prober
        with Prober("docker", pathlib.Path({str(folder / "nobody")!r}), pathlib.Path({str(folder / "prober")!r})):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert (folder / "prober" / "control").stat().st_size, "it never asked"
    started = time.monotonic()
    while alive_with(str(folder / "prober")) or alive_with(str(folder / "nobody")):
        assert time.monotonic() < started + 60
        time.sleep(0.02)


def alive_with(text: str) -> list[int]:
    """Return the live processes that have a text in their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(text in word for word in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:  # it has ended meanwhile
            continue
    return found
