"""What the API server has of nodes while the installer tells it: each state is seen, however short it is."""

from __future__ import annotations

import concurrent.futures
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

INSTALLING, SERVING = ("tainted", "Installing"), ("", "Serving")
"""States of a node, as a watch has them."""
_GONE = 410
"""HTTP: the API server keeps the last changes alone; who asks since when about an older one lists anew."""
_SECONDS = 5
"""How long one request watches: the server ends it then, and the next one goes on where it ended."""


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

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._seen: list[tuple[str, str, str]] = []
        self._ended = threading.Event()
        self.reading: concurrent.futures.Future[None] | None = None
        """What calls `read`, in a thread of its own: its errors are those of whoever asks for states."""
        self._version = self._all()

    def __str__(self) -> str:
        return str({node: self.of(node) for node, _, _ in self._seen})

    def of(self, node: str) -> list[tuple[str, str]]:
        """Return the states of a node, each but once in a row. Raises what went wrong while they were watched."""
        if self.reading is not None and self.reading.done():
            self.reading.result()
        states = [(taint, condition) for name, taint, condition in self._seen if name == node]
        return [each for before, each in zip([None, *states], states, strict=False) if each != before]

    def assert_tainted_until_ready(self, node: str) -> None:
        """Assert that a node that was installed on was tainted first, and until it was ready."""
        states = self.of(node)
        assert states.index(INSTALLING) < states.index(SERVING), states
        assert ("", "Installing") not in states[states.index(INSTALLING) :], "it was untainted before it was ready"

    def end(self) -> None:
        """Have `read` return, within the seconds that one request may watch."""
        self._ended.set()

    def read(self) -> None:
        """Take what changes since the nodes were listed; list them anew where the API server has forgotten it."""
        while not self._ended.is_set():
            self._version = self._changes_since(self._version) if self._version else self._all()

    def _all(self) -> str:
        listed = json.loads(self._plane.kubectl("get", "--raw", "/api/v1/nodes").stdout)
        for node in listed["items"]:
            self._take(node)
        return str(listed["metadata"]["resourceVersion"])

    def _changes_since(self, version: str) -> str:
        watched = f"watch=true&resourceVersion={version}&timeoutSeconds={_SECONDS}"
        command = self._plane.kubectl_command("get", "--raw", f"/api/v1/nodes?{watched}")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    assert event["object"]["code"] == _GONE, event
                    version = ""
                else:
                    self._take(event["object"])
                    version = event["object"]["metadata"]["resourceVersion"]
        assert process.returncode == 0, command
        return version

    def _take(self, node: dict[str, Any]) -> None:
        tainted = any(each["key"] == KEY for each in node["spec"].get("taints", []))
        self._seen.append((node["metadata"]["name"], "tainted" if tainted else "", _reason(node)))


@contextlib.contextmanager
def watching(plane: ControlPlane) -> Iterator[Watch]:
    """Watch all nodes until the block ends. Raises what went wrong while they were watched."""
    watch = Watch(plane)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        watch.reading = threads.submit(watch.read)
        try:
            yield watch
        finally:
            watch.end()
        watch.reading.result()
