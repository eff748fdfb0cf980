"""The engine hangs, starts or is stopped when the installer comes, or dies of the signal that was asked for."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.failing import DOWN, HEARD, meanwhile, served, stopped, until
from tests.e2e.file_states import state_of
from tests.e2e.hosts.machine import HANDLERS

if TYPE_CHECKING:
    from tests.e2e.program import Installer, Program
    from tests.support.engines.daemons import ContainerdEngine, DockerEngine, Engine

WAITS = "Waiting for the engine"


@pytest.fixture
def install_dir(folder: Path) -> Path:
    return folder / "nvidia"


@pytest.fixture
def common(folder: Path, install_dir: Path) -> list[object]:
    return ["--toolkit-install-dir", install_dir, "--pid-file", folder / "pid" / "toolkit.pid"]


@pytest.fixture
def docker_flags(docker: DockerEngine, common: list[object], payload: Path) -> list[object]:
    paths = ("--config", docker.config, "--socket", docker.socket, "--toolkit-source-root", payload)
    return [*common, "--runtime", "docker", *paths]


@pytest.fixture
def containerd_flags(containerd: ContainerdEngine, common: list[object], payload: Path) -> list[object]:
    drop_in = containerd.folder / "own" / "99-nvidia.toml"
    paths = ("--config", containerd.config, "--socket", containerd.socket, "--drop-in-config", drop_in)
    return [*common, "--runtime", "containerd", *paths, "--toolkit-source-root", payload]


def test_an_engine_that_hangs_is_given_up_at_the_deadline_with_nothing_written(
    docker: DockerEngine, installer: Installer, docker_flags: list[object], install_dir: Path
) -> None:
    before = state_of(docker.config)
    with stopped(docker.pid):
        run = installer.start("toolkit-installer", "run", *docker_flags, "--no-daemon", "--reload-timeout", 2)
        assert run.finish() == 3, run.output
    assert f"although docker runs with PID {docker.pid}" in run.output
    assert state_of(docker.config) == before
    assert not install_dir.exists()
    assert served(docker) == {"runc"}
    assert docker.log_count(HEARD) == 0


@pytest.mark.parametrize("name", ["docker", "containerd"])
def test_an_engine_that_is_slow_to_answer_is_waited_for(
    installer: Installer, request: pytest.FixtureRequest, name: str
) -> None:
    engine: Engine = request.getfixturevalue(name)
    flags = request.getfixturevalue(f"{name}_flags")
    mode = ("--restart-mode", "signal" if name == "docker" else "none")
    with stopped(engine.pid):
        run = installer.start("toolkit-installer", "run", *flags, *mode, "--no-daemon")
        run.wait_for(WAITS)
        assert f"pid={engine.pid} " in run.output
    assert run.finish() == 0, run.output
    if name == "containerd":
        engine.restart()
    assert served(engine) == {"runc"} | HANDLERS


def test_a_dockerd_that_is_starting_is_waited_for_and_signalled_only_then(
    docker: DockerEngine, installer: Installer, docker_flags: list[object]
) -> None:
    docker.stop()
    runs: list[Program] = []

    def run_while_it_starts() -> None:
        try:
            # it has its socket, and waits for its containerd: a signal would kill it now
            until(docker.socket.exists, docker.log_tail)
            runs.append(installer.start("toolkit-installer", "run", *docker_flags, "--no-daemon"))
            runs[0].wait_for(WAITS)
            assert docker.log_count(HEARD) == 0
        finally:
            os.kill(docker.containerd.pid, signal.SIGCONT)

    with stopped(docker.containerd.pid), meanwhile(run_while_it_starts):
        docker.start()
    assert runs[0].finish() == 0, runs[0].output
    assert docker.alive()
    assert docker.log_count(HEARD) == 1
    assert served(docker) == {"runc"} | HANDLERS


def test_a_socket_that_is_gone_while_its_engine_runs_is_no_engine_that_is_down(
    docker: DockerEngine, installer: Installer, docker_flags: list[object], install_dir: Path
) -> None:
    before = state_of(docker.config)
    away = docker.socket.rename(docker.socket.with_suffix(".away"))
    run = installer.start("toolkit-installer", "run", *docker_flags, "--no-daemon", "--reload-timeout", 1)
    assert run.finish() == 3, run.output
    assert f"although docker runs with PID {docker.pid}" in run.output
    assert state_of(docker.config) == before
    assert not install_dir.exists()
    away.rename(docker.socket)
    assert served(docker) == {"runc"}


@pytest.mark.parametrize("name", ["docker", "containerd"])
@pytest.mark.parametrize("socket", ["stale", "gone"])
def test_a_stopped_engine_serves_after_its_start_and_forgets_after_a_cleanup(
    installer: Installer, request: pytest.FixtureRequest, install_dir: Path, name: str, socket: str
) -> None:
    engine: Engine = request.getfixturevalue(name)
    flags = request.getfixturevalue(f"{name}_flags")
    config = engine.folder / ("daemon.json" if name == "docker" else "config.toml")
    before = state_of(config)

    def end() -> None:
        if socket == "gone":
            engine.stop()
            engine.socket.unlink(missing_ok=True)
        else:
            os.kill(engine.pid, signal.SIGKILL)
            until(lambda: not engine.alive(), lambda: "it lives")
            assert engine.socket.exists()

    end()
    run = installer.start("toolkit-installer", "run", *flags, "--no-daemon")
    assert run.finish() == 0, run.output
    assert "it serves the handlers after its next restart" in run.output
    engine.start()
    assert served(engine) == {"runc"} | HANDLERS
    end()
    uninstall = installer.start("toolkit-installer", "uninstall", *flags)
    assert uninstall.finish() == 0, uninstall.output
    assert "The engine does not answer" in uninstall.output
    assert state_of(config) == before
    assert not install_dir.exists()
    engine.start()
    assert served(engine) == {"runc"}


def test_a_containerd_restarted_after_the_signal_serves_and_a_dead_one_is_reported(
    containerd: ContainerdEngine, installer: Installer, containerd_flags: list[object], install_dir: Path
) -> None:
    before = state_of(containerd.config)
    flags = (*containerd_flags, "--no-daemon", "--restart-mode", "signal")
    down = installer.start("toolkit-installer", "run", *flags, "--reload-timeout", 1)
    assert down.finish() == 6, down.output
    assert DOWN in down.output
    assert state_of(containerd.config) == before
    assert not containerd.alive()

    containerd.start()
    run = installer.start("toolkit-installer", "run", *flags)
    until(lambda: not containerd.alive(), lambda: run.output)
    containerd.start()
    assert run.finish() == 0, run.output
    assert served(containerd) == {"runc"} | HANDLERS
    uninstall = installer.start("toolkit-installer", "uninstall", *containerd_flags)
    until(lambda: not containerd.alive(), lambda: uninstall.output)
    containerd.start()
    assert uninstall.finish() == 0, uninstall.output
    assert served(containerd) == {"runc"}
    assert state_of(containerd.config) == before
    assert not install_dir.exists()


def test_a_dockerd_that_hangs_at_cleanup_keeps_its_toolkit_until_the_next_cleanup(
    docker: DockerEngine, installer: Installer, docker_flags: list[object], install_dir: Path
) -> None:
    before = state_of(docker.config)
    run = installer.start("toolkit-installer", "run", *docker_flags, "--no-daemon")
    assert run.finish() == 0, run.output
    with stopped(docker.pid):
        uninstall = installer.start("toolkit-installer", "uninstall", *docker_flags, "--reload-timeout", 2)
        code = uninstall.finish()
        assert (install_dir / "toolkit" / "nvidia-container-runtime").exists(), uninstall.output
        assert code == 6, uninstall.output
    again = installer.start("toolkit-installer", "uninstall", *docker_flags)
    assert again.finish() == 0, again.output
    assert served(docker) == {"runc"}
    assert state_of(docker.config) == before
    assert not install_dir.exists()
