"""Outages of a real cluster's control plane: when they begin, and how long they last."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from tests.e2e.cluster.rollout import RealCluster, wait_until

SECONDS = float(os.environ.get("E2E_OUTAGE", "120"))
"""How long one lasts: more than Kubernetes' own patience with nodes that it does not hear of (50 s), and more than the
30 s for which a pod that is told to stop asks at most."""
BEYOND_A_GRACE_PERIOD = min(SECONDS, 40.0)
"""How long one lasts that is to outlast only the pods that end in it."""
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


def wait_until_all_pods_end(cluster: RealCluster) -> None:
    """Wait until every pod of the installer has been told to end: that is when an outage is met with."""

    def told() -> bool:
        pods = [pod for each in cluster.pods().values() for pod in each]
        return all("deletionTimestamp" in pod["metadata"] for pod in pods)

    wait_until(told, "every pod has been told to end")
