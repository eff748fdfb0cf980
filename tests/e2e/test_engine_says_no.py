"""A file that the engine would not take: found before anything is written, and the engine really does not take it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of
from tests.e2e.hosts.machine import CONFIG, CONFIGURATION, HANDLERS, INSTALL_DIR
from tests.e2e.program import WAITING, Installer
from tests.support.engines.daemons import EngineError

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine
    from tests.support.engines.daemons import ContainerdEngine, DockerEngine

WRONG_TYPE = "[debug]\nlevel = 5\n"
"""TOML that no containerd takes."""


@pytest.fixture
def install_dir(folder: Path) -> Path:
    return folder / "nvidia"


@pytest.fixture
def common(folder: Path, install_dir: Path, payload: Path) -> list[object]:
    return [
        *("run", "--no-daemon", "--toolkit-install-dir", install_dir, "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid", "--reload-timeout", 30),
    ]


@pytest.fixture
def docker_flags(docker: DockerEngine, common: list[object]) -> list[object]:
    return [*common, "--runtime", "docker", "--config", docker.config, "--socket", docker.socket]


@pytest.fixture
def containerd_flags(containerd: ContainerdEngine, common: list[object]) -> list[object]:
    drop_in = containerd.folder / "own" / "99-nvidia.toml"
    paths = ("--config", containerd.config, "--socket", containerd.socket, "--drop-in-config", drop_in)
    return [*common, "--runtime", "containerd", *paths, "--restart-mode", "none"]


REFUSED: dict[str, tuple[str, str, str]] = {
    "flag": ('"bridge": "none"', "--bridge", "both as a flag and in the configuration file: bridge"),
    "socket": ('"hosts": ["fd://"]', "--host", "both as a flag and in the configuration file: hosts"),
    "second runc": ('"runtimes": {"runc": {"path": "crun"}}', "runtimes.runc", "runtime name 'runc' is reserved"),
    "default": ('"default-runtime": "gone"', "'gone'", "default runtime 'gone' does not exist"),
}
"""What stands in daemon.json, what is said of it here, and what dockerd 20.10 says of it when it is told to read it."""


@pytest.mark.parametrize("what", REFUSED)
def test_a_daemon_json_that_dockerd_rejects_is_found_before_any_write(
    docker: DockerEngine, installer: Installer, docker_flags: list[object], install_dir: Path, what: str
) -> None:
    member, ours, dockerds = REFUSED[what]
    # as somebody may leave it for the next restart to trip over: the live dockerd has not read it
    docker.config.write_text(f"{{\n{member}," + docker.config.read_text().lstrip()[1:])
    before = state_of(docker.config)
    run = installer.start("toolkit-installer", *docker_flags)
    assert run.finish() == 3, run.output
    assert f"file={docker.config} line=2 " in run.output
    assert ours in run.output
    assert state_of(docker.config) == before
    assert not install_dir.exists()
    assert docker.log_count("Got signal to reload configuration") == 0

    os.kill(docker.pid, signal.SIGHUP)
    deadline = time.monotonic() + 60
    while not docker.log_count(dockerds):
        assert time.monotonic() < deadline, f"dockerd takes what we refuse:\n{docker.log_tail()}"
        time.sleep(0.02)
    assert docker.alive()


def test_a_broken_file_beside_ours_is_named_with_its_line(
    containerd: ContainerdEngine, installer: Installer, containerd_flags: list[object], install_dir: Path
) -> None:
    broken = _imported(containerd, "50-theirs.toml", '[debug]\nlevel = "info"\n[[[\n')
    before = state_of(containerd.config)
    run = installer.start("toolkit-installer", *containerd_flags)
    assert run.finish() == 3, run.output
    assert f"file={broken} line=3" in run.output
    assert state_of(containerd.config) == before
    assert not install_dir.exists()
    assert containerd.handlers().keys() == {"runc"}


@pytest.mark.parametrize("what", ["wrong type", "missing"])
def test_a_neighbouring_file_that_only_containerd_rejects_is_found_before_any_write(
    containerd: ContainerdEngine, installer: Installer, containerd_flags: list[object], install_dir: Path, what: str
) -> None:
    theirs = _imported(containerd, "50-theirs.toml", WRONG_TYPE, literally=True)
    if what == "missing":
        theirs.unlink()
    before = state_of(containerd.config)
    run = installer.start("toolkit-installer", *containerd_flags)
    assert run.finish() == 3, run.output
    assert "would not start again" in run.output
    assert (str(theirs) if what == "missing" else "Can't convert 5") in run.output
    assert state_of(containerd.config) == before
    assert not install_dir.exists()
    assert containerd.alive()

    containerd.stop()
    with pytest.raises(EngineError, match=r"exited 1 at its start"):
        containerd.start()


def test_a_relative_import_is_no_reason_to_refuse(
    containerd: ContainerdEngine, installer: Installer, containerd_flags: list[object]
) -> None:
    theirs = _imported(containerd, "50-theirs.toml", 'version = 2\n[debug]\nlevel = "warn"\n', literally=True)
    text = containerd.config.read_text()
    containerd.config.write_text(text.replace(str(theirs), str(theirs.relative_to(containerd.config.parent))))
    run = installer.start("toolkit-installer", *containerd_flags)
    assert run.finish() == 0, run.output
    containerd.restart()
    assert containerd.handlers().keys() == {"runc"} | HANDLERS


def test_a_containerd_without_a_cri_is_warned_of_and_not_waited_for(
    docker: DockerEngine, installer: Installer, common: list[object], install_dir: Path
) -> None:
    lower = docker.containerd
    before = state_of(lower.config)
    flags = ("--runtime", "containerd", "--config", lower.config, "--socket", lower.socket)
    run = installer.start("toolkit-installer", *common, *flags, "--restart-mode", "signal", "--reload-timeout", 600)
    assert run.finish() == 0, run.output
    assert "The file disables the CRI plugin" in run.output
    assert "level=warning" in run.output
    assert state_of(lower.config) != before
    assert lower.alive()
    places = ("--toolkit-install-dir", install_dir, "--pid-file", install_dir.parent / "pid" / "toolkit.pid")
    back = installer.start("toolkit-installer", "uninstall", *places)
    assert back.finish() == 0, back.output
    assert state_of(lower.config) == before
    assert lower.alive()


def test_docker_goes_on_and_its_own_words_are_told_when_it_rejects_the_change(machine: Machine) -> None:
    config = "/etc/docker/daemon.json"
    machine.serve("docker", config, '{"labels": ["rack=a1"]}')
    pid = machine.host.property("docker", "MainPID")
    machine.host.path(config).write_text('{"lables": ["rack=a1"]}')  # 20.10 validates nothing before
    before = machine.state(config)
    code, output = machine.run("--runtime", "docker", "--reload-timeout", 3)
    assert code == 5, output
    assert "it does not list the handler nvidia" in output
    assert "don't match any configuration option: lables" in output
    assert machine.state(config) == before
    assert machine.host.property("docker", "MainPID") == pid
    assert machine.docker_handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)


def test_a_cleanup_does_not_restart_containerd_into_somebody_elses_broken_file(machine: Machine) -> None:
    theirs = machine.host.path("/etc/containerd/theirs.toml")
    theirs.write_text("version = 2\n")
    before = machine.serve("containerd", CONFIG, f'imports = ["/etc/containerd/theirs.toml"]\n{CONFIGURATION}')
    run = machine.start()
    run.wait_for(WAITING)
    pid = machine.host.property("containerd", "MainPID")

    theirs.write_text(f"version = 2\n{WRONG_TYPE}")
    assert run.terminate() == 5, run.output
    assert "Can't convert 5" in run.output
    assert "it was not restarted" in run.output
    assert machine.state(CONFIG) == before
    assert machine.host.property("containerd", "MainPID") == pid
    assert machine.handlers() == {"runc"} | HANDLERS
    assert machine.exists(f"{INSTALL_DIR}/toolkit/nvidia-container-runtime"), "containerd still runs it"

    theirs.write_text("version = 2\n")
    code, output = machine.uninstall()
    assert code == 0, output
    assert machine.handlers() == {"runc"}
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)


def test_a_restart_that_is_still_due_is_not_made_on_somebody_elses_broken_file(machine: Machine) -> None:
    theirs = machine.host.path("/etc/containerd/theirs.toml")
    theirs.write_text("version = 2\n")
    before = machine.serve("containerd", CONFIG, f'imports = ["/etc/containerd/theirs.toml"]\n{CONFIGURATION}')
    pid = machine.host.property("containerd", "MainPID")
    code, output = machine.run("--restart-mode", "none")
    assert code == 0, output

    theirs.write_text(f"version = 2\n{WRONG_TYPE}")
    written = machine.written_below("/etc/containerd", INSTALL_DIR)
    code, output = machine.run()
    assert code == 3, output
    assert "Can't convert 5" in output
    assert machine.written_below("/etc/containerd", INSTALL_DIR) == written
    assert machine.host.property("containerd", "MainPID") == pid
    assert machine.handlers() == {"runc"}

    theirs.write_text("version = 2\n")
    code, output = machine.run()
    assert code == 0, output
    assert machine.handlers() == {"runc"} | HANDLERS
    assert machine.uninstall()[0] == 0
    assert machine.state(CONFIG) == before


def _imported(containerd: ContainerdEngine, name: str, text: str, *, literally: bool = False) -> Path:
    """Let the configuration import a folder, or the file in it, and put the file there; containerd is not told."""
    path = containerd.folder / "conf.d" / name
    path.parent.mkdir()
    path.write_text(text)
    imports = path if literally else path.parent / "*.toml"
    marked = "version = 2   # of the format\n"
    before = containerd.config.read_text()
    assert marked in before
    containerd.config.write_text(before.replace(marked, f'{marked}imports = ["{imports}"]\n'))
    return path
