"""The table of all options: every flag, alias, variable and default, in the order of the help.

The rows here are about the installer itself and its access to Kubernetes; engine_rows.py has the others. Options that
only single commands have, such as `capture` and `replay`, are not part of the table.
"""

from __future__ import annotations

import functools

from toolkit_installer.cli.options import engine_rows
from toolkit_installer.cli.options.model import HelpSection, Kind, Option, Step
from toolkit_installer.engines import registry
from toolkit_installer.settings import CONDITION, Cleanup, LogFormat, Method, OnDrift, Program, WithoutGpu

_job = functools.partial(Option, section=HelpSection.JOB, step=Step.INSTALLER)
_cluster = functools.partial(Option, section=HelpSection.KUBERNETES, step=Step.INSTALLER)
_own = functools.partial(Option, section=HelpSection.INSTALLER, step=Step.INSTALLER)
_ENGINES = registry.names()

INSTALLER_ROWS = (
    _job(
        "runtime",
        Kind.ENGINES,
        flags=("--runtime", "-r"),
        choices=(*_ENGINES, "auto"),
        default="auto",
        default_of={Program.NVIDIA_TOOLKIT: "docker", Program.NVIDIA_CTK_INSTALLER: "docker"},
        help=f"The container engine to configure: {', '.join(_ENGINES[:-1])} or {_ENGINES[-1]}; several as a comma "
        "list; auto finds the one that runs on the node.",
    ),
    _job(
        "no_daemon",
        Kind.FLAG,
        flags=("--no-daemon", "-n"),
        help="Install and leave: do not wait for a signal, do not clean up.",
    ),
    _job("no_runtime_config", Kind.FLAG, help="Install the toolkit only; leave the engine alone."),
    _job(
        "method",
        Kind.CHOICE,
        variables=("TOOLKIT_METHOD",),
        choices=tuple(Method),
        default=Method.HANDLERS.value,
        help="How containers get the GPU: handlers registers runtimes with the engine; cdi writes a CDI specification "
        "and leaves the engine's files alone, where the running engine reads it; nri serves an NRI plugin while "
        "waiting, as --enable-nri-plugin does, and takes handlers away; auto takes cdi where the engine reads CDI "
        "specifications already and has no handlers that pods may need, else handlers.",
    ),
    _job(
        "toolkit_args",
        Kind.ARGUMENTS,
        flags=("--toolkit-args", "-t"),
        may_be_empty=True,
        help="More flags of the install step, as one shell-quoted string. No shell ever sees it.",
    ),
    _job(
        "runtime_args",
        Kind.ARGUMENTS,
        flags=("--runtime-args", "-u"),
        may_be_empty=True,
        help="More flags of the engine step, as one shell-quoted string. In it, docker and containerd have "
        "-c for --config, -s for --socket, -r for --runtime-name and -d for --set-as-default; crio has -d for "
        "--hooks-dir and -f for --hook-filename.",
    ),
    _job(
        "pid_file",
        Kind.PID_FILE,
        variables=("TOOLKIT_PID_FILE", "PID_FILE"),
        default="/run/nvidia/toolkit.pid",
        default_of={Program.NVIDIA_CTK_INSTALLER: "/run/nvidia/toolkit/toolkit.pid"},
        help="The PID file, which is also the lock. Its base name must be toolkit.pid.",
    ),
    _job(
        "debug", Kind.FLAG, variables=("TOOLKIT_DEBUG",), help="Log each step, and show a traceback if there is a bug."
    ),
    _own(
        "node_root",
        Kind.PATH,
        default_note="none, paths are those that are seen here",
        help="Where the node's / is mounted. All paths of the node, given or default, are then looked up below it as "
        "a chroot would.",
    ),
    _own(
        "log_format",
        Kind.CHOICE,
        choices=tuple(LogFormat),
        default_note="console on a terminal, logfmt otherwise",
        help="How log lines look.",
    ),
    _own(
        "cleanup",
        Kind.CHOICE,
        choices=tuple(Cleanup),
        default="always",
        help="Whether a waiting run takes its changes back when it is told to stop. auto, in a DaemonSet's pod: only "
        "if the DaemonSet is gone, or does not want this node any more; the Kubernetes API server is asked.",
    ),
    _own(
        "ready_file",
        Kind.PATH,
        help="A file, not the node's but of this file system, that is there while the engines serve the handlers: "
        "for a pod's probes. It is removed at the start and before cleanup.",
    ),
    _own(
        "metrics_textfile",
        Kind.PATH,
        help="A file of metrics, not the node's but of this file system, for node-exporter's textfile collector. Its "
        "name ends with .prom. It is kept up to date while this waits, and removed when it ends.",
    ),
    _own(
        "metrics_address",
        Kind.ADDRESS,
        help="Serve metrics, /readyz and /healthz over HTTP there, such as :9101 or 127.0.0.1:9101, by a process "
        "without privileges.",
    ),
    _own(
        "keep_toolkit",
        Kind.FLAG,
        default_of={Program.NVIDIA_TOOLKIT: "true", Program.NVIDIA_CTK_INSTALLER: "true"},
        help="Leave the toolkit's files on the node when the engine's configuration is taken back.",
    ),
    _own(
        "remove_toolkit",
        Kind.FLAG,
        no_variable=True,
        default_note="the opposite of --keep-toolkit",
        help="Remove them as well, once nothing refers to them any more.",
    ),
    _own(
        "on_drift",
        Kind.CHOICE,
        choices=tuple(OnDrift),
        default="report",
        help="What a waiting run does when somebody else changes a file that it manages.",
    ),
    _own(
        "without_gpu",
        Kind.CHOICE,
        choices=tuple(WithoutGpu),
        default="install",
        help="What is done on a node that shows no NVIDIA GPU, neither on its PCI bus nor in /dev: install as "
        "anywhere, or change nothing, be ready, and look again when a device comes.",
    ),
    _own(
        "reload_timeout",
        Kind.SECONDS,
        default="60",
        help="How long the engine may take to serve a change before it is taken back.",
    ),
    _own(
        "reload_budget",
        Kind.BUDGET,
        default="3/600",
        help="How many reloads for installing are made within how many seconds, so that a crash-looping pod does not "
        "take the engine down with it. Cleanup is never refused.",
    ),
    _own(
        "reload_when",
        Kind.RELOAD_WHEN,
        default="now",
        help="When an engine is reloaded for installing: now; idle, while no GPU container runs on the node; or in a "
        "window of the node's time, such as 'Sat 02:00-04:00', '22:00-02:00' for every day, or several, separated by "
        "commas. Until then nothing of the change is made. Cleanup and rollback never wait.",
    ),
    _own(
        "require_live",
        Kind.FLAG,
        help="Change nothing, and exit with 5, unless the engine answers now and will serve the handlers. Otherwise an "
        "engine that does not run is configured all the same: it serves the handlers once it starts.",
    ),
    _own(
        "verify_with_canary",
        Kind.FLAG,
        help="After a reload, start one short container through each handler and remove it again: the change is taken "
        "back, and the exit code is 5, where one does not start.",
    ),
    _own(
        "wait_for_driver",
        Kind.FLAG,
        help="Where no driver is usable yet, change nothing and wait for one, instead of exiting with 8. It matters "
        "with --driver-root auto and with --cdi-enabled, as nothing else needs a driver.",
    ),
    _own(
        "allow_restart",
        Kind.FLAG,
        help="With --restart-mode systemd: restart docker even if its running containers would die of it.",
    ),
    _cluster(
        "daemon_set",
        Kind.OBJECT,
        flags=("--daemonset",),
        variables=("DAEMONSET_NAME",),
        help="The DaemonSet that this pod is of, in the pod's namespace; --cleanup auto asks about it.",
    ),
    _cluster(
        "node_name", Kind.OBJECT, help="The node's name in the cluster, as the downward API has it in spec.nodeName."
    ),
    _cluster(
        "service_account",
        Kind.PATH,
        flags=("--service-account-dir",),
        default="/var/run/secrets/kubernetes.io/serviceaccount",
        help="The folder of the pod's token, ca.crt and namespace; not the node's but of this file system.",
    ),
    _cluster(
        "node_condition",
        Kind.CONDITION,
        default="false",
        help="A condition that is kept on the Node while this waits: true while the engines serve the handlers and the "
        f"toolkit is whole. true stands for the type {CONDITION}.",
    ),
    _cluster(
        "startup_taint",
        Kind.TAINT,
        help="A taint that is taken from the Node once it is ready for the first time.",
    ),
    _cluster(
        "retaint",
        Kind.FLAG,
        help="Put the startup taint on the Node whenever it is not ready: before it is for the first time, after a "
        "boot, and while the engines do not serve the handlers. The DaemonSet's pods must tolerate it.",
    ),
    _cluster(
        "node_labels",
        Kind.FLAG,
        help="Labels on the Node with this program's version, the engine and the payload's release.",
    ),
    _cluster("node_events", Kind.FLAG, help="Events about the Node: what was installed, restarted, refused or lost."),
    # the kubelet sets these two in every container
    _cluster(
        "api_host", Kind.HOST, flags=("--kubernetes-service-host",), hidden=True, help="Where the API server answers."
    ),
    _cluster(
        "api_port",
        Kind.PORT,
        flags=("--kubernetes-service-port",),
        default="443",
        hidden=True,
        help="The port on which it does.",
    ),
)

