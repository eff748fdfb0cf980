"""The allowlist of keys and flags whose values in files, command lines and variables of others are shown. Pure.

All other values may be secret and are masked (masking.py). The list has the keys that the program reads, and keys that
help to diagnose a fault; none of them holds a secret. The value of a listed key is shown only in the form of a name,
path, number or image reference, which no user with a password and no query string has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Final

HIDDEN: Final = "****"
"""The text shown instead of a hidden value."""
ANY: Final = "*"
"""Matches any name that an administrator chose, such as a runtime's."""
TOP: Final = "^"
"""Matches the top of a document: deeper down, another program may use a key of that name."""

_DOCKER = """
^/version ^/debug ^/hosts ^/group ^/pidfile ^/root data-root exec-root storage-driver ^/bridge log-level log-format
log-driver log-opts/max-size log-opts/max-file live-restore ^/iptables ^/ip6tables ip-forward ip-masq ^/ipv6 ^/icc ^/mtu
^/experimental selinux-enabled no-new-privileges
seccomp-profile shutdown-timeout max-concurrent-downloads max-concurrent-uploads default-shm-size default-ipc-mode
default-cgroupns-mode ^/init init-path userland-proxy userns-remap cgroup-parent ^/containerd containerd-namespace
containerd-plugin-namespace exec-opts features/cdi features/containerd-snapshotter features/buildkit cdi-spec-dirs
default-runtime runtimes/*/path runtimes/*/runtimeType Runtimes/*/path Runtimes/*/runtimeType
CgroupDriver CgroupVersion ^/Driver DockerRootDir KernelVersion ^/OSType ^/Architecture InitBinary
CDISpecDirs ContainersRunning DefaultRuntime LiveRestoreEnabled OperatingSystem SecurityOptions ServerVersion ^/Version
^/ApiVersion
"""
"""daemon.json, and dockerd's responses."""

_CONTAINERD = """
^/imports required_plugins disabled_plugins ^/state ^/temp oom_score plugin_dir ttrpc/uid ttrpc/gid grpc/address
grpc/uid grpc/gid grpc/max_recv_message_size grpc/max_send_message_size ttrpc/address metrics/address
metrics/grpc_histogram cgroup/path debug/address debug/uid debug/gid debug/format debug/level default_runtime_name
default_runtime/runtime_type default_runtime/runtime_engine default_runtime/runtime_root runtimes/*/runtime_type
runtimes/*/runtime_path runtimes/*/runtime_root runtimes/*/runtime_engine runtimes/*/privileged_without_host_devices
runtimes/*/privileged_without_host_devices_all_devices_allowed runtimes/*/base_runtime_spec runtimes/*/cni_conf_dir
runtimes/*/cni_max_conf_num runtimes/*/snapshotter runtimes/*/sandboxer runtimes/*/sandbox_mode runtimes/*/io_type
runtimes/*/pod_annotations runtimes/*/container_annotations runtimes/*/cgroup_writable
options/BinaryName options/Runtime options/Root options/CriuPath options/CriuImagePath options/CriuWorkPath
options/SystemdCgroup options/NoPivotRoot options/NoNewKeyring options/ShimCgroup options/IoUid options/IoGid
options/ConfigPath options/TypeUrl options/TaskApiAddress options/TaskApiVersion options/PodAnnotations
options/PrivilegedWithoutHostDevices
sandbox_image pinned_images/sandbox containerd/snapshotter images/snapshotter
io.containerd.cri.v1.images/snapshotter io.containerd.runtime.v1.linux/runtime io.containerd.runtime.v1.linux/shim
linux/runtime linux/shim proxy_plugins/*/type proxy_plugins/*/address disable_snapshot_annotations
discard_unpacked_layers no_pivot enable_cdi cdi_spec_dirs enable_selinux enable_tls_streaming enable_unprivileged_ports
enable_unprivileged_icmp restrict_oom_score_adj max_container_log_line_size max_concurrent_downloads systemd_cgroup
disable_cgroup disable_apparmor disable_hugetlb_controller disable_proc_mount disable_tcp_service stream_server_address
stream_server_port stream_idle_timeout device_ownership_from_security_context ignore_image_defined_volumes
tolerate_missing_hugetlb_controller drain_exec_sync_io_timeout image_pull_progress_timeout netns_mounts_under_state_dir
stats_collect_period cni/bin_dir cni/bin_dirs cni/conf_dir cni/conf_template cni/max_conf_num cni/ip_pref
registry/config_path root_path shim_debug no_shim io.containerd.internal.v1.opt/path plugin_path plugin_config_path
plugin_registration_timeout plugin_request_timeout disable_connections socket_path io.containerd.nri.v1.nri/disable
nri/disable content_sharing_policy
defaultRuntimeName runtimes/*/runtimePath runtimes/*/runtimeRoot runtimes/*/runtimeEngine runtimes/*/PodAnnotations
runtimes/*/ContainerAnnotations runtimes/*/sandboxMode runtimes/*/privilegedWithoutHostDevices
runtimes/*/baseRuntimeSpec runtimes/*/cniConfDir runtimes/*/cniMaxConfNum enableCDI cdiSpecDirs sandboxImage
containerdRootDir containerdEndpoint rootDir stateDir systemdCgroup enableSelinux
^/name ^/handlers ^/identity ^/namespace annotations/io.kubernetes.cri-o.RuntimeHandler
"""
"""containerd's files, `containerd config dump`, and CRI responses."""

