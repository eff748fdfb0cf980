"""The table of supported engines: a row each, with their distributions and the CDI versions that they read. Pure.

Adapters are named by strings, and imported when they are needed.

If a CDI specification is newer than an engine's CDI library, the engine skips the whole file, and its devices do not
exist. The library version of each release comes from its own go.mod or vendor.mod, and the specification versions from
that library's pkg/cdi/version.go; for CRI-O before 1.34, from its release notes.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping

import msgspec

from toolkit_installer.settings import EngineName


def normalize_socket(socket: str) -> str:
    """Return a socket's path without its scheme, and with /run for the equivalent /var/run."""
    path = socket.strip().removeprefix("unix://").removeprefix("unix:")
    return f"/run/{path.removeprefix('/var/run/')}" if path.startswith("/var/run/") else path


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of distributions. Paths are the node's; `*` matches any one name."""

    name: str
    engine: EngineName
    sockets: tuple[str, ...]
    """Where its engine serves, or a kubelet reaches it; the first is the engine's own."""
    config: str
    """The configuration file that the engine is started with; a distribution may generate it."""
    units: tuple[str, ...]
    """The systemd services in which its engine runs."""
    configured: str
    """How handlers are registered with it, in words."""
    drop_in: str | None = None
    sibling_patterns: tuple[str, ...] = ()
    """Patterns of the further files that its engine reads in the folder of `config`."""
    state: str | None = None
    """The `state` folder of its containerd, which holds the bundles of running containers."""
    binaries: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Files that, like `config`, show that the distribution is installed."""
    marks: tuple[str, ...] = ()
    """Parts of the executable's path or of the arguments that only its engine and its kubelet have."""
    kubelets: frozenset[str] = frozenset()
    """Processes that contain a kubelet, which uses the first of the sockets by default."""
    kubelet_options: str | None = None
    """The distribution's file of options in YAML, which may name another engine for its kubelet.

    Options in its folder of drop-ins take precedence.
    """
    kubelet_socket_flag: str | None = None
    """Its own flag that names another engine for its kubelet, as `TYPE:SOCKET`."""
    kubelet_flags: str | None = None
    """The file with the kubelet's flags, for a process that has wiped the command line that names it."""
    kubelet_variables: tuple[tuple[str, str], ...] = ()
    """Variables in that file, with their values."""
    refused: str | None = None
    """Why it is not configured, and the remedy; naming its file with --config overrides the refusal."""

    @property
    def socket(self) -> str:
        """The engine's own socket."""
        return self.sockets[0]

    def serves(self, socket: str) -> bool:
        """Tell whether `socket` is one of its sockets, in whatever spelling."""
        return normalize_socket(socket) in map(normalize_socket, self.sockets)


class ContainerProcess(enum.StrEnum):
    """The process next to each of an engine's containers, and what shows that it is this engine's."""

    MONITOR = "conmon"
    """A conmon, which has the container's runtime in its command line."""
    SHIM_OF_SOCKET = "shim of the engine's socket"
    SHIM_OF_NAMESPACE = "shim of the engine's namespace in containerd"


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about an engine that are needed before its adapter is imported. Paths are the node's."""

    name: EngineName
    adapter: str
    """MODULE:CLASS, a class of `Adapter` in api.py."""
    processes: frozenset[str]
    """The names of its processes, as /proc/PID/comm shows them."""
    address_flags: tuple[str, ...]
    """The flags that set the sockets that its process serves."""
    socket_names: tuple[str, ...]
    """The file names of the sockets that reach it; the first is its own, in every distribution."""
    client_modules: tuple[str, ...] = ()
    """Modules of other packages that its adapter imports to query the engine."""
    imported_alone: bool = False
    """No module outside its folder imports from it."""
    started_by_socket: bool = False
    """systemd may start it for a connection to its socket."""
    container_process: ContainerProcess | None = None
    """None: its containers cannot be found without it."""
    restore_setting: str = ""
    """Its setting that keeps containers running while it is down, if it has one."""
    calls_nri_plugins: bool = False
    has_hook_mode: bool = False
    """An OCI hook may serve in place of handlers (`--config-mode`)."""
    nixos_option: str = ""
    """The option of NixOS that declares its configuration."""
    kubespray_variables: str = ""
    """The variables of kubespray that declare its runtimes."""
    distributions: tuple[Distribution, ...]
    """How it may be installed; the last row is the engine's own packages.

    A row precedes the rows that it could be mistaken for.
    """

    @property
    def shim_sockets(self) -> tuple[str, ...]:
        """The file names of the sockets by which a kubelet reaches it through a shim."""
        return self.socket_names[1:]

    @property
    def has_drop_ins(self) -> bool:
        """Whether it reads drop-ins."""
        return self.distributions[-1].drop_in is not None


