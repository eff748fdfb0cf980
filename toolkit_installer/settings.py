"""The program's settings as frozen, validated values, made from flags and variables. Pure."""

from __future__ import annotations

import enum
from typing import ClassVar, final

import msgspec

CONDITION = "nvidia.com/ContainerToolkitReady"
"""The default type of the node's condition."""


class ClusterSettings(msgspec.Struct, frozen=True):
    """The DaemonSet and node to query before a cleanup, and the Kubernetes API server."""

    daemon_set: str
    node: str
    host: str
    """A host name or an address, IPv6 without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""


class DeletionSettings(msgspec.Struct, frozen=True):
    """The DaemonSet to delete, and the Kubernetes API server."""

    daemon_set: str
    """Its name; it is in the namespace of this process's pod."""
    host: str
    """A host name or an address, IPv6 without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""


class Taint(msgspec.Struct, frozen=True):
    """A taint of a node. Two taints are the same if key and effect are equal (core/v1, Taint.MatchTaint)."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class ReportSettings(msgspec.Struct, frozen=True):
    """What to report about the node, and the Kubernetes API server to report it to."""

    node: str
    host: str
    """A host name or an address, IPv6 without brackets."""
    port: int = 443
    service_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """The folder of `token`, `ca.crt` and `namespace`; the installer's own path."""
    daemon_set: str | None = None
    """The DaemonSet of this process's pod; None if not given."""
    condition: str | None = None
    """The type of the condition to keep up to date on the node."""
    taint: Taint | None = None
    """The taint to remove once the node is ready."""
    retaint: bool = False
    """Add the taint again whenever the node is not ready."""
    labels: bool = False
    events: bool = False


class Program(enum.StrEnum):
    """The names that the program is installed under; each has the defaults of its generation."""

    TOOLKIT_INSTALLER = "toolkit-installer"
    NVIDIA_TOOLKIT = "nvidia-toolkit"
    NVIDIA_CTK_INSTALLER = "nvidia-ctk-installer"


PID_FILES = ("/run/nvidia/toolkit.pid", "/run/nvidia/toolkit/toolkit.pid")
"""The usual PID files of this installer and of NVIDIA's own: a run that locks one locks both."""
NRI_PID_FILE = "/run/nvidia/toolkit-installer.nri.pid"
"""Locked by a run that serves the NRI plugin, too: engines refuse a container that two plugins give the same device."""


@final
class EngineName(str):
    """The name of a container engine; engines/registry.py lists the engines.

    Equal names are one object: code compares them by `is`.
    """

    __slots__ = ()
    _names: ClassVar[dict[str, EngineName]] = {}
    DOCKER: ClassVar[EngineName]
    CONTAINERD: ClassVar[EngineName]
    CRIO: ClassVar[EngineName]

    def __new__(cls, name: str) -> EngineName:
        """Return the one object for this name."""
        return cls._names.setdefault(name, super().__new__(cls, name))


EngineName.DOCKER = EngineName("docker")
EngineName.CONTAINERD = EngineName("containerd")
EngineName.CRIO = EngineName("crio")


class ReloadMode(enum.StrEnum):
    """How an engine is made to load its configuration (`--restart-mode`)."""

    SIGNAL = "signal"
    SYSTEMD = "systemd"
    NONE = "none"


class ConfigMode(enum.StrEnum):
    """How CRI-O is configured to use the toolkit (`--config-mode`)."""

    CONFIG = "config"
    HOOK = "hook"


class Method(enum.StrEnum):
    """How containers get the GPU (`--method`); AUTO lets the node decide."""

    HANDLERS = "handlers"
    """Named OCI runtimes in the engine's own configuration."""
    CDI = "cdi"
    """CDI specifications that the engine reads by itself."""
    NRI = "nri"
    """CDI devices that an NRI plugin adds to containers while a run waits."""
    AUTO = "auto"
    """The method that changes least, of those that the node supports."""


class Cleanup(enum.StrEnum):
    """When the changes are reverted on exit (`--cleanup`)."""

    ALWAYS = "always"
    NEVER = "never"
    AUTO = "auto"


class OnDrift(enum.StrEnum):
    """What a waiting run does when a managed file was changed (`--on-drift`)."""

    REPORT = "report"
    REPAIR = "repair"
    IGNORE = "ignore"


class WithoutGpu(enum.StrEnum):
    """What a run does on a node without an NVIDIA GPU (`--without-gpu`)."""

    INSTALL = "install"
    IDLE = "idle"


class LogFormat(enum.StrEnum):
    """The format of log lines."""

    CONSOLE = "console"
    LOGFMT = "logfmt"
    JSON = "json"


AUTO = "auto"
"""Stands for a path of the driver to find on the node (`--driver-root auto`); real paths are absolute."""


class CdiSettings(msgspec.Struct, frozen=True):
    """The CDI specification for management containers. `folder` is the node's."""

    enabled: bool = False
    folder: str = "/var/run/cdi"
    kind: str = "management.nvidia.com/gpu"
    """vendor/class of its devices."""
    control_nodes: bool = True
    """Create the driver's control device nodes if they are missing."""

    @property
    def path(self) -> str:
        """The specification's path: named after its kind, as CDI's own library names it."""
        return f"{self.folder.rstrip('/')}/{self.kind.replace('/', '-')}.yaml"


