"""What fails while ordinary containers run: they run before, during and after, and new ones can be started."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e import sites
from tests.e2e.failing import DOWN, stop
from tests.e2e.file_states import state_of
from tests.e2e.sites import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.program import Installer
    from tests.e2e.sites import Site
    from tests.support.engines.daemons import ContainerdEngine, DockerEngine, Engine

INIT = "busybox"
"""What a container has as its PID 1."""
SIGNALLED = "pidfd_send_signal"
KILLS = 4
"""Spread evenly over the changes of an install, its first and its last one among them."""


@contextlib.contextmanager
def beside(site: Site) -> Iterator[Callable[[], None]]:
    """Yield what makes sure that an ordinary container can be entered, that was there before; so can a new one then."""
    site.containers.start("ordinary", "runc")

    def check() -> None:
        assert site.containers.enter("ordinary") == INIT

    check()
    yield check
    wait_for(site.engine.answers)
    check()
    site.containers.start("later", "runc")
    assert site.containers.enter("later") == INIT
    for name in ("later", "ordinary"):
        site.end(name)


@pytest.fixture
def lasting(docker: DockerEngine) -> DockerEngine:
    """Return a dockerd whose containers outlive it."""
    docker.stop()
    docker.config.write_text(json.dumps(json.loads(docker.config.read_bytes()) | {"live-restore": True}, indent=4))
    docker.start()
    return docker


@pytest.fixture(params=["lasting", "containerd"])
def node(request: pytest.FixtureRequest, cgroup: str, folder: Path, installer: Installer) -> Iterator[Site]:
    """Yield a node with containers, whose engine may be killed."""
    with sites.with_containers(folder, request.getfixturevalue(request.param), cgroup, installer) as made:
        yield made


def test_the_program_is_killed_at_each_phase(site: Site) -> None:
    before = state_of(site.engine.config)
    site.flags += ["--reload-budget", "100/600"]  # its limit has tests of its own
    site.install()  # what the first one makes for good, the later ones find
    site.uninstall()
    with site.stepped("run", "--no-daemon") as run:
        changes = len(list(run.moments()))
        assert run.finish() == 0, run.output
    site.uninstall()
    with beside(site) as check:
        for number in sorted({round(turn * (changes - 1) / (KILLS - 1)) for turn in range(KILLS)}):
            starts = site.engine.starts
            with site.stepped("run", "--no-daemon") as run:
                change = next(itertools.islice(run.moments(), number, None), None)
                assert change is not None, run.output
                run.kill()
            if SIGNALLED in run.trace:
                site.await_reload(starts)
            check()
            site.install()
            assert site.serves_us(), change
            check()
            site.uninstall()
            assert state_of(site.engine.config) == before, change


@pytest.mark.parametrize("node", ["containerd"], indirect=True)
def test_a_broken_file_of_somebody_elses_is_beside_ours(node: Site) -> None:
    broken = node.engine.folder / "site.toml"
    node.engine.config.write_text(
        node.engine.config.read_text().replace("version = 2", f'version = 2\nimports = ["{broken}"]')
    )
    broken.write_text("[plugins\n")
    before = state_of(node.engine.config)
    with beside(node) as check:
        run = node.installer.start("toolkit-installer", "run", "--no-daemon", *node.flags)
        assert run.finish() == 3, run.output
        assert str(broken) in run.output
        check()
        assert state_of(node.engine.config) == before
        assert not node.serves_us()
        broken.unlink()
        broken.touch()
        node.install()
        assert node.serves_us()
        check()
        node.uninstall()
        assert state_of(node.engine.config) == before


def test_the_engine_is_killed_amid_the_reload(node: Site) -> None:
    before = state_of(node.engine.config)
    with beside(node) as check:
        starts = node.engine.starts
        with node.stepped("run", "--no-daemon") as run:
            for change in run.moments():
                if SIGNALLED in change:
                    node.engine.kill()
                    wait_for(lambda: node.engine.starts > starts)
                    wait_for(node.engine.answers)
                    check()
            assert run.finish() == 0, run.output
        assert node.serves_us()
        check()
        node.uninstall()
        assert state_of(node.engine.config) == before


def test_the_engine_hangs_amid_the_reload(node: Site) -> None:
    before = state_of(node.engine.config)
    with beside(node) as check:
        with node.stepped("run", "--no-daemon", "--reload-timeout", "2") as run:
            stopped = 0
            for change in run.moments():
                if f'"{node.engine.config.name}"' in change and not stopped:
                    stopped = node.engine.pid
                    stop(stopped)
            code = run.finish()
        assert code == 6, run.output
        assert DOWN in run.output
        os.kill(stopped, signal.SIGCONT)
        wait_for(node.engine.answers)
        check()
        node.install()
        assert node.serves_us()
        check()
        node.uninstall()
        assert state_of(node.engine.config) == before


def test_the_engine_is_stopped(node: Site) -> None:
    before = state_of(node.engine.config)
    with beside(node) as check:
        node.supervisor.paused.set()
        node.engine.stop()
        node.install("--restart-mode", "none")
        node.supervisor.paused.clear()
        wait_for(node.engine.answers)
        assert node.serves_us()
        check()
        node.uninstall()
        assert state_of(node.engine.config) == before


@pytest.mark.parametrize("name", ["docker", "containerd"])
def test_the_disk_with_the_engines_file_is_full(
    name: str, request: pytest.FixtureRequest, cgroup: str, folder: Path, installer: Installer
) -> None:
    engine: DockerEngine | ContainerdEngine = request.getfixturevalue(name)
    with sites.with_containers(folder, _on_a_small_disk(engine), cgroup, installer) as site, beside(site) as check:
        before = state_of(engine.config)
        fill(engine.config.parent)
        run = site.installer.start("toolkit-installer", "run", "--no-daemon", *site.flags)
        assert run.finish() == 3, run.output
        assert "No space left on device" in run.output
        assert state_of(engine.config) == before
        assert not site.serves_us()
        check()

        empty(engine.config.parent)
        site.install()
        assert site.serves_us()
        check()

        installed = state_of(engine.config)
        fill(engine.config.parent)
        run = site.installer.start("toolkit-installer", "uninstall", *site.flags)
        assert run.finish() == 3, run.output
        assert "No space left on device" in run.output
        assert state_of(engine.config) == installed
        assert site.serves_us()
        check()

        empty(engine.config.parent)
        site.uninstall()
        assert state_of(engine.config) == before
        assert not site.serves_us()


def _on_a_small_disk(engine: DockerEngine | ContainerdEngine) -> Engine:
    """Have the engine's file on a disk of its own. It goes with what else the engine leaves."""
    engine.stop()
    disk = engine.folder / "etc"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    engine.config = Path(shutil.move(engine.config, disk))
    engine.start()
    return engine


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def empty(disk: Path) -> None:
    (disk / "filler").unlink()
