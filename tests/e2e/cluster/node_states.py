"""What the API server has of nodes while the installer tells it: each state is seen, however short it is."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from tests.e2e.cluster.control_plane import ControlPlane
from toolkit_installer.settings import CONDITION

KEY = "startup-taint.cluster-autoscaler.kubernetes.io/nvidia-toolkit"
"""Of the taint that daemonset/overlays/startup-taint puts on nodes."""


def of(plane: ControlPlane, node: str) -> dict[str, Any]:
    """Return what the installer tells of a node, and what it must leave alone, without what the kubelet changes."""
    (found,) = plane.get(f"/api/v1/nodes/{node}")
    annotations = found["metadata"].get("annotations", {})
    return {
        "labels": found["metadata"]["labels"],
        "annotations": {key: value for key, value in annotations.items() if key.startswith("toolkit-installer/")},
        "taints": found["spec"].get("taints", []),
        "conditions": sorted(each["type"] for each in found["status"]["conditions"]),
    }


def _reason(node: dict[str, Any]) -> str:
    return next((str(each["reason"]) for each in node["status"]["conditions"] if each["type"] == CONDITION), "")


class Watch:
    """Each state that each node was in, in its order: whether it was tainted, and its condition's reason."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, str, str]] = []

    def of(self, node: str) -> list[tuple[str, str]]:
        """Return the states of a node, each but once in a row."""
        states = [(taint, condition) for name, taint, condition in self._seen if name == node]
        return [each for before, each in zip([None, *states], states, strict=False) if each != before]

    def read(self, stream: Any) -> None:
        """Take the API server's own events, of which each is a line."""
        for line in stream:
            node = json.loads(line)["object"]
            tainted = any(each["key"] == KEY for each in node["spec"].get("taints", []))
            self._seen.append((node["metadata"]["name"], "tainted" if tainted else "", _reason(node)))


@contextlib.contextmanager
def watching(plane: ControlPlane) -> Iterator[Watch]:
    """Watch all nodes until the block ends."""
    watch = Watch()
    command = plane.kubectl_command("get", "--raw", "/api/v1/nodes?watch=true")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        thread = threading.Thread(target=watch.read, args=(process.stdout,))
        thread.start()
        try:
            yield watch
        finally:
            process.terminate()
            thread.join()