_CRIO = """
crio/root crio/runroot storage_driver log_level log_format log_dir log_to_journald log_size_max log_filter
cgroup_manager runtime/conmon conmon_cgroup default_runtime hooks_dir runtime/selinux pids_limit runtime/read_only
infra_ctr_cpuset drop_infra_ctr manage_ns_lifecycle namespaces_dir pinns_path container_exits_dir
container_attach_socket_dir bind_mount_prefix apparmor_profile seccomp_profile api/listen stream_address stream_port
plugin_dirs network_dir cni_default_network pause_image pause_command enable_criu_support enable_pod_events enable_nri
signature_policy nri_listen nri_disable_connections nri_plugin_dir nri_plugin_config_dir nri_plugin_registration_timeout
nri_plugin_request_timeout separate_pull_cgroup metrics_port enable_metrics internal_wipe internal_repair
clean_shutdown_file version_file version_file_persist image_volumes ctr_stop_timeout runtimes/*/monitor_path
runtimes/*/monitor_cgroup runtimes/*/allowed_annotations runtimes/*/runtime_config_path runtimes/*/container_min_memory
runtimes/*/inherit_default_runtime runtimes/*/default_annotations_allowed runtimes/*/no_sync_log
runtimes/*/stream_websockets runtimes/*/exec_cpu_affinity platform_runtime_paths/*
hook/path when/always when/commands stages
CONTAINER_CONFIG CONTAINER_CONFIG_DIR CONTAINER_RUNTIMES CONTAINER_DEFAULT_RUNTIME CONTAINER_HOOKS_DIR CONTAINER_LISTEN
CONTAINER_ROOT CONTAINER_RUNROOT CONTAINER_STORAGE_DRIVER CONTAINER_CGROUP_MANAGER CONTAINER_CONMON
CONTAINER_LOG_LEVEL
"""
"""CRI-O's files, hooks and variables."""

_KUBERNETES = """
containerRuntimeEndpoint imageServiceEndpoint cgroupDriver cgroupRoot cgroupsPerQOS ^/kind ^/apiVersion staticPodPath
failSwapOn maxPods resolvConf volumePluginDir container-runtime-endpoint image-service-endpoint data-dir ^/docker
nonroot-devices node-name prefer-bundled-bin ^/snapshotter pause-image private-registry
"""
"""The kubelet's configuration, and the options of k3s and RKE2."""

