"""The rows of the option table for the engine step."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import Group, Kind, Option, Step
from toolkit_installer.settings import ReloadMode

_engine = functools.partial(Option, group=Group.ENGINE, step=Step.RUNTIME)
_crio = functools.partial(Option, group=Group.CRIO, step=Step.RUNTIME)

ROWS = (
    _engine(
        name="config",
        kind=Kind.PATH,
        variables=("RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG"),
        default_note="the engine's own",
        help="The engine's configuration file.",
    ),
    _engine(
        name="drop_in",
        flags=("--drop-in-config",),
        kind=Kind.PATH,
        variables=("RUNTIME_DROP_IN_CONFIG",),
        default_note="/etc/containerd/conf.d/99-nvidia.toml, /etc/crio/crio.conf.d/99-nvidia.toml",
        help="The file of our own that the engine is made to import. docker has none.",
    ),
    _engine(
        name="drop_in_host_path",
        flags=("--drop-in-config-host-path",),
        kind=Kind.PATH,
        variables=("RUNTIME_DROP_IN_CONFIG_HOST_PATH",),
        default_note="none",
        help="The drop-in's path on the node, if it is mounted elsewhere here: what the engine's import line says.",
    ),
    _engine(
        name="executable",
        flags=("--executable-path",),
        kind=Kind.EXECUTABLE,
        variables=("RUNTIME_EXECUTABLE_PATH",),
        default_note="the running daemon's",
        help="containerd's or CRI-O's executable, used to check the configuration.",
    ),
    _engine(
        name="socket",
        kind=Kind.PATH,
        variables=("RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET"),
        default_note="the engine's own",
        in_short_help=True,
        help="The engine's socket.",
    ),
    _engine(
        name="restart_mode",
        kind=Kind.CHOICE,
        choices=tuple(ReloadMode),
        variables=("RUNTIME_RESTART_MODE", "CONTAINERD_RESTART_MODE"),
        default_note="docker: signal; the others: systemd where the engine's unit is found",
        in_short_help=True,
        help="How the engine is made to take its configuration over.",
    ),
    _engine(
        name="host_root",
        kind=Kind.PATH,
        variables=("HOST_ROOT_MOUNT",),
        default="/host",
        in_short_help=True,
        help="Where the node's / is mounted, to run the node's own programs; without effect beside --node-root.",
    ),
    _engine(
        name="runtime_name",
        flags=("--runtime-name", "--nvidia-runtime-name", "--runtime-class"),
        kind=Kind.HANDLER,
        variables=("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"),
        default="nvidia",
        help="The handler's name: what a RuntimeClass points at.",
    ),
    _engine(
        name="set_as_default",
        kind=Kind.FLAG,
        variables=("NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT"),
        default="true",
        hidden=True,
        help="Make that handler the engine's default.",
    ),
    _engine(
        name="config_sources",
        flags=("--config-source", "--config-sources"),
        kind=Kind.SOURCES,
        variables=("RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE"),
        default_note="command, file; docker: file",
        help="Where the handlers' settings are copied from, the first that has any: command (what the running "
        "daemon's own binary prints), file (its configuration file) or file=/path.",
    ),
    _engine(
        name="runtime_type",
        kind=Kind.RUNTIME_TYPE,
        variables=("CONTAINERD_RUNTIME_TYPE",),
        default_note="io.containerd.runc.v2",
        help="The handlers' runtime_type. containerd only.",
    ),
    _engine(
        name="runtime_config_override",
        kind=Kind.JSON_OBJECT,
        variables=("RUNTIME_CONFIG_OVERRIDE", "CONTAINERD_RUNTIME_CONFIG_OVERRIDE"),
        default="{}",
        help="Options, as a JSON object, merged into those that the handlers get from the default runtime. containerd "
        "only.",
    ),
    _engine(
        name="use_legacy_config",
        kind=Kind.FLAG,
        variables=("CONTAINERD_USE_LEGACY_CONFIG",),
        default="false",
        help="Write the default runtime as containerd before 1.3 reads it, in a config.toml of version 1.",
    ),
    _engine(
        name="engine_annotation_prefixes",
        flags=("--nvidia-container-runtime-modes.cdi.annotation-prefixes",),
        kind=Kind.PREFIXES,
        default_note="unset",
        help="As --nvidia-container-runtime.modes.cdi.annotation-prefixes; containerd also lets these annotations "
        "through to the handlers.",
    ),
    _crio(
        name="config_mode",
        kind=Kind.CHOICE,
        choices=("hook", "config"),
        variables=("CRIO_CONFIG_MODE",),
        default="config",
        default_note="config; hook for a DESTINATION under nvidia-toolkit",
        help="Register handlers, or an OCI hook.",
    ),
    _crio(
        name="hooks_dir",
        kind=Kind.PATH,
        variables=("CRIO_HOOKS_DIR",),
        default="/usr/share/containers/oci/hooks.d",
        help="Where hooks are.",
    ),
    _crio(
        name="hook_filename",
        kind=Kind.FILE_NAME,
        variables=("CRIO_HOOK_FILENAME",),
        default="oci-nvidia-hook.json",
        help="The hook's file.",
    ),
)
