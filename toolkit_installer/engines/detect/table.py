"""Where each distribution keeps its engine: one ordered table, and the only place that knows these paths.

A row is found by its probes. Rows of the same engine that share a socket are told apart by their `marks`; a row that
stands earlier is asked first. Sources: the distributions' own documentation and code (docs/detection.md).
"""

from __future__ import annotations

import dataclasses

from toolkit_installer.settings import EngineName


@dataclasses.dataclass(frozen=True)
class Distribution:
    """One way in which an engine comes to a node. Paths are the node's; `*` stands for any one name."""

    name: str
    engine: EngineName
    sockets: tuple[str, ...]
    """Where its engine serves, or a kubelet reaches it; the first is the engine's own."""
    config: str
    """The file that the engine is started with; a distribution may generate it."""
    units: tuple[str, ...]
    """The systemd services in which its engine runs."""
    configured: str
    """How handlers are registered with it, in words."""
    drop_in: str | None = None
    binaries: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Files that speak for it; beside those, `config` does."""
    marks: tuple[str, ...] = ()
    """Parts of the executable's path, or of the arguments, of its engine and its kubelet, and of nobody else's."""
    kubelets: frozenset[str] = frozenset()
    """Processes that have a kubelet in them, which uses the first of the sockets unless told otherwise."""
    refused: str | None = None
    """Why it is not configured, and what to do; it is all the same if its file is named with --config."""

    @property
    def socket(self) -> str:
        """The engine's own socket."""
        return self.sockets[0]


_RANCHER = "/var/lib/rancher"
_AGENT = "agent/etc/containerd"
_BY_RANCHER = (
    "a drop-in in config-v3.toml.d or config.toml.d, where the generated config.toml imports it; else the template "
    "config-v3.toml.tmpl or config.toml.tmpl; config.toml itself is never edited"
)

TABLE: tuple[Distribution, ...] = (
    Distribution(
        name="k3s",
        engine=EngineName.CONTAINERD,
        sockets=("/run/k3s/containerd/containerd.sock",),
        config=f"{_RANCHER}/k3s/{_AGENT}/config.toml",
        drop_in=f"{_RANCHER}/k3s/{_AGENT}/config-v3.toml.d/99-nvidia.toml",
        units=("k3s.service", "k3s-agent.service"),
        binaries=("/usr/local/bin/k3s", "/usr/bin/k3s", "/opt/bin/k3s"),
        files=("/etc/rancher/k3s/config.yaml",),
        marks=("/rancher/k3s/", "/k3s/data/", "/bin/k3s"),
        kubelets=frozenset({"k3s-server", "k3s-agent", "k3s"}),
        configured=_BY_RANCHER,
    ),
    Distribution(
        name="rke2",
        engine=EngineName.CONTAINERD,
        sockets=("/run/k3s/containerd/containerd.sock",),
        config=f"{_RANCHER}/rke2/{_AGENT}/config.toml",
        drop_in=f"{_RANCHER}/rke2/{_AGENT}/config-v3.toml.d/99-nvidia.toml",
        units=("rke2-server.service", "rke2-agent.service"),
        binaries=("/usr/local/bin/rke2", "/usr/bin/rke2", "/opt/rke2/bin/rke2"),
        files=("/etc/rancher/rke2/config.yaml",),
        marks=("/rancher/rke2/", "/rke2/data/"),
        configured=_BY_RANCHER,
    ),
    Distribution(
        name="k0s",
        engine=EngineName.CONTAINERD,
        sockets=("/run/k0s/containerd.sock",),
        config="/etc/k0s/containerd.toml",
        drop_in="/etc/k0s/containerd.d/99-nvidia.toml",
        units=("k0sworker.service", "k0scontroller.service"),
        binaries=("/usr/local/bin/k0s", "/usr/bin/k0s"),
        files=("/etc/k0s/k0s.yaml",),
        marks=("/k0s/bin/", "/etc/k0s/", "/lib/k0s/"),
        configured="a drop-in, which k0s merges, restarting containerd by itself",
    ),
    Distribution(
        name="microk8s",
        engine=EngineName.CONTAINERD,
        sockets=("/var/snap/microk8s/common/run/containerd.sock",),
        config="/var/snap/microk8s/current/args/containerd-template.toml",
        units=("snap.microk8s.daemon-containerd.service",),
        binaries=("/snap/bin/microk8s",),
        marks=("/snap/microk8s/",),
        kubelets=frozenset({"kubelite"}),
        configured="the template of its containerd.toml, in place",
    ),
    Distribution(
        name="containerd",
        engine=EngineName.CONTAINERD,
        sockets=("/run/containerd/containerd.sock",),
        config="/etc/containerd/config.toml",
        drop_in="/etc/containerd/conf.d/99-nvidia.toml",
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


def plain(socket: str) -> str:
    """Return a socket's path without its scheme, and with /run for /var/run, which is the same."""
    path = socket.strip().removeprefix("unix://").removeprefix("unix:")
    return f"/run/{path.removeprefix('/var/run/')}" if path.startswith("/var/run/") else path


def with_marks(words: str, engine: EngineName | None = None) -> Distribution | None:
    """Return the row that a process's executable and arguments tell of, None if they tell of none."""
    rows = (row for row in TABLE if engine in (None, row.engine))
    return next((row for row in rows if any(mark in words for mark in row.marks)), None)


def with_socket(socket: str) -> tuple[Distribution, ...]:
    """Return the rows that serve this socket, in the table's order; those that are configured alone, if there are."""
    rows = tuple(row for row in TABLE if plain(socket) in map(plain, row.sockets))
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