STATUS_JSON = _job("json", Kind.FLAG, no_variable=True, help="Print one JSON object, for machines.")
"""Commands that print a result have it, such as `status`, `detect` and `plan`."""
STATUS_CHECK = _job(
    "check",
    Kind.FLAG,
    no_variable=True,
    help="Exit with 0 for OK, 1 for DEGRADED, 2 for BROKEN, and with 3 or more where that cannot be found out: for "
    "monitoring.",
)
"""Only `status` has it."""
REFRESH_TIMEOUT = _own(
    "timeout",
    Kind.SECONDS,
    no_variable=True,
    default_note="600, or eight times --reload-timeout if that is more",
    help="How long the waiting run may take for its answer.",
)
"""How long `refresh` waits. No other command has it."""
DELETION_TIMEOUT = _cluster(
    "timeout",
    Kind.SECONDS,
    variables=("DELETION_TIMEOUT",),
    default="540",
    help="How long the DaemonSet and its pods may take to be gone.",
)
"""How long `delete-daemonset` waits. No other command has it."""


KEEP_SECRETS = Option(
    "keep_secrets",
    Kind.FLAG,
    HelpSection.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Leave all values in the capture as they are, for a file that stays with you. Otherwise only values of keys "
    "that are known to be harmless stay, and stand-ins take the place of all others.",
)
KEY_FILE = Option(
    "key_file",
    Kind.LOCAL_PATH,
    HelpSection.JOB,
    Step.INSTALLER,
    no_variable=True,
    default_note="a new key, kept nowhere",
    help="Make the stand-ins with the key in this file of at least 32 random bytes. Captures with the same key have "
    "the same stand-ins, so that compare can tell whether a hidden value was changed. Keep the file to yourself.",
)
EACH = Option(
    "each",
    Kind.FLAG,
    HelpSection.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Print what plan would print on each node, before what they come to together. Of one capture alone it is "
    "printed without being asked for.",
)
HTML = Option(
    "html",
    Kind.LOCAL_PATH,
    HelpSection.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Write what all of them come to as a page, too: one new file, which a browser opens without a network and can "
    "search.",
)
ENGINE_VERSION = Option(
    "engine_version",
    Kind.VERSIONS,
    HelpSection.JOB,
    Step.INSTALLER,
    no_variable=True,
    default_note="what each engine says",
    help="Plan as if this engine were of this version, where a node has it, such as containerd=2.2. Its files, and all "
    "else that it says of itself, stay as they were captured, and its own binary is not asked.",
)
PAYLOAD = Option(
    "payload",
    Kind.LOCAL_PATH,
    HelpSection.JOB,
    Step.INSTALLER,
    no_variable=True,
    help="Plan with the toolkit's files in this folder, as --toolkit-source-root would on the node, in place of those "
    "that the capture was made with.",
)


OPTIONS: tuple[Option, ...] = (*INSTALLER_ROWS, *engine_rows.TOOLKIT_ROWS, *engine_rows.ENGINE_ROWS)

BY_NAME = {option.name: option for option in OPTIONS}

DRIVER_TIMEOUT = engine_rows.DRIVER_TIMEOUT
UNLESS_INSTALLED = engine_rows.UNLESS_INSTALLED
