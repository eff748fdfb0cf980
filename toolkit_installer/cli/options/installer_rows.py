"""The rows of the option table that steer the installer itself, and say whom `--cleanup auto` asks about what."""

from __future__ import annotations

import functools

from toolkit_installer.cli.options.model import Group, Kind, Option, Step
from toolkit_installer.engines import registry
from toolkit_installer.settings import Cleanup, LogFormat, OnDrift, Program, WithoutGpu

_job = functools.partial(Option, group=Group.JOB, step=Step.INSTALLER)
_cluster = functools.partial(Option, group=Group.KUBERNETES, step=Step.INSTALLER)
_own = functools.partial(Option, group=Group.INSTALLER, step=Step.INSTALLER)
_ENGINES = registry.names()

ROWS = (
    _job(
        name="runtime",
        flags=("--runtime", "-r"),
        kind=Kind.ENGINES,
        choices=(*_ENGINES, "auto"),
        default="auto",
        default_of={Program.NVIDIA_TOOLKIT: "docker", Program.NVIDIA_CTK_INSTALLER: "docker"},
        in_short_help=True,
        help=f"The container engine to configure: {', '.join(_ENGINES[:-1])} or {_ENGINES[-1]}; several as a comma "
        "list; auto finds the one that runs on the node.",
    ),
    _job(
        name="no_daemon",
        flags=("--no-daemon", "-n"),
        kind=Kind.FLAG,
        default="false",
        help="Install and leave: do not wait for a signal, do not clean up.",
    ),
    _job(
        name="no_runtime_config",
        kind=Kind.FLAG,
        default="false",
        help="Install the toolkit only; leave the engine alone.",
    ),
    _job(
        name="toolkit_args",
        flags=("--toolkit-args", "-t"),
        kind=Kind.ARGUMENTS,
        may_be_empty=True,
        help="More flags of the install step, as one shell-quoted string. No shell ever sees it.",
    ),
    _job(
        name="runtime_args",
        flags=("--runtime-args", "-u"),
        kind=Kind.ARGUMENTS,
        may_be_empty=True,
        help="More flags of the engine step, as one shell-quoted string. In it, docker and containerd have "
        "-c for --config, -s for --socket, -r for --runtime-name and -d for --set-as-default; crio has -d for "
        "--hooks-dir and -f for --hook-filename.",
    ),
    _job(
        name="pid_file",
        kind=Kind.PID_FILE,
        variables=("TOOLKIT_PID_FILE", "PID_FILE"),
        default="/run/nvidia/toolkit.pid",
        default_of={Program.NVIDIA_CTK_INSTALLER: "/run/nvidia/toolkit/toolkit.pid"},
        in_short_help=True,
        help="The PID file, which is also the lock. Its base name must be toolkit.pid.",
    ),
    _job(
        name="debug",
        kind=Kind.FLAG,
        variables=("TOOLKIT_DEBUG",),
        default="false",
        in_short_help=True,
        help="Log each step, and show a traceback if there is a bug.",
    ),
    _own(
        name="node_root",
        kind=Kind.PATH,
        default_note="none, paths are those that are seen here",
        in_short_help=True,
        help="Where the node's / is mounted. All paths of the node, given or default, are then looked up below it as "
        "a chroot would.",
    ),
    _own(
        name="log_format",
        kind=Kind.CHOICE,
        choices=tuple(LogFormat),
        default_note="console on a terminal, logfmt otherwise",
        in_short_help=True,
        help="How log lines look.",
    ),
    _own(
        name="cleanup",
        kind=Kind.CHOICE,
        choices=tuple(Cleanup),
        default="always",
        help="Whether a waiting run takes its changes back when it is told to stop. auto, in a DaemonSet's pod: only "
        "if the DaemonSet is gone, or does not want this node any more; the Kubernetes API server is asked.",
    ),
    _own(
        name="ready_file",
        kind=Kind.PATH,
        default_note="none",
        in_short_help=True,
        help="A file, not the node's but of this file system, that is there while the engines serve the handlers: "
        "for a pod's probes. It is removed at the start and before cleanup.",
    ),
    _own(
        name="keep_toolkit",
        kind=Kind.FLAG,
        default="false",
        default_of={Program.NVIDIA_TOOLKIT: "true", Program.NVIDIA_CTK_INSTALLER: "true"},
        in_short_help=True,
        help="Leave the toolkit's files on the node when the engine's configuration is taken back.",
    ),
    _own(
        name="remove_toolkit",
        no_variable=True,
        kind=Kind.FLAG,
        default_note="the opposite of --keep-toolkit",
        in_short_help=True,
        help="Remove them as well, once nothing refers to them any more.",
    ),
    _own(
        name="on_drift",
        kind=Kind.CHOICE,
        choices=tuple(OnDrift),
        default="report",
        help="What a waiting run does when somebody else changes a file that it manages.",
    ),
    _own(
        name="without_gpu",
        kind=Kind.CHOICE,
        choices=tuple(WithoutGpu),
        default="install",
        in_short_help=True,
        help="What is done on a node that shows no NVIDIA GPU, neither on its PCI bus nor in /dev: install as "
        "anywhere, or change nothing, be ready, and look again when a device comes.",
    ),
    _own(
        name="reload_timeout",
        kind=Kind.SECONDS,
        default="60",
        in_short_help=True,
        help="How long the engine may take to serve a change before it is taken back.",
    ),
    _own(
        name="reload_budget",
        kind=Kind.BUDGET,
        default="3/600",
        in_short_help=True,
        help="How many reloads for installing are made within how many seconds, so that a crash-looping pod does not "
        "take the engine down with it. Cleanup is never refused.",
    ),
    _own(
        name="allow_restart",
        kind=Kind.FLAG,
        default="false",
        in_short_help=True,
        help="With --restart-mode systemd: restart docker even if its running containers would die of it.",
    ),
    _cluster(
        name="daemon_set",
        flags=("--daemonset",),
        kind=Kind.OBJECT,
        variables=("DAEMONSET_NAME",),
        help="The DaemonSet that this pod is of, in the pod's namespace; --cleanup auto asks about it.",
    ),
    _cluster(
        name="node_name",
        kind=Kind.OBJECT,
        help="The node's name in the cluster, as the downward API has it in spec.nodeName.",
    ),
    _cluster(
        name="service_account",
        flags=("--service-account-dir",),
        kind=Kind.PATH,
        default="/var/run/secrets/kubernetes.io/serviceaccount",
        help="The folder of the pod's token, ca.crt and namespace; not the node's but of this file system.",
    ),
    # the kubelet sets these two in every container
    _cluster(
        name="api_host",
        flags=("--kubernetes-service-host",),
        kind=Kind.HOST,
        hidden=True,
        help="Where the API server answers.",
    ),
    _cluster(
        name="api_port",
        flags=("--kubernetes-service-port",),
        kind=Kind.PORT,
        default="443",
        hidden=True,
        help="The port on which it does.",
    ),
)

STATUS_JSON = _job(
    name="json",
    no_variable=True,
    kind=Kind.FLAG,
    default="false",
    in_short_help=True,
    help="Print one JSON object, for machines.",
)
"""The one option that only `status` and `detect` have."""
