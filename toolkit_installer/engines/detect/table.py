"""Where each distribution keeps its engine: one ordered table.

A row is found by its probes. Rows of the same engine that share a socket are told apart by their `marks`; a row that
stands earlier is asked first. Sources: the distributions' own documentation and code (docs/detection.md).
"""

from __future__ import annotations

from toolkit_installer.engines.common.distribution import Distribution, plain
from toolkit_installer.engines.containerd.distributions.all import DISTRIBUTIONS
from toolkit_installer.settings import EngineName

TABLE: tuple[Distribution, ...] = (
    *DISTRIBUTIONS,
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
    Distribution(
        name="docker-snap",
        engine=EngineName.DOCKER,
        sockets=("/var/run/docker.sock",),
        config="/var/snap/docker/current/config/daemon.json",
        units=("snap.docker.dockerd.service",),
        binaries=("/snap/bin/docker",),
        marks=("/snap/docker/",),
        configured="not at all",
        refused="docker from snap is confined, and cannot run a toolkit outside its snap: install docker from its own "
        "packages (https://docs.docker.com/engine/install/)",
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
)

BY_NAME = {row.name: row for row in TABLE}

USUAL = {
    EngineName.DOCKER: BY_NAME["docker"],
    EngineName.CONTAINERD: BY_NAME["containerd"],
    EngineName.CRIO: BY_NAME["crio"],
}
"""The row of each engine as its own packages bring it."""

UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""Where units lie (systemd.unit(5), "Unit File Load Path")."""


def with_marks(words: str, engine: EngineName | None = None) -> Distribution | None:
    """Return the row that a process's executable and arguments tell of, None if they tell of none."""
    rows = (row for row in TABLE if engine in (None, row.engine))
    return next((row for row in rows if any(mark in words for mark in row.marks)), None)


def with_socket(socket: str) -> tuple[Distribution, ...]:
    """Return the rows that serve this socket, in the table's order; those that are configured alone, if there are."""
    rows = tuple(row for row in TABLE if row.serves(socket))
    return tuple(row for row in rows if row.refused is None) or rows


_BY_FILE_NAME = {
    "containerd.sock": EngineName.CONTAINERD,
    "crio.sock": EngineName.CRIO,
    "docker.sock": EngineName.DOCKER,
    "cri-dockerd.sock": EngineName.DOCKER,
    "dockershim.sock": EngineName.DOCKER,
}


def engine_of_socket(socket: str) -> EngineName | None:
    """Return the engine that a socket is usually named after, wherever it lies; None where the name does not tell."""
    return _BY_FILE_NAME.get(plain(socket).rpartition("/")[2])
