"""The rows of the option table for the install step: the toolkit's files and its config.toml."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import Group, Kind, Option, Step

_file = functools.partial(Option, group=Group.TOOLKIT, step=Step.INSTALL)
_setting = functools.partial(Option, group=Group.TOOLKIT_CONFIG, step=Step.INSTALL)
_unset = functools.partial(_setting, default_note="unset")

_LOG_LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "fatal", "panic")

ROWS = (
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