_NVIDIA = """
cdiVersion devices/name deviceNodes/path deviceNodes/hostPath deviceNodes/type deviceNodes/major deviceNodes/minor
deviceNodes/permissions deviceNodes/fileMode deviceNodes/uid deviceNodes/gid mounts/hostPath mounts/containerPath
mounts/type hooks/hookName hooks/path additionalGids
nvidia-container-cli/path nvidia-container-cli/root nvidia-container-cli/ldconfig nvidia-container-cli/load-kmods
nvidia-container-cli/no-cgroups nvidia-container-cli/user nvidia-container-cli/debug nvidia-container-cli/ldcache
nvidia-container-runtime/debug nvidia-container-runtime/mode nvidia-container-runtime/runtimes
nvidia-container-runtime-hook/path nvidia-container-runtime-hook/skip-mode-detection nvidia-ctk/path cdi/spec-dirs
cdi/default-kind cdi/annotation-prefixes csv/mount-spec-path legacy/cuda-compat-mode disable-require
supported-driver-capabilities swarm-resource accept-nvidia-visible-devices-envvar-when-unprivileged
accept-nvidia-visible-devices-as-volume-mounts
IS_HOST_DRIVER NVIDIA_DRIVER_ROOT DRIVER_ROOT_CTR_PATH NVIDIA_DEV_ROOT DEV_ROOT_CTR_PATH GPU_DIRECT_RDMA_ENABLED
USE_HOST_MOFED
"""
"""CDI specifications, the toolkit's config.toml, and the files of the GPU Operator's validator."""

_SYSTEM = """
^/ID PRETTY_NAME ID_LIKE VERSION_ID VERSION_CODENAME VARIANT_ID
LoadState ActiveState SubState MainPID Restart RestartUSec KillMode ^/Type Service/Type Service/User ^/Id ^/Names
TriggeredBy Triggers NeedDaemonReload UnitFileState FragmentPath DropInPaths After Requires Wants PartOf BindsTo
RequiredBy BoundBy ConsistsOf WantedBy NRestarts Result ExecMainStatus InvocationID PreparingForShutdown Delegate
TimeoutStartUSec TimeoutStopUSec StartLimitBurst StartLimitIntervalUSec EnvironmentFile WorkingDirectory
^/HOME ^/PATH XDG_CONFIG_HOME K3S_CONFIG_FILE RKE2_CONFIG_FILE K3S_DATA_DIR CONTAINERD_CONFIG CONTAINERD_NAMESPACE
^/SNAP SNAP_DATA SNAP_COMMON
"""
"""os-release, systemd's units and responses, and variables that name files."""

KEYS: Final = frozenset(
    tuple(path.split("/"))
    for table in (_DOCKER, _CONTAINERD, _CRIO, _KUBERNETES, _NVIDIA, _SYSTEM)
    for path in table.split()
)
"""Suffixes of key paths, and whole paths, which begin with TOP. An element of a list has the path of its list."""

_PLACE_KEYS = """
root Root state temp pidfile hosts containerd conmon listen address init signature_policy private-registry HOME PATH
"""
_PLACES: Final = frozenset(_PLACE_KEYS.split())
"""Keys whose value is a path or address: any other text below such a key is no setting, and may be a secret."""

_SENTENCES: Final = frozenset({"OperatingSystem", "PRETTY_NAME", "ID_LIKE"})
"""Keys whose value has blanks, such as an engine's description of its system."""
_UNIT_KEYS = (
    "After Requires Wants PartOf BindsTo RequiredBy BoundBy ConsistsOf WantedBy Triggers TriggeredBy Names DropInPaths"
)
_UNITS: Final = frozenset(_UNIT_KEYS.split())
"""Keys whose value may be several names of units or files."""

COMMANDS: Final = frozenset({"ExecStart", "ExecStartPre", "ExecStartPost", "ExecReload", "ExecStop", "argv[]"})
"""Keys whose value is a command line."""

_FLAGS = """
log-level storage-driver default-runtime exec-opt feature bridge iptables live-restore container-runtime
network-plugin pod-infra-container-image cgroup-driver cgroup-manager snapshotter log-size-max enable-nri enable-cdi
containerd-namespace containerd-plugins-namespace runtime-type device-name-strategy container-runtime-mode
config config-file config-dir kubelet-args-file pause-image data-dir data-root root state exec-root
namespace id version mode class vendor query-gpu property unit format lines output since group G
"""
FLAGS: Final = frozenset(_FLAGS.split())
"""Flags, without their dashes, whose value is shown."""

_PLACE_FLAGS = """
c config-source d containerd a address host H pidfile
add-runtime runtimes hooks-dir cdi-spec-dir container-runtime-endpoint image-service-endpoint
cri-socket runtime-endpoint runtime-cgroups root-dir private-registry resolv-conf publish-binary bundle b runtime r
exit-command exit-dir persist-dir socket-dir-path p runtime-config-override driver-root dev-root
library-search-path nvidia-cdi-hook-path nvidia-ctk-path ldconfig-path toolkit-install-dir conmon log-dir listen
"""
PLACE_FLAGS: Final = frozenset(_PLACE_FLAGS.split())
"""Flags, without their dashes, whose value is shown if it is a path or address."""

