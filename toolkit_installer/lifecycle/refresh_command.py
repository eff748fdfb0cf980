"""The command by which an administrator reaches a run where it is: in its pod, in its container, or on the machine."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence

from toolkit_installer.errors import InstallerError
from toolkit_installer.node import places, processes
from toolkit_installer.node.mounts import Mount
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import Program

_IN_A_POD = "KUBERNETES_SERVICE_HOST"
_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_SHORT_ID = 12
_CONTAINERS = (
    ("docker", r"/containers/([0-9a-f]{64})/hostname$"),
    ("podman", r"/overlay-containers/([0-9a-f]{64})/userdata/"),
)
"""What docker and podman mount on a container's /etc/hostname: a file in a folder that is called by its ID."""


def of_self(node_root: str | None) -> str:
    """Return the command `refresh` for this run; `node_root` is its own."""
    return of_run(os.getpid(), node_root)


def of_run(pid: int, node_root: str | None) -> str:
    """Return the command `refresh` for the run that waits as the process `pid`; `node_root`: see `of_self`."""
    process = processes.inspect_process(pid)
    environment = processes.environment(process) if process is not None else {}
    namespace = _namespace(process) if process is not None and environment.get(_IN_A_POD) else None
    return command("refresh", environment, namespace, places.table_of(pid), node_root)


def status_without_engine(node_root: str | None) -> str | None:
    """Return the command that shows `status` on the node while its engine is down; None outside a container.

    `kubectl exec` and `docker exec` need the engine; the container's processes go on without it.
    """
    if places.sees_inits_root_elsewhere():
        pid = str(os.getpid())  # the node's own number
    elif places.is_marked():
        pid = "PID"
    else:
        return None
    root = f" --node-root {node_root}" if node_root is not None else ""
    return f"nsenter -t {pid} -m -p {Program.TOOLKIT_INSTALLER} status{root}"


def command(
    name: str, environment: Mapping[str, str], namespace: str | None, table: Sequence[Mount], node_root: str | None
) -> str:
    """Return the command line of our command `name` for a run with these variables and mounts. Pure."""
    words = f"{Program.TOOLKIT_INSTALLER} {name}"
    if node_root is not None and environment.get("NODE_ROOT") != node_root:
        words += f" --node-root {node_root}"
    if environment.get(_IN_A_POD):
        return f"kubectl -n {namespace or 'NAMESPACE'} exec {environment.get('HOSTNAME') or 'POD'} -- {words}"
    hostnames = [mount.root for mount in table if mount.place == "/etc/hostname"]
    for engine, pattern in _CONTAINERS:
        for root in hostnames:
            if found := re.search(pattern, root):
                return f"{engine} exec {found[1][:_SHORT_ID]} {words}"
    return words


def _namespace(process: Process) -> str | None:
    """Return the namespace of the pod that a process is in, None where that is not known."""
    with contextlib.suppress(InstallerError):
        text = (processes.read_as(process, _NAMESPACE) or b"").decode(errors="replace").strip()
        return text if re.fullmatch(r"[a-z0-9-]+", text) else None
    return None
