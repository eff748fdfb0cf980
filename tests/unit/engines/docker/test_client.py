"""Dockers whose containers could not run the toolkit are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.engines.docker import client as docker_kinds
from toolkit_installer.engines.docker.config import DockerLiveState
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings

SOCKET = "/var/run/docker.sock"
CONFIG = "/etc/docker/daemon.json"


def live(
    executable: str = "/usr/bin/dockerd", *, system: str = "Debian GNU/Linux 12", rootless: bool = False
) -> DockerLiveState:
    process = Process(2**22 + 1, "dockerd", executable, (executable,), 1.0, "docker.service")
    return DockerLiveState("28.5.2", {}, "runc", process, rootless=rootless, system=system)


def refuse(tmp_path: Path, given: EngineSettings, socket: str, config: str, seen: DockerLiveState | None) -> None:
    docker_kinds.refuse_foreign_docker(
        Node(str(tmp_path)), EngineTarget(EngineName.DOCKER, given), socket, config, seen
    )


@pytest.mark.parametrize(
    "config", ["/var/snap/docker/current/config/daemon.json", "/var/snap/docker/2915/config/daemon.json"]
)
def test_the_snaps_file_is_refused_also_where_it_is_named(tmp_path: Path, config: str) -> None:
    with pytest.raises(ConfigurationError, match="docker's snap") as caught:
        refuse(tmp_path, EngineSettings(config=config), SOCKET, config, None)
    assert caught.value.path == config
    assert caught.value.hint


def test_a_link_to_the_snaps_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etc" / "docker").mkdir(parents=True)
    (tmp_path / "etc" / "docker" / "daemon.json").symlink_to("/var/snap/docker/current/config/daemon.json")
    with pytest.raises(ConfigurationError, match="docker's snap"):
        refuse(tmp_path, EngineSettings(), SOCKET, CONFIG, None)


@pytest.mark.parametrize("program", ["/snap/docker/2915/bin/dockerd", "/var/lib/snapd/snap/docker/2915/bin/dockerd"])
def test_a_dockerd_that_runs_from_the_snap_is_refused(tmp_path: Path, program: str) -> None:
    with pytest.raises(ConfigurationError, match="docker's snap") as caught:
        refuse(tmp_path, EngineSettings(config=CONFIG), SOCKET, CONFIG, live(program))
    assert caught.value.path == program


@pytest.mark.parametrize(
    "socket, config, system",
    [
        ("/home/a/.docker/desktop/docker.sock", CONFIG, ""),
        (SOCKET, "/home/a/.docker/daemon.json", ""),
        (SOCKET, CONFIG, "Docker Desktop"),
    ],
)
def test_docker_desktop_is_refused(tmp_path: Path, socket: str, config: str, system: str) -> None:
    with pytest.raises(ConfigurationError, match="Docker Desktop"):
        refuse(tmp_path, EngineSettings(config=config, socket=socket), socket, config, live(system=system))


@pytest.mark.parametrize(
    "given",
    [EngineSettings(config=CONFIG), EngineSettings(socket=SOCKET), EngineSettings(config=CONFIG, socket=SOCKET)],
)
def test_a_rootless_docker_is_refused_unless_it_is_named(tmp_path: Path, given: EngineSettings) -> None:
    with pytest.raises(ConfigurationError, match="rootless"):
        refuse(tmp_path, EngineSettings(), SOCKET, CONFIG, live(rootless=True))
    refuse(tmp_path, given, SOCKET, CONFIG, live(rootless=True))


def test_the_nodes_own_docker_is_not_refused(tmp_path: Path) -> None:
    refuse(tmp_path, EngineSettings(), SOCKET, CONFIG, live())
    refuse(tmp_path, EngineSettings(), SOCKET, CONFIG, None)
