"""Rows of the option table for the install step (the toolkit's files and its config.toml), the engine, CDI and NRI."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import HelpSection, Kind, Option, Step
from toolkit_installer.settings import Program, ReloadMode

_file = functools.partial(Option, section=HelpSection.TOOLKIT, step=Step.INSTALL)
_setting = functools.partial(Option, section=HelpSection.TOOLKIT_CONFIG, step=Step.INSTALL)
_unset = functools.partial(_setting, default_note="unset")

_LOG_LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "panic")

TOOLKIT_ROWS = (
    _file(
        "install_dir",
        Kind.INSTALL_DIR,
        flags=("--toolkit-install-dir", "--root"),
        default="/usr/local/nvidia",
        help="The folder of the node below which toolkit/ is installed; the same as the positional argument.",
    ),
    _file(
        "source_root",
        Kind.PATH,
        flags=("--toolkit-source-root",),
        default_note="/artifacts/deb or /artifacts/rpm",
        help="Where the toolkit's files are in the image.",
    ),
    _file(
        "package_type",
        Kind.CHOICE,
        flags=("--toolkit-package-type",),
        choices=("deb", "rpm", "auto"),
        default="auto",
        help="Which of the two to install; auto takes rpm if the node has /usr/bin/rpm.",
    ),
    _file(
        "verify_payload",
        Kind.FLAG,
        help="Read every file of the payload and of the installed toolkit, also those whose size, times and inode are "
        "what they were.",
    ),
    _file(
        "driver_root",
        Kind.ROOT,
        flags=("--driver-root", "--nvidia-driver-root"),
        variables=("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"),
        default="/run/nvidia/driver",
        help="Where the driver is installed on the node. auto takes the first root in which nvidia-smi works: what the "
        "GPU Operator says, /run/nvidia/driver, /; and, unless they are given, the three paths below with it.",
    ),
    _file(
        "driver_root_ctr_path", Kind.PATH, default="/run/nvidia/driver", help="Where the driver root is mounted here."
    ),
    _file(
        "dev_root",
        Kind.PATH,
        variables=("NVIDIA_DEV_ROOT", "DEV_ROOT"),
        default_note="the driver root",
        help="The folder of the node that holds the driver's dev/.",
    ),
    _file(
        "dev_root_ctr_path",
        Kind.PATH,
        default_note="where the driver root is mounted here",
        help="Where that folder is mounted here.",
    ),
    _unset(
        "runtime_debug",
        Kind.PATH,
        flags=("--nvidia-container-runtime.debug", "--nvidia-container-runtime-debug"),
        help="The log file of the NVIDIA runtimes.",
    ),
    _unset(
        "runtime_log_level",
        Kind.CHOICE,
        flags=("--nvidia-container-runtime.log-level", "--nvidia-container-runtime-debug-log-level"),
        choices=_LOG_LEVELS,
        variables=("NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL",),
        help="How much they log.",
    ),
    _unset(
        "runtime_mode",
        Kind.CHOICE,
        flags=("--nvidia-container-runtime.mode", "--nvidia-container-runtime-mode"),
        choices=("auto", "cdi", "csv", "jit-cdi", "legacy"),
        help="How devices get into a container.",
    ),
    _unset(
        "cdi_default_kind",
        Kind.CDI_KIND,
        flags=("--nvidia-container-runtime.modes.cdi.default-kind",),
        help="The CDI kind of a device that is named without one.",
    ),
    _unset(
        "cdi_annotation_prefixes",
        Kind.PREFIXES,
        flags=("--nvidia-container-runtime.modes.cdi.annotation-prefixes",),
        help="The annotations that may ask for CDI devices.",
    ),
    _setting(
        "low_level_runtimes",
        Kind.RUNTIMES,
        flags=("--nvidia-container-runtime.runtimes",),
        default_note="the engine's own by path, then runc, crun",
        help="The low-level runtimes that the NVIDIA runtimes may start, first match first.",
    ),
    _setting(
        "hook_skip_mode_detection",
        Kind.FLAG,
        flags=("--nvidia-container-runtime-hook.skip-mode-detection",),
        default="true",
        help="Let the hook do its work whatever the mode says.",
    ),
    _unset(
        "cli_debug",
        Kind.PATH,
        flags=("--nvidia-container-cli.debug", "--nvidia-container-cli-debug"),
        help="The log file of nvidia-container-cli.",
    ),
    _setting(
        "accept_envvar_when_unprivileged",
        Kind.FLAG,
        flags=("--accept-nvidia-visible-devices-envvar-when-unprivileged",),
        default="true",
        help="Let unprivileged containers choose devices by the variable NVIDIA_VISIBLE_DEVICES. If false, see also "
        "the next option.",
    ),
    _setting(
        "accept_volume_mounts",
        Kind.FLAG,
        flags=("--accept-nvidia-visible-devices-as-volume-mounts",),
        help="Let containers choose devices by volume mounts.",
    ),
    _setting(
        "opt_in_features",
        Kind.FEATURES,
        variables=("NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES",),
        hidden=True,
        help="Each named feature is set to true under [features].",
    ),
)

DRIVER_TIMEOUT = _file(
    "timeout",
    Kind.SECONDS,
    step=Step.INSTALLER,
    variables=("DRIVER_TIMEOUT",),
    default_note="none, it waits as long as it takes",
    help="How long the driver may take to become ready.",
)
"""How long `wait-driver` waits. No other command has it."""

UNLESS_INSTALLED = _file(
    "unless_installed",
    Kind.FLAG,
    step=Step.INSTALLER,
    help="Do not wait, and end with 0, where a run has installed the toolkit in --toolkit-install-dir already: with "
    "--driver-root auto, run keeps the driver root there that it has.",
)
"""Whether `wait-driver` waits on a node that has the toolkit. No other command has it."""


_engine = functools.partial(Option, section=HelpSection.ENGINE, step=Step.RUNTIME)
_crio = functools.partial(Option, section=HelpSection.CRIO, step=Step.RUNTIME)
_cdi = functools.partial(Option, section=HelpSection.CDI, step=Step.INSTALL)
_nri = functools.partial(Option, section=HelpSection.NRI, step=Step.RUNTIME)

ENGINE_ROWS = (
    _engine(
        "config",
        Kind.PATH,
        variables=("RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG"),
        default_note="the engine's own",
        help="The engine's configuration file.",
    ),
    _engine(
        "drop_in",
        Kind.PATH,
        flags=("--drop-in-config",),
        variables=("RUNTIME_DROP_IN_CONFIG",),
        default_note="/etc/containerd/conf.d/99-nvidia.toml, /etc/crio/crio.conf.d/99-nvidia.toml",
        help="The file of our own that the engine is made to import. docker has none.",
    ),
    _engine(
        "drop_in_host_path",
        Kind.PATH,
        flags=("--drop-in-config-host-path",),
        variables=("RUNTIME_DROP_IN_CONFIG_HOST_PATH",),
        help="The drop-in's path on the node, if it is mounted elsewhere here: what the engine's import line says.",
    ),
    _engine(
        "executable",
        Kind.EXECUTABLE,
        flags=("--executable-path",),
        variables=("RUNTIME_EXECUTABLE_PATH",),
        default_note="the running daemon's",
        help="containerd's or CRI-O's executable, used to check the configuration.",
    ),
    _engine(
        "socket",
        Kind.PATH,
        variables=("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET"),
        default_note="the engine's own",
        help="The engine's socket.",
    ),
    _engine(
        "restart_mode",
        Kind.CHOICE,
        choices=tuple(ReloadMode),
        variables=("RUNTIME_RESTART_MODE", "CONTAINERD_RESTART_MODE"),
        default_note="docker: signal; the others: systemd where the engine's unit is found",
        help="How the engine is made to take its configuration over.",
    ),
    _engine(
        "host_root",
        Kind.PATH,
        variables=("HOST_ROOT_MOUNT",),
        default="/host",
        help="Where the node's / is mounted, to run the node's own programs; without effect beside --node-root.",
    ),
    _engine(
        "runtime_name",
        Kind.HANDLER,
        flags=("--runtime-name", "--nvidia-runtime-name", "--runtime-class"),
        variables=("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"),
        default="nvidia",
        help="The handler's name: what a RuntimeClass points at.",
    ),
    _engine(
        "set_as_default",
        Kind.FLAG,
        variables=("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT"),
        default="true",
        help="Make that handler the engine's default, for containers that name none.",
    ),
    _engine(
        "config_sources",
        Kind.SOURCES,
        flags=("--config-source", "--config-sources"),
        variables=("RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE"),
        default_note="command, file; docker: file",
        help="Where the handlers' settings are copied from, the first that has any: command (what the running "
        "daemon's own binary prints), file (its configuration file) or file=/path.",
    ),
    _engine(
        "runtime_type",
        Kind.RUNTIME_TYPE,
        variables=("CONTAINERD_RUNTIME_TYPE",),
        default_note="io.containerd.runc.v2",
        help="The handlers' runtime_type. containerd only.",
    ),
    _engine(
        "runtime_config_override",
        Kind.JSON_OBJECT,
        variables=("RUNTIME_CONFIG_OVERRIDE", "CONTAINERD_RUNTIME_CONFIG_OVERRIDE"),
        default="{}",
        help="Options, as a JSON object, merged into those that the handlers get from the default runtime. containerd "
        "only.",
    ),
    _engine(
        "use_legacy_config",
        Kind.FLAG,
        variables=("CONTAINERD_USE_LEGACY_CONFIG",),
        help="Write the default runtime as containerd before 1.3 reads it, in a config.toml of version 1.",
    ),
    _engine(
        "engine_annotation_prefixes",
        Kind.PREFIXES,
        flags=("--nvidia-container-runtime-modes.cdi.annotation-prefixes",),
        default_note="unset",
        help="As --nvidia-container-runtime.modes.cdi.annotation-prefixes; containerd also lets these annotations "
        "through to the handlers.",
    ),
    _crio(
        "config_mode",
        Kind.CHOICE,
        choices=("hook", "config"),
        variables=("CRIO_CONFIG_MODE",),
        default="config",
        default_note="config; hook for a DESTINATION under nvidia-toolkit",
        help="Register handlers, or an OCI hook.",
    ),
    _crio(
        "hooks_dir",
        Kind.PATH,
        variables=("CRIO_HOOKS_DIR",),
        default="/usr/share/containers/oci/hooks.d",
        help="Where hooks are.",
    ),
    _crio(
        "hook_filename",
        Kind.FILE_NAME,
        variables=("CRIO_HOOK_FILENAME",),
        default="oci-nvidia-hook.json",
        help="The hook's file.",
    ),
    _cdi(
        "cdi_enabled",
        Kind.FLAG,
        flags=("--cdi-enabled", "--enable-cdi"),
        help="Write a CDI specification for management containers: all of the driver, all device nodes.",
    ),
    _cdi(
        "cdi_output_dir",
        Kind.PATH,
        default="/var/run/cdi",
        may_be_empty=True,
        empty_variable_counts=True,
        help="Where it is written; empty: nowhere.",
    ),
    _cdi("cdi_kind", Kind.CDI_KIND, default="management.nvidia.com/gpu", help="The kind of the devices in it."),
    _cdi(
        "create_device_nodes",
        Kind.CHOICE,
        choices=("control", "none"),
        default="control",
        help="Which of the driver's device nodes to create where they are missing; only with CDI.",
    ),
    _cdi(
        "enable_cdi_in_runtime",
        Kind.FLAG,
        step=Step.RUNTIME,
        variables=("RUNTIME_ENABLE_CDI",),
        default_note="what --cdi-enabled says",
        help="Turn CDI on in the engine. docker takes it over when it is restarted, not by a signal.",
    ),
    _nri(
        "enable_nri_plugin",
        Kind.FLAG,
        flags=("--enable-nri-plugin", "-p"),
        help="Hand out CDI devices by an NRI plugin while waiting, to pods that ask by annotation; the engine's files "
        "stay as they are, and no handler is registered. Not with --no-daemon.",
    ),
    _nri("nri_plugin_index", Kind.INDEX, default="10", help="Its place among the engine's plugins."),
    _nri("nri_socket", Kind.PATH, default="/var/run/nri/nri.sock", help="The engine's NRI socket."),
    _nri("nri_namespace", Kind.NAMESPACE, help="The namespace of this pod: pods there may have management devices."),
    _nri(
        "nri_management_cdi_device_namespaces",
        Kind.NAMESPACES,
        help="More namespaces whose pods may have them.",
    ),
    _nri(
        "nri_strict",
        Kind.FLAG,
        default="true",
        default_of={Program.NVIDIA_TOOLKIT: "false", Program.NVIDIA_CTK_INSTALLER: "false"},
        help="Refuse a container elsewhere that asks for management devices, so that its pod's events say why; "
        "otherwise it starts without any device.",
    ),
)
