"""The engines that can be configured, a row each, and how each may come to a node.

Pure: their adapters are imported by name, when they are needed.
"""

from __future__ import annotations

import functools

import msgspec

from toolkit_installer.settings import EngineName


def plain(socket: str) -> str:
    """Return a socket's path without its scheme, and with /run for /var/run, which is the same."""
    path = socket.strip().removeprefix("unix://").removeprefix("unix:")
    return f"/run/{path.removeprefix('/var/run/')}" if path.startswith("/var/run/") else path


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of distributions. Paths are the node's; `*` stands for any one name."""

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
    beside: tuple[str, ...] = ()
    """What else its engine reads in the folder of `config`, as patterns."""
    state: str | None = None
    """The `state` folder of its containerd, in which the bundles of running containers are."""
    binaries: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Files that speak for it; beside those, `config` does."""
    marks: tuple[str, ...] = ()
    """Parts of the executable's path, or of the arguments, of its engine and its kubelet, and of nobody else's."""
    kubelets: frozenset[str] = frozenset()
    """Processes that have a kubelet in them, which uses the first of the sockets unless told otherwise."""
    kubelet_options: str | None = None
    """The distribution's file of options in YAML, which may name another engine for its kubelet.

    Those in its folder of drop-ins win over it.
    """
    kubelet_socket_flag: str | None = None
    """Its own flag that names another engine for its kubelet, as `TYPE:SOCKET`."""
    kubelet_flags: str | None = None
    """The file with the kubelet's flags, where the command line is wiped that names it."""
    kubelet_variables: tuple[tuple[str, str], ...] = ()
    """What is put for a variable in that file."""
    refused: str | None = None
    """Why it is not configured, and what to do; it is all the same if its file is named with --config."""

    @property
    def socket(self) -> str:
        """The engine's own socket."""
        return self.sockets[0]

    def serves(self, socket: str) -> bool:
        """Tell whether that is one of its sockets, in whatever spelling."""
        return plain(socket) in map(plain, self.sockets)


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
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
    asked_with: tuple[str, ...] = ()
    """Modules of other packages that its adapter imports when it asks the engine."""
    distributions: tuple[Distribution, ...]
    """Where its files are, by who brought it; the last is how its own packages bring it. One stands before those that
    it could be taken for."""


_docker = functools.partial(Distribution, engine=EngineName.DOCKER)
_DOCKER = EngineRow(
    name=EngineName.DOCKER,
    adapter="toolkit_installer.engines.docker.engine:Docker",
    asked_with=("docker.constants", "docker.errors", "requests.exceptions", "urllib3.exceptions"),
    processes=frozenset({"dockerd"}),
    address_flags=("-H", "--host"),
    socket_names=("docker.sock", "cri-dockerd.sock", "dockershim.sock"),
    distributions=(
        _docker(
            name="docker-snap",
            sockets=("/var/run/docker.sock",),
            config="/var/snap/docker/current/config/daemon.json",
            units=("snap.docker.dockerd.service",),
            binaries=("/snap/bin/docker",),
            marks=("/snap/docker/",),
            configured="not at all",
            refused="docker from snap is confined, and cannot run a toolkit outside its snap: install docker from its "
            "own packages (https://docs.docker.com/engine/install/)",
        ),
        _docker(
            name="docker-desktop",
            sockets=("/home/*/.docker/desktop/docker.sock", "/home/*/.docker/run/docker.sock"),
            config="/home/*/.docker/daemon.json",
            units=("docker-desktop.service",),
            binaries=("/opt/docker-desktop/bin/com.docker.backend",),
            marks=("docker-desktop", "com.docker."),
            configured="not at all",
            refused="Docker Desktop runs its engine in a virtual machine of its own, which has to be given the GPU by "
            "Docker Desktop: use its own settings, or install docker engine",
        ),
        _docker(
            name="docker-rootless",
            sockets=("/run/user/*/docker.sock",),
            config="/home/*/.config/docker/daemon.json",
            units=(),
            files=("/root/.config/docker/daemon.json",),
            configured="not at all, unless its file and socket are named",
            refused="rootless docker belongs to one user: name that user's file and socket, with "
            "--config /home/USER/.config/docker/daemon.json --socket /run/user/UID/docker.sock",
        ),
        _docker(
            name="docker",
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


def usual_row(engine: EngineName) -> Distribution:
    """Return the row of an engine as its own packages bring it."""
    return next(row for row in ENGINES if row.name == engine).distributions[-1]


def names() -> tuple[EngineName, ...]:
    """Return the names of all engines, in the order in which they are listed for users."""
    return tuple(row.name for row in ENGINES)
