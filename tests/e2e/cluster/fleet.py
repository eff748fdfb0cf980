"""Nodes that are only made up, around a real control plane: KWOK says of them and their pods that they are ready.

The API server, the controllers and the scheduler do for them what they do for any node; nothing runs on them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.e2e.cluster.control_plane import ControlPlane, ControlPlaneError

FLAGS = {
    # Debian's etcd cannot tell how far a watch has come. An API server that would need that ends each watch as KWOK
    # begins it, and what KWOK does then waits for half a minute at a time.
    "apiserver": ("--feature-gates=WatchList=false",),
    # The controllers are not to be what a large cluster waits for, and one busy machine is no cluster of broken nodes.
    "controller-manager": (
        *("--kube-api-qps=500", "--kube-api-burst=1000"),
        *("--node-monitor-grace-period=10m", "--node-startup-grace-period=15m"),
    ),
}
"""What the control plane is started with."""
_STAGES = Path(__file__).with_name("stages.yaml")
_LABEL = "toolkit-test/made-up"
_LEASE_SECONDS = 200
"""So long that the nodes' leases are a small part of what the API server is asked."""
_SECONDS = 900.0
_POLL = 0.5


def make_up(plane: ControlPlane, kwok: Path, count: int) -> list[str]:
    """Have so many nodes join a control plane that was started with FLAGS; return their names once they are ready.

    `kwok` is the program. Raises ControlPlaneError.
    """
    names = [f"made-up-{number:04}" for number in range(count)]
    if not names:
        return names
    plane.run_beside(
        "kwok",
        *(kwok, f"--kubeconfig={plane.folder / 'kwok.kubeconfig'}", f"--config={_STAGES}"),
        *(f"--manage-nodes-with-label-selector={_LABEL}", f"--node-lease-duration-seconds={_LEASE_SECONDS}"),
    )
    nodes = {"apiVersion": "v1", "kind": "List", "items": [_node(name) for name in names]}
    plane.kubectl("create", "--filename=-", given=json.dumps(nodes), within=_SECONDS)
    deadline = time.monotonic() + _SECONDS
    while (ready := _ready(plane)) < count:
        if time.monotonic() > deadline:
            said = (plane.folder / "kwok.log").read_text(errors="replace")[-4000:]
            raise ControlPlaneError(f"{ready} of {count} made-up nodes are ready, and KWOK said:\n{said}")
        time.sleep(_POLL)
    return names


def _ready(plane: ControlPlane) -> int:
    """Return how many of them are ready."""
    nodes = plane.get(f"/api/v1/nodes?labelSelector={_LABEL}")
    conditions = [each for node in nodes for each in node["status"].get("conditions", [])]
    return sum(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _node(name: str) -> dict[str, object]:
    room = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name, _LABEL: ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        # what has to run somewhere is not sent here
        "spec": {"taints": [{"key": _LABEL, "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }
