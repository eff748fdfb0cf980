"""What was asked for that is about the cluster: whom it is asked of, and what it is told. Pure.

What the user asked for: one frozen, validated value. Pure.
"""

from __future__ import annotations

import enum
from typing import ClassVar, final

import msgspec

CONDITION = "nvidia.com/ContainerToolkitReady"
"""The type of the node's condition, unless another one is asked for."""


class ClusterSettings(msgspec.Struct, frozen=True):
    """Where the Kubernetes API server is asked about which DaemonSet and node, before anything is cleaned up."""

    daemon_set: str
    node: str
    host: str
    """An address or a name, an IPv6 address without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""


class DeletionSettings(msgspec.Struct, frozen=True):
    """Which DaemonSet is to be deleted, and where the Kubernetes API server is told so."""

    daemon_set: str
    """Its name; it is in the namespace of the pod that this runs in."""
    host: str
    """An address or a name, an IPv6 address without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""


class Taint(msgspec.Struct, frozen=True):
    """A taint of a node. Two are the same taint if key and effect are (core/v1, Taint.MatchTaint)."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class ReportSettings(msgspec.Struct, frozen=True):
    """What the cluster is told of the node, and where."""

    node: str
    host: str
    """An address or a name, an IPv6 address without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""
    daemon_set: str | None = None
    """Whose pod this is; None where nobody said."""
    condition: str | None = None
    """The type of the condition that is kept on the node."""
    taint: Taint | None = None
    """The taint that is taken away once the node is ready."""
    retaint: bool = False
    """Put the taint back whenever the node is not ready."""
    labels: bool = False
    events: bool = False


class Program(enum.StrEnum):
    """The names that the program is installed under; each speaks its generation's defaults."""

    TOOLKIT_INSTALLER = "toolkit-installer"
    NVIDIA_TOOLKIT = "nvidia-toolkit"
    NVIDIA_CTK_INSTALLER = "nvidia-ctk-installer"


PID_FILES = ("/run/nvidia/toolkit.pid", "/run/nvidia/toolkit/toolkit.pid")
"""The usual PID files of this installer and of NVIDIA's own: whoever holds one of them holds both."""
NRI_PID_FILE = "/run/nvidia/toolkit-installer.nri.pid"
"""Held besides by a run that serves the NRI plugin: engines refuse what two plugins give the same device."""


@final
class EngineName(str):
    """The name of a container engine; which engines there are is for the registry to say (engines/registry.py).

    A name is the same object each time: names are compared by `is`.
    """

    __slots__ = ()
    _known: ClassVar[dict[str, EngineName]] = {}
    DOCKER: ClassVar[EngineName]
    CONTAINERD: ClassVar[EngineName]
    CRIO: ClassVar[EngineName]

    def __new__(cls, name: str) -> EngineName:
        """Return the one object that is this name."""
        return cls._known.setdefault(name, super().__new__(cls, name))


EngineName.DOCKER = EngineName("docker")
EngineName.CONTAINERD = EngineName("containerd")
EngineName.CRIO = EngineName("crio")


class ReloadMode(enum.StrEnum):
    """How an engine is made to take its configuration over (`--restart-mode`)."""

    SIGNAL = "signal"
    SYSTEMD = "systemd"
    NONE = "none"


class ConfigMode(enum.StrEnum):
    """How CRI-O is made to use the toolkit (`--config-mode`)."""

    CONFIG = "config"
    HOOK = "hook"


class Method(enum.StrEnum):
    """How containers get the GPU (`--method`), and what is asked for where the node is to decide."""

    HANDLERS = "handlers"
    """Named OCI runtimes in the engine's own configuration."""
    CDI = "cdi"
    """CDI specifications that the engine reads by itself."""
    NRI = "nri"
    """CDI devices that a plugin of the engine hands out, while a run waits."""
    AUTO = "auto"
    """The one that changes least, of those that the node supports."""


class Cleanup(enum.StrEnum):
    """When the changes are reverted on exit (`--cleanup`)."""

    ALWAYS = "always"
    NEVER = "never"
    AUTO = "auto"


class OnDrift(enum.StrEnum):
    """What a waiting run does when somebody changed a managed file (`--on-drift`)."""

    REPORT = "report"
    REPAIR = "repair"
    IGNORE = "ignore"