_RUNTIME_FLAGS: Final = frozenset({"add-runtime", "runtimes"})
"""Flags whose value is the name of a runtime, `=` or `:`, and a path."""
_FLAGS_OF_OTHERS: Final = frozenset({"kubelet-arg"})
"""Flags whose value is another program's flag with its value."""

_WORDS = """
server agent daemon run shim start serve worker controller node kubelet dockerd containerd crio cri-o config dump show
generate cdi version create delete status is-active is-system-running show-session path argv[] ignore_errors start_time
stop_time pid code no yes HUP prestart createContainer nvidia-container-runtime-hook nvidia-container-toolkit
nvidia-cdi-hook nvidia-ctk hook create-symlinks update-ldcache enable-cuda-compat { } ; -- n/a (null) exited
"""
WORDS: Final = frozenset(_WORDS.split())
"""Words of a command line other than flags that are shown, and names before an `=`."""

ARGUMENTS: Final = re.compile(r"(?i)\w{0,64}(?:args|arguments|opts|options|flags)")
"""Names of variables that hold words of a command line."""

COMMENTS: Final = re.compile(
    r"# ?(?:Written by toolkit-installer|Added by toolkit-installer|End of what toolkit-installer added\.).*|"
    r"# File generated by (?:k3s|rke2)\. DO NOT EDIT\.(?: Use config(?:-v3)?\.toml\.tmpl instead\.)?|"
    r"# k0s_managed=true"
)
"""Comments that this program writes, or by which it recognizes the program that generated a file."""

_ACTION_WORDS: Final = frozenset(
    {"if", "else", "end", "range", "with", "not", "and", "or", "index", ":=", ",", "template"}
)
_FIELD = re.compile(r"(?:\$[A-Za-z]{0,32}|)(?:\.[A-Za-z.]{0,128}|),?")
_NAME = re.compile(r'"[A-Za-z0-9_.-]{1,64}"')
_BEFORE_NAMES: Final = frozenset({"template", ".ExtraRuntimes"})
"""Words of a template action that a quoted name follows; other quotes may hold anything."""

_SNAP = r"\$\{SNAP(?:_DATA|_COMMON)?\}(?=/)"
"""The begin of paths in the files of microk8s."""
_HARMLESS = re.compile(
    rf"(?!https?:)(?:(?:unix|fd|tcp|npipe|vsock)://)?(?:@(?=/)|{_SNAP})?"
    r"[A-Za-z0-9_./:*+~=,\[\]-]{0,1024}(?:@sha256:[0-9a-f]{64})?|\$\{[A-Z_]{1,64}\}"
)
"""The form of a harmless value. A web address is not: the URL alone may grant access."""
_ODD_PATH = re.compile(r"/[A-Za-z0-9_ ./@+~,%()-]{0,1024}")
"""A path with blanks or the like, accepted only if the whole value is a path."""
_PLACE = re.compile(
    rf"(?:unix|fd|tcp|npipe|vsock):/|@?/(?![^=+]*[=+])|{_SNAP}|(?:[0-9.]{{7,15}}|\[[0-9a-f:]{{2,39}}\]):[0-9]{{1,5}}\Z"
)
"""The begin of a path or address. Base64 text may begin with a slash, too."""
_UNIT_NAME = re.compile(r"[A-Za-z0-9_./@:\\-]{1,256}")
_UNIT_TYPES = (
    *(".service", ".socket", ".target", ".mount", ".automount", ".slice", ".scope", ".timer", ".path", ".device"),
    *(".swap", ".conf"),
)
_SHORT_PLACE = re.compile(r"/[^/]*")
_KEY = re.compile(r"[A-Za-z0-9_./:*\[\]-]{1,128}")
_OUTPUT = re.compile(r"[A-Za-z0-9_.,:+~/() \t-]{0,256}")


def is_shown_key(path: Sequence[str]) -> bool:
    """Return whether a key's values are shown if they are harmless. `path`: all keys that lead to it."""
    return _leads(_tree(), path)


