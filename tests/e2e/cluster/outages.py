"""Outages of a real cluster's control plane: when they begin, and how long they last."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from tests.e2e.cluster.rollout import RealCluster, wait_until
from tests.e2e.hosts.host import Host

SECONDS = float(os.environ.get("E2E_OUTAGE", "120"))
"""How long one lasts: more than Kubernetes' own patience with nodes that it does not hear of (50 s), and more than the
30 s for which a pod that is told to stop asks at most."""
BEYOND_A_GRACE_PERIOD = min(SECONDS, 40.0)
"""How long one lasts that is to outlast only the pods that end in it."""
_IDLE = "idle_process"
"""What tells the process that a pod leaves waiting."""
UNANSWERED = "does not say whether the DaemonSet still wants this node"


def last(seconds: float = SECONDS) -> None:
    """Let an outage last."""
    time.sleep(seconds)


@contextlib.contextmanager
def outage(cluster: RealCluster, program: str = "apiserver") -> Iterator[None]:
    """Have a program of the control plane away until the block ends.

    Kubelets look for an API server that was away after longer and longer waits, up to a minute; new ones look at once.
    """
    with cluster.plane.without(program):
        yield
    if program == "apiserver":
        for node in cluster.nodes.values():
            node.host.run("systemctl", "restart", "kubelet")


@contextlib.contextmanager
def outage_before_pods_end(
    cluster: RealCluster, tell: Callable[[], object], program: str = "apiserver"
) -> Iterator[None]:
    """Have a program of the control plane away from before the installer's pods, which `tell` tells to end, do so.

    They are stopped, as a debugger stops a process, until it is away: they cannot have asked before.
    """
    hosts = [node.host for node in cluster.nodes.values()]

    def told(host: Host) -> bool:
        pids = host.run("pgrep", "--full", _IDLE).stdout.split()
        return bool(pids) and all(_has_pending_term(host, pid) for pid in pids)

    for host in hosts:
        host.run("pkill", "-STOP", "--full", _IDLE)
    tell()
    wait_until(lambda: all(map(told, hosts)), "every pod of the installer has been told to end")
    with outage(cluster, program):
        for host in hosts:
            host.run("pkill", "-CONT", "--full", _IDLE)
        yield


def _has_pending_term(host: Host, pid: str) -> bool:
    status = host.run("cat", f"/proc/{pid}/status").stdout
    (pending,) = (line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending, 16) & 1 << signal.SIGTERM - 1)