class WithoutGpu(enum.StrEnum):
    """What a run does on a node that shows no NVIDIA GPU (`--without-gpu`)."""

    INSTALL = "install"
    IDLE = "idle"


class LogFormat(enum.StrEnum):
    """How log lines look."""

    CONSOLE = "console"
    LOGFMT = "logfmt"
    JSON = "json"


AUTO = "auto"
"""Stands for a path of the driver that is found on the node (`--driver-root auto`): no path is relative."""


class CdiSettings(msgspec.Struct, frozen=True):
    """The CDI specification for management containers. `folder` is the node's."""

    enabled: bool = False
    folder: str = "/var/run/cdi"
    kind: str = "management.nvidia.com/gpu"
    """vendor/class of its devices."""
    control_nodes: bool = True
    """Create the driver's control device nodes where they are missing."""

    @property
    def path(self) -> str:
        """Where the specification is: named after its kind, as CDI's own library names it."""
        return f"{self.folder.rstrip('/')}/{self.kind.replace('/', '-')}.yaml"


class ToolkitSettings(msgspec.Struct, frozen=True):
    """The install step. Paths are the node's, but for `source_root`, which is the installer's own.

    Of the driver's four, those that are to be found on the node are AUTO.
    """

    install_dir: str = "/usr/local/nvidia"
    source_root: str | None = None
    package_type: str = "auto"
    verify_payload: bool = False
    """Read every file of the toolkit and of the payload, whatever the receipt remembers of it."""
    driver_root: str = "/run/nvidia/driver"
    driver_root_ctr_path: str = "/run/nvidia/driver"
    """Where the driver root is mounted in the installer's container; the installer's own path."""
    dev_root: str = "/run/nvidia/driver"
    dev_root_ctr_path: str = "/run/nvidia/driver"
    """Where the device root is mounted in the installer's container; the installer's own path."""
    runtime_debug: str | None = None
    runtime_log_level: str | None = None
    runtime_mode: str | None = None
    cdi_default_kind: str | None = None
    cdi_annotation_prefixes: tuple[str, ...] = ()
    low_level_runtimes: tuple[str, ...] = ()
    hook_skip_mode_detection: bool = True
    cli_debug: str | None = None
    accept_envvar_when_unprivileged: bool = True
    accept_volume_mounts: bool = False
    opt_in_features: tuple[str, ...] = ()
    cdi: CdiSettings = CdiSettings()

    @property
    def folder(self) -> str:
        """The toolkit's folder on the node."""
        return f"{self.install_dir.rstrip('/')}/toolkit"


class EngineSettings(msgspec.Struct, frozen=True):
    """The engine step. None means: the engine's own default, looked up on the node."""

    config: str | None = None
    drop_in: str | None = None
    drop_in_host_path: str | None = None
    socket: str | None = None
    executable: str | None = None
    reload_mode: ReloadMode | None = None
    runtime_name: str = "nvidia"
    set_as_default: bool = True
    runtime_type: str | None = None
    runtime_config_override: str = "{}"
    """A JSON object that is merged into the options of containerd's handlers."""
    use_legacy_config: bool = False
    """Make the handler the default as containerd before 1.3 reads it, in files of version 1."""
    allow_restart: bool = False
    """systemd may restart docker although its running containers would die."""
    container_annotations: tuple[str, ...] = ()
    """Globs of the annotations that containerd lets through to the handlers."""
    answer_timeout: float = 60.0
    """Seconds that an engine gets to answer which runs and does not answer yet."""
    enable_cdi: bool = False
    """Turn CDI on in the engine itself (`--enable-cdi-in-runtime`)."""
    config_sources: tuple[str, ...] = ()
    """Any of command, file and file=/path; empty: the engine's own default."""
    config_mode: ConfigMode = ConfigMode.CONFIG
    """CRI-O only, as are the two below."""
    hooks_dir: str = "/usr/share/containers/oci/hooks.d"
    hook_filename: str = "oci-nvidia-hook.json"