_docker = functools.partial(Distribution, engine=EngineName.DOCKER)
_DOCKER = EngineRow(
    name=EngineName.DOCKER,
    adapter="toolkit_installer.engines.docker.engine:Docker",
    client_modules=("docker.constants", "docker.errors", "requests.exceptions", "urllib3.exceptions"),
    processes=frozenset({"dockerd"}),
    address_flags=("-H", "--host"),
    socket_names=("docker.sock", "cri-dockerd.sock", "dockershim.sock"),
    imported_alone=True,
    started_by_socket=True,
    container_process=ContainerProcess.SHIM_OF_NAMESPACE,
    restore_setting="live-restore",
    nixos_option="virtualisation.docker.daemon.settings",
    kubespray_variables="docker_options",
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
    container_process=ContainerProcess.SHIM_OF_SOCKET,
    calls_nri_plugins=True,
    nixos_option="virtualisation.containerd.settings",
    kubespray_variables="containerd_default_runtime, containerd_runc_runtime and containerd_additional_runtimes",
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
    imported_alone=True,
    container_process=ContainerProcess.MONITOR,
    calls_nri_plugins=True,
    has_hook_mode=True,
    nixos_option="virtualisation.cri-o.settings",
    kubespray_variables="crio_runtimes",
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


MOST_USED: EngineName = EngineName.CONTAINERD
"""The engine of most nodes, which is assumed where none is named or found."""


def get_row(engine: EngineName) -> EngineRow:
    """Return an engine's row."""
    return next(row for row in ENGINES if row.name == engine)


def find_usual_distribution(engine: EngineName) -> Distribution:
    """Return the row of an engine's own packages."""
    return get_row(engine).distributions[-1]


def names() -> tuple[EngineName, ...]:
    """Return the names of all engines, in the order in which users see them."""
    return tuple(row.name for row in ENGINES)


CdiVersion = tuple[int, int]
"""The first two numbers of a specification's version: no release ever depended on the third."""

SWITCHES: Mapping[str, bytes] = {"enable_cdi": b"enable_cdi", "cdi": b'"cdi"'}
"""The names of the keys that turn CDI on, containerd's and that in docker's `features`; and their spelling in files."""
_CDI_VERSIONS: Mapping[EngineName, tuple[tuple[tuple[int, int, int], CdiVersion], ...]] = {
    EngineName.CONTAINERD: (
        ((1, 7, 0), (0, 5)),
        ((1, 7, 12), (0, 6)),
        ((1, 7, 16), (0, 7)),
        ((2, 0, 0), (0, 8)),
        ((2, 1, 0), (1, 0)),
        ((2, 4, 0), (1, 1)),
    ),
    EngineName.DOCKER: (((25, 0, 0), (0, 6)), ((26, 1, 0), (0, 7))),
    EngineName.CRIO: (((1, 23, 0), (0, 3)), ((1, 26, 0), (0, 5)), ((1, 30, 0), (0, 7)), ((1, 34, 0), (1, 0))),
}
"""By engine: the first release of a range, and the newest specification version that the range reads."""
_RELEASE = r"v?(\d+)\.(\d+)(?:\.(\d+))?"
_SAID = rb"""(?m)^["']?cdiVersion["']?:\s*["']?v?(\d+)\.(\d+)"""


def newest_cdi_version(name: EngineName, version: str) -> CdiVersion | None:
    """Return the newest specification version that this release reads; None: it does not support CDI.

    `version` is in the engine's own spelling, such as "1.7.24~ds1". A version without numbers counts as without CDI.
    """
    found = re.match(_RELEASE, version)
    if found is None:
        return None
    release = (int(found[1]), int(found[2]), int(found[3] or 0))
    read = [known for since, known in _CDI_VERSIONS.get(name, ()) if since <= release]
    return read[-1] if read else None


def first_cdi_release(name: EngineName) -> str:
    """Return the first release of the engine that supports CDI, such as "1.7"."""
    (major, minor, _), _ = _CDI_VERSIONS[name][0]
    return f"{major}.{minor}"


def parse_cdi_version(specification: bytes) -> CdiVersion | None:
    """Return the version that a specification states, None if it states none."""
    said = re.search(_SAID, specification)
    return (int(said[1]), int(said[2])) if said is not None else None
