"""The engines that can be configured, a row each. Pure: their adapters are imported by name, when they are needed."""

from __future__ import annotations

import dataclasses

from toolkit_installer.engines.common.distribution import Distribution
from toolkit_installer.settings import EngineName


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineRow:
    """All that has to be known of an engine before its adapter is imported. Paths are the node's."""

    name: EngineName
    adapter: str
    """MODULE:CLASS, a class of `Adapter` in api.py."""
    processes: frozenset[str]
    """The names of its processes, as /proc/PID/comm shows them."""
    address_flags: tuple[str, ...]
    """The flags that tell its process where to serve."""
    socket_names: tuple[str, ...]
    """What a socket is called through which it is reached; the first is its own, in every distribution."""
    distributions: tuple[Distribution, ...]
    """Where its files are, by who brought it; the last is how its own packages bring it. One stands before those that
    it could be taken for."""


_DOCKER = EngineRow(
    name=EngineName.DOCKER,
    adapter="toolkit_installer.engines.docker.engine:Docker",
    processes=frozenset({"dockerd"}),
    address_flags=("-H", "--host"),
    socket_names=("docker.sock", "cri-dockerd.sock", "dockershim.sock"),
    distributions=(
        Distribution(
            name="docker-snap",
            engine=EngineName.DOCKER,
            sockets=("/var/run/docker.sock",),
            config="/var/snap/docker/current/config/daemon.json",
            units=("snap.docker.dockerd.service",),
            binaries=("/snap/bin/docker",),
            marks=("/snap/docker/",),
            configured="not at all",
            refused="docker from snap is confined, and cannot run a toolkit outside its snap: install docker from its "
            "own packages (https://docs.docker.com/engine/install/)",
        ),
        Distribution(
            name="docker-desktop",
            engine=EngineName.DOCKER,
            sockets=("/home/*/.docker/desktop/docker.sock", "/home/*/.docker/run/docker.sock"),
            config="/home/*/.docker/daemon.json",
            units=("docker-desktop.service",),
            binaries=("/opt/docker-desktop/bin/com.docker.backend",),
            marks=("docker-desktop", "com.docker."),
            configured="not at all",
            refused="Docker Desktop runs its engine in a virtual machine of its own, which has to be given the GPU by "
            "Docker Desktop: use its own settings, or install docker engine",
        ),
        Distribution(
            name="docker-rootless",
            engine=EngineName.DOCKER,
            sockets=("/run/user/*/docker.sock",),
            config="/home/*/.config/docker/daemon.json",
            units=(),
            files=("/root/.config/docker/daemon.json",),
            configured="not at all, unless its file and socket are named",
            refused="rootless docker belongs to one user: name that user's file and socket, with "
            "--config /home/USER/.config/docker/daemon.json --socket /run/user/UID/docker.sock",
        ),
        Distribution(
            name="docker",
            engine=EngineName.DOCKER,
            sockets=("/var/run/docker.sock", "/var/run/cri-dockerd.sock", "/var/run/dockershim.sock"),
            config="/etc/docker/daemon.json",
            state="/run/docker/containerd/daemon",
            units=("docker.service",),
            binaries=("/usr/bin/dockerd", "/usr/local/bin/dockerd"),
            configured="daemon.json, in place",
        ),
    ),
)
_CONTAINERD = EngineRow(
    name=EngineName.CONTAINERD,
    adapter="toolkit_installer.engines.containerd.engine:Containerd",
    processes=frozenset({"containerd"}),
    address_flags=("-a", "--address", "-address"),
    socket_names=("containerd.sock",),
    distributions=(
        Distribution(
            name="containerd",
            engine=EngineName.CONTAINERD,
            sockets=("/run/containerd/containerd.sock",),
            config="/etc/containerd/config.toml",
            drop_in="/etc/containerd/conf.d/99-nvidia.toml",
            state="/run/containerd",
            units=("containerd.service",),
            binaries=("/usr/bin/containerd", "/usr/local/bin/containerd"),
            configured="a drop-in from containerd 2.1 on, config.toml in place before",
        ),
    ),
)
_CRIO = EngineRow(
    name=EngineName.CRIO,
    adapter="toolkit_installer.engines.crio.engine:Crio",
    processes=frozenset({"crio"}),
    address_flags=("--listen",),
    socket_names=("crio.sock",),
    distributions=(
        Distribution(
            name="crio",
            engine=EngineName.CRIO,
            sockets=("/var/run/crio/crio.sock",),
            config="/etc/crio/crio.conf",
            drop_in="/etc/crio/crio.conf.d/99-nvidia.toml",
            units=("crio.service", "cri-o.service"),
            binaries=("/usr/bin/crio", "/usr/local/bin/crio"),
            files=("/etc/crio/crio.conf.d/*",),
            configured="a drop-in",
        ),
    ),
)

ENGINES: tuple[EngineRow, ...] = (_DOCKER, _CONTAINERD, _CRIO)


def names() -> tuple[EngineName, ...]:
    """Return the names of all engines, in the order in which they are listed for users."""
    return tuple(row.name for row in ENGINES)
