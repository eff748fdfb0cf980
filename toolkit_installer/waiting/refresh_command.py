"""The command line by which an administrator reaches a run: in its pod, in its container, or on the machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from toolkit_installer.engines.common import command_line
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import places, processes
from toolkit_installer.node.places import Mount
from toolkit_installer.settings import Program, Settings

_IN_A_POD = "KUBERNETES_SERVICE_HOST"
_PLACES = (
    (("--node-root",), ("NODE_ROOT",)),
    (("--toolkit-install-dir", "--root"), ("TOOLKIT_INSTALL_DIR", "ROOT")),
    (("--pid-file",), ("TOOLKIT_PID_FILE", "PID_FILE")),
)
"""The options that locate a run, and their variables."""
_USUAL = frozenset({Settings().toolkit.install_dir, Settings().pid_file})
_NAME = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_SHORT_ID = 12
_CONTAINERS = (
    ("docker", r"/containers/([0-9a-f]{64})/hostname$"),
    ("podman", r"/overlay-containers/([0-9a-f]{64})/userdata/"),
)
"""The files that docker and podman mount on a container's /etc/hostname, in a folder named by the container's ID."""


def of_self() -> str:
    """Return the command `refresh` for this run."""
    return format_command(sys.argv, os.environ, _namespace(os.getpid()), places.table_of(os.getpid()))


def of_run(pid: int, started: Sequence[str]) -> str:
    """Return the command `refresh` for the run that waits as the process `pid`.

    `started` are the words that the run was first started with; empty: those of its process.
    """
    process = processes.inspect_process(pid)
    environment = processes.environment(process) if process is not None else {}
    words = started or (process.arguments if process is not None else ())
    return format_command(words, environment, _namespace(pid), places.table_of(pid))


def status_without_engine() -> str | None:
    """Return the command that shows `status` on the node while its engine is down; None outside a container.

    `kubectl exec` and `docker exec` need the engine; the container's processes go on without it.
    """
    if places.has_other_root_than_init():
        pid = str(os.getpid())  # the PID on the node
    elif places.is_marked_as_container():
        pid = "PID"
    else:
        return None
    # nsenter runs the command with the node's variables, not the container's
    return f"nsenter -t {pid} -m -p {Program.TOOLKIT_INSTALLER} status{_options(sys.argv, os.environ)}"


def format_command(
    started: Sequence[str], environment: Mapping[str, str], namespace: str | None, table: Sequence[Mount]
) -> str:
    """Return the command `refresh` for a run with this command line, environment and mounts. Pure."""
    words = f"{Program.TOOLKIT_INSTALLER} refresh"
    within = f"{words}{_options(started, {})}"  # a process that enters the container gets its variables, too
    if environment.get(_IN_A_POD):
        pod = environment.get("HOSTNAME", "")
        return f"kubectl -n {namespace or 'NAMESPACE'} exec {pod if re.fullmatch(_NAME, pod) else 'POD'} -- {within}"
    hostnames = [mount.root for mount in table if mount.place == "/etc/hostname"]
    for engine, pattern in _CONTAINERS:
        for root in hostnames:
            if found := re.search(pattern, root):
                return f"{engine} exec {found[1][:_SHORT_ID]} {within}"
    return f"{words}{_options(started, environment)}"


def _options(started: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the options by which another command finds the run's node root, folder and PID file. Pure."""
    given = (
        (
            flags[0],
            command_line.last_flag_value(started, *flags) or next(filter(None, map(environment.get, names)), None),
        )
        for flags, names in _PLACES
    )
    return "".join(f" {flag} {shlex.quote(value)}" for flag, value in given if value and value not in _USUAL)


def _namespace(pid: int) -> str | None:
    """Return the namespace of the pod of a process, None if it is unknown."""
    process = processes.inspect_process(pid)
    if process is None:
        return None
    with contextlib.suppress(InstallerError):
        text = (processes.read_as(process, _NAMESPACE) or b"").decode(errors="replace").strip()
        return text if re.fullmatch(r"[a-z0-9-]+", text) else None
    return None