class ToolkitSettings(msgspec.Struct, frozen=True):
    """Settings of the install step. Paths are the node's, except `source_root`, which is the installer's own.

    Each of the driver's four paths may be AUTO: to be found on the node.
    """

    install_dir: str = "/usr/local/nvidia"
    source_root: str | None = None
    package_type: str = "auto"
    verify_payload: bool = False
    """Read every file of the toolkit and of the payload, even if the receipt says that it is unchanged."""
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
    """Settings of the engine step. None is the engine's own default, looked up on the node."""

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
    """Write the default handler as containerd before 1.3 reads it, in files of version 1."""
    allow_restart: bool = False
    """Let systemd restart docker although that ends its running containers."""
    container_annotations: tuple[str, ...] = ()
    """Globs of the annotations that containerd passes to the handlers."""
    answer_timeout: float = 60.0
    """Seconds that an engine which runs already has to respond."""
    enable_cdi: bool = False
    """Enable CDI in the engine itself (`--enable-cdi-in-runtime`)."""
    config_sources: tuple[str, ...] = ()
    """Any of command, file and file=/path; empty: the engine's own default."""
    config_mode: ConfigMode = ConfigMode.CONFIG
    """CRI-O only, like the two below."""
    hooks_dir: str = "/usr/share/containers/oci/hooks.d"
    hook_filename: str = "oci-nvidia-hook.json"


class NriSettings(msgspec.Struct, frozen=True):
    """The NRI plugin, which adds CDI devices to containers while a run waits."""

    namespaces: tuple[str, ...]
    """The Kubernetes namespaces whose pods may use management devices."""
    socket: str = "/var/run/nri/nri.sock"
    """The engine's NRI socket on the node."""
    index: int = 10
    """Its place among the engine's plugins, 0 to 99."""
    strict: bool = True
    """Refuse a container elsewhere that requests management devices; otherwise it starts without them."""


class Address(msgspec.Struct, frozen=True):
    """An address to listen on."""

    host: str
    """An IPv4 or IPv6 address; empty: all addresses of the machine."""
    port: int

    def __str__(self) -> str:
        """Return the address as the option has it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(msgspec.Struct, frozen=True):
    """All settings of a command, validated as far as possible without inspecting the node."""

    program: Program = Program.TOOLKIT_INSTALLER
    runtimes: tuple[EngineName, ...] = ()
    """The engines to configure, in this order; empty: detect them on the node (`--runtime auto`)."""
    node_root: str | None = None
    """None: paths are those of the installer's mount namespace, used as they are."""
    host_root: str = "/host"
    toolkit: ToolkitSettings = ToolkitSettings()
    engine: EngineSettings = EngineSettings()
    daemon: bool = True
    configure_engine: bool = True
    method: Method = Method.HANDLERS
    nri: NriSettings | None = None
    """The NRI plugin, None to serve none."""
    pid_file: str = "/run/nvidia/toolkit.pid"
    debug: bool = False
    log_format: LogFormat | None = None
    """None: console on a terminal, logfmt otherwise."""
    require_live: bool = False
    """Change nothing unless each engine responds now, and will serve the handlers once this run is done."""
    verify_with_canary: bool = False
    """Start a short container through each handler after a reload, and roll back if one fails."""
    wait_for_driver: bool = False
    """If a driver is needed and none is usable, wait for one before any change, instead of ending with 8."""
    cleanup: Cleanup = Cleanup.ALWAYS
    cluster: ClusterSettings | None = None
    """What `--cleanup auto` queries; None if it has nothing to decide."""
    reports: ReportSettings | None = None
    """What to report to the cluster; None for nothing."""
    metrics_textfile: str | None = None
    """The file for metrics in Prometheus's format; the installer's own path."""
    metrics_address: Address | None = None
    """The address at which to serve metrics over HTTP."""
    ready_file: str | None = None
    """A file that exists while the engines serve the handlers; the installer's own path."""
    keep_toolkit: bool = False
    """Leave the toolkit's files on the node after cleanup."""
    on_drift: OnDrift = OnDrift.REPORT
    without_gpu: WithoutGpu = WithoutGpu.INSTALL
    reload_timeout: float = 60.0
    """Seconds that the engine gets to serve a change."""
    reload_budget: tuple[int, float] = (3, 600.0)
    """The most reloads for installing, and within how many seconds."""
    reload_when: str = "now"
    """When to reload for installing: now, idle, or windows in the syntax of applying/reload_windows.py."""
    engine_of: tuple[tuple[EngineName, EngineSettings], ...] = ()
    """Unless `runtimes` is one: the engines whose settings differ from `engine`, by variables for one engine only, such
    as DOCKER_CONFIG; `engine` itself is then containerd's."""

    @property
    def counts(self) -> bool:
        """Whether metrics are written or served."""
        return self.metrics_textfile is not None or self.metrics_address is not None

    @property
    def pid_files_besides(self) -> tuple[str, ...]:
        """The PID files that a run locks besides its own and the usual ones."""
        return (NRI_PID_FILE,) if self.nri is not None else ()

    def paths(self) -> tuple[str, ...]:
        """Return the files and sockets of the node that these settings name, given or by default."""
        own = [self.engine, *(settings for _, settings in self.engine_of)]
        named = [path for each in own for path in (each.config, each.drop_in, each.socket) if path is not None]
        hooks = [f"{each.hooks_dir.rstrip('/')}/{each.hook_filename}" for each in own]
        return tuple(dict.fromkeys([*named, *hooks, self.toolkit.cdi.path, self.toolkit.folder, self.pid_file]))

    def settings_of(self, name: EngineName) -> EngineSettings:
        """Return the settings of this engine."""
        return dict(self.engine_of).get(name, self.engine)