class NriSettings(msgspec.Struct, frozen=True):
    """The NRI plugin, which hands out CDI devices while a run waits."""

    namespaces: tuple[str, ...]
    """The Kubernetes namespaces whose pods may have management devices."""
    socket: str = "/var/run/nri/nri.sock"
    """The engine's NRI socket on the node."""
    index: int = 10
    """Its place among the engine's plugins, 0 to 99."""
    strict: bool = True
    """What asks for management devices elsewhere is refused; otherwise it starts without them."""


class Address(msgspec.Struct, frozen=True):
    """Where somebody listens."""

    host: str
    """An IPv4 or IPv6 address; empty: all addresses of the machine."""
    port: int

    def __str__(self) -> str:
        """Return it as it was given."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(msgspec.Struct, frozen=True):
    """Everything that was asked for, checked as far as it can be without looking at the node."""

    program: Program = Program.TOOLKIT_INSTALLER
    runtimes: tuple[EngineName, ...] = ()
    """The engines to configure, in this order; none: recognised on the node (`--runtime auto`)."""
    node_root: str | None = None
    """None: paths are those of the installer's mount namespace, used as they are."""
    host_root: str = "/host"
    toolkit: ToolkitSettings = ToolkitSettings()
    engine: EngineSettings = EngineSettings()
    daemon: bool = True
    configure_engine: bool = True
    method: Method = Method.HANDLERS
    nri: NriSettings | None = None
    """The NRI plugin, None where none is served."""
    pid_file: str = "/run/nvidia/toolkit.pid"
    debug: bool = False
    log_format: LogFormat | None = None
    """None: console on a terminal, logfmt otherwise."""
    require_live: bool = False
    """Change nothing unless each engine answers now, and will serve the handlers once this run is done."""
    verify_with_canary: bool = False
    """Start a short container through each handler after a reload, and take the change back if one fails."""
    wait_for_driver: bool = False
    """Where a driver is needed and none is usable, change nothing until there is one, in place of ending with 8."""
    cleanup: Cleanup = Cleanup.ALWAYS
    cluster: ClusterSettings | None = None
    """Whom `--cleanup auto` asks; None where nothing is cleaned up for it to ask about."""
    reports: ReportSettings | None = None
    """What the cluster is told; None where it is told nothing."""
    metrics_textfile: str | None = None
    """Holds metrics as Prometheus reads them; the installer's own path."""
    metrics_address: Address | None = None
    """Where metrics are served over HTTP."""
    ready_file: str | None = None
    """Is there while the engines serve the handlers; the installer's own path."""
    keep_toolkit: bool = False
    """Leave the toolkit's files on the node after cleanup."""
    on_drift: OnDrift = OnDrift.REPORT
    without_gpu: WithoutGpu = WithoutGpu.INSTALL
    reload_timeout: float = 60.0
    """Seconds that the engine gets to serve a change."""
    reload_budget: tuple[int, float] = (3, 600.0)
    """At most so many reloads for installing within so many seconds."""
    reload_when: str = "now"
    """When a reload for installing is made: now, idle, or windows as applying/reload_windows.py reads them."""
    engine_of: tuple[tuple[EngineName, EngineSettings], ...] = ()
    """Unless `runtimes` is one: for engines of which something else was asked than `engine` says. They differ by the
    variables that speak of one engine only, such as DOCKER_CONFIG; `engine` itself is then containerd's."""

    @property
    def counts(self) -> bool:
        """Whether anybody reads metrics."""
        return self.metrics_textfile is not None or self.metrics_address is not None

    @property
    def pid_files_besides(self) -> tuple[str, ...]:
        """The PID files that its run holds besides its own and the usual ones."""
        return (NRI_PID_FILE,) if self.nri is not None else ()

    def paths(self) -> tuple[str, ...]:
        """Return the files and sockets of the node that are named, by default or by the caller."""
        own = [self.engine, *(settings for _, settings in self.engine_of)]
        named = [path for each in own for path in (each.config, each.drop_in, each.socket) if path is not None]
        hooks = [f"{each.hooks_dir.rstrip('/')}/{each.hook_filename}" for each in own]
        return tuple(dict.fromkeys([*named, *hooks, self.toolkit.cdi.path, self.toolkit.folder, self.pid_file]))

    def asked_of(self, name: EngineName) -> EngineSettings:
        """Return what was asked of this engine."""
        return dict(self.engine_of).get(name, self.engine)
