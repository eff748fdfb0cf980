"""The rows of the option table for the install step: the toolkit's files and its config.toml."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import Group, Kind, Option, Step

_file = functools.partial(Option, group=Group.TOOLKIT, step=Step.INSTALL)
_setting = functools.partial(Option, group=Group.TOOLKIT_CONFIG, step=Step.INSTALL)

_LOG_LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "panic")

ROWS = (
    _file(
        name="install_dir",
        flags=("--toolkit-install-dir", "--root"),
        kind=Kind.INSTALL_DIR,
        default="/usr/local/nvidia",
        in_short_help=True,
        help="The folder of the node below which toolkit/ is installed; the same as the positional argument.",
    ),
    _file(
        name="source_root",
        flags=("--toolkit-source-root",),
        kind=Kind.PATH,
        default_note="/artifacts/deb or /artifacts/rpm",
        help="Where the toolkit's files are in the image.",
    ),
    _file(
        name="package_type",
        flags=("--toolkit-package-type",),
        kind=Kind.CHOICE,
        choices=("deb", "rpm", "auto"),
        default="auto",
        help="Which of the two to install; auto takes rpm if the node has /usr/bin/rpm.",
    ),
    _file(
        name="driver_root",
        flags=("--driver-root", "--nvidia-driver-root"),
        kind=Kind.ROOT,
        variables=("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"),
        default="/run/nvidia/driver",
        help="Where the driver is installed on the node. auto takes the first root in which nvidia-smi works: what the "
        "GPU Operator says, /run/nvidia/driver, /; and, unless they are given, the three paths below with it.",
    ),
    _file(
        name="driver_root_ctr_path",
        kind=Kind.PATH,
        default="/run/nvidia/driver",
        help="Where the driver root is mounted here.",
    ),
    _file(
        name="dev_root",
        kind=Kind.PATH,
        variables=("NVIDIA_DEV_ROOT", "DEV_ROOT"),
        default_note="the driver root",
        help="The folder of the node that holds the driver's dev/.",
    ),
    _file(
        name="dev_root_ctr_path",
        kind=Kind.PATH,
        default_note="where the driver root is mounted here",
        help="Where that folder is mounted here.",
    ),
    _setting(
        name="runtime_debug",
        flags=("--nvidia-container-runtime.debug", "--nvidia-container-runtime-debug"),
        kind=Kind.PATH,
        default_note="unset",
        help="The log file of the NVIDIA runtimes.",
    ),
    _setting(
        name="runtime_log_level",
        flags=("--nvidia-container-runtime.log-level", "--nvidia-container-runtime-debug-log-level"),
        kind=Kind.CHOICE,
        choices=_LOG_LEVELS,
        variables=("NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL",),
        default_note="unset",
        help="How much they log.",
    ),
    _setting(
        name="runtime_mode",
        flags=("--nvidia-container-runtime.mode", "--nvidia-container-runtime-mode"),
        kind=Kind.CHOICE,
        choices=("auto", "cdi", "csv", "jit-cdi", "legacy"),
        default_note="unset",
        help="How devices get into a container.",
    ),
    _setting(
        name="cdi_default_kind",
        flags=("--nvidia-container-runtime.modes.cdi.default-kind",),
        kind=Kind.CDI_KIND,
        default_note="unset",
        help="The CDI kind of a device that is named without one.",
    ),
    _setting(
        name="cdi_annotation_prefixes",
        flags=("--nvidia-container-runtime.modes.cdi.annotation-prefixes",),
        kind=Kind.PREFIXES,
        default_note="unset",
        help="The annotations that may ask for CDI devices.",
    ),
    _setting(
        name="low_level_runtimes",
        flags=("--nvidia-container-runtime.runtimes",),
        kind=Kind.RUNTIMES,
        default_note="the engine's own by path, then runc, crun",
        help="The low-level runtimes that the NVIDIA runtimes may start, first match first.",
    ),
    _setting(
        name="hook_skip_mode_detection",
        flags=("--nvidia-container-runtime-hook.skip-mode-detection",),
        kind=Kind.FLAG,
        default="true",
        help="Let the hook do its work whatever the mode says.",
    ),
    _setting(
        name="cli_debug",
        flags=("--nvidia-container-cli.debug", "--nvidia-container-cli-debug"),
        kind=Kind.PATH,
        default_note="unset",
        help="The log file of nvidia-container-cli.",
    ),
    _setting(
        name="accept_envvar_when_unprivileged",
        flags=("--accept-nvidia-visible-devices-envvar-when-unprivileged",),
        kind=Kind.FLAG,
        default="true",
        help="Let unprivileged containers choose devices by the variable NVIDIA_VISIBLE_DEVICES. If false, see also "
        "the next option.",
    ),
    _setting(
        name="accept_volume_mounts",
        flags=("--accept-nvidia-visible-devices-as-volume-mounts",),
        kind=Kind.FLAG,
        default="false",
        help="Let containers choose devices by volume mounts.",
    ),
    _setting(
        name="opt_in_features",
        kind=Kind.FEATURES,
        variables=("NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES",),
        default_note="none",
        hidden=True,
        help="Each named feature is set to true under [features].",
    ),
)

DRIVER_TIMEOUT = _file(
    name="timeout",
    kind=Kind.SECONDS,
    step=Step.INSTALLER,
    variables=("DRIVER_TIMEOUT",),
    default_note="none, it waits as long as it takes",
    in_short_help=True,
    help="How long the driver may take to become ready.",
)
"""How long `wait-driver` waits. No other command has it."""

UNLESS_INSTALLED = _file(
    name="unless_installed",
    kind=Kind.FLAG,
    step=Step.INSTALLER,
    default="false",
    in_short_help=True,
    help="Do not wait, and end with 0, where a run has installed the toolkit in --toolkit-install-dir already: with "
    "--driver-root auto, run keeps the driver root there that it has.",
)
"""Whether `wait-driver` waits on a node that has the toolkit. No other command has it."""