def is_shown_value(path: Sequence[str], value: str) -> bool:
    """Return whether a value below the keys `path` is shown."""
    if len(path) > 1 and path[-2] in _FLAGS_OF_OTHERS:
        return path[-1] not in _FLAGS_OF_OTHERS and is_shown_flag(path[-1], value)
    if path and path[-1] in _FLAGS_OF_OTHERS:
        return is_shown_flag(path[-1], value)
    if not is_shown_key(path):
        return False
    if path[-1] in _SENTENCES:
        return is_plain_output(value)
    if path[-1] in _UNITS and " " in value:
        return all(_UNIT_NAME.fullmatch(name) and name.endswith(_UNIT_TYPES) for name in value.split())
    return _ODD_PATH.fullmatch(value) is not None or (
        is_harmless(value) and (path[-1] not in _PLACES or is_place(value))
    )


def is_place(value: str) -> bool:
    """Return whether a value is an absolute path, or an address that an engine listens on."""
    return is_harmless(value) and _PLACE.match(value) is not None


def is_shown_flag(name: str, value: str) -> bool:
    """Return whether the value of a flag or variable is shown."""
    if name in _RUNTIME_FLAGS:
        return is_harmless(value) and is_place(value.replace("=", ":", 1).partition(":")[2])
    if name in _FLAGS_OF_OTHERS:
        inner, _, value = value.partition("=")
        return inner not in _FLAGS_OF_OTHERS and is_plain_key(inner) and is_shown_flag(inner, value)
    if name in PLACE_FLAGS:
        return is_place(value) and (len(name) > 1 or _SHORT_PLACE.fullmatch(value) is None)  # `-p /x` may be a password
    is_odd = len(name) > 1 and _ODD_PATH.fullmatch(value) is not None  # a one-letter flag has other meanings elsewhere
    return is_shown_value((name,), value) or (name in FLAGS and (is_odd or is_harmless(value)))


def has_blanks(path: Sequence[str]) -> bool:
    """Return whether an unquoted value of a key may have blanks."""
    return bool(path) and path[-1] in _UNITS


def named(value: str) -> str:
    """Return a key, or the value of a listed key, for a message of this program; HIDDEN if it may be secret."""
    return value if is_harmless(value) or _ODD_PATH.fullmatch(value) is not None else HIDDEN


def quote_name(value: str) -> str:
    """Return the result of `named` in quotes."""
    return repr(value) if named(value) == value else HIDDEN


def is_flag(name: str) -> bool:
    """Return whether a flag has values that are shown."""
    return name in FLAGS or name in PLACE_FLAGS


def is_harmless(value: str) -> bool:
    """Return whether a value has a form that may be shown."""
    return _HARMLESS.fullmatch(value) is not None


def is_plain_key(name: str) -> bool:
    """Return whether a key's name may be shown."""
    return _KEY.fullmatch(name) is not None


def is_listed_name(name: str) -> bool:
    """Return whether a listed key has this name."""
    return name in _names()


def is_plain_action(text: str) -> bool:
    """Return whether a template action, with its braces, may be shown: it names fields and has no literal text."""
    before = ""
    for word in re.findall(r"[^\s()]+", text[2:-2].strip("-")):
        named = before in _BEFORE_NAMES and _NAME.fullmatch(word) is not None
        if not named and word not in _ACTION_WORDS and _FIELD.fullmatch(word) is None:
            return False
        before = word
    return True


def is_plain_output(line: str) -> bool:
    """Return whether a line that a program prints about itself, such as its version, may be shown."""
    return _OUTPUT.fullmatch(line) is not None


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(path[-1] for path in KEYS) | COMMANDS


@functools.cache
def _tree() -> dict[str, Any]:
    """Return KEYS as nested dictionaries, the last key of each path outermost; "" ends a path."""
    tree: dict[str, Any] = {}
    for path in KEYS:
        place = tree
        for name in reversed(path):
            place = place.setdefault(name, {})
        place[""] = {}
    return tree


def _leads(tree: dict[str, Any], path: Sequence[str]) -> bool:
    if "" in tree or (TOP in tree and not path):
        return True
    return bool(path) and any(_leads(tree[name], path[:-1]) for name in (path[-1], ANY) if name in tree)
