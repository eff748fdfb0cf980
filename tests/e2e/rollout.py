"""The DaemonSet on a real cluster: what is done to it, and what every node is asked before and after."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml

from tests.e2e.gpu_nodes import LOOK
from tests.e2e.machine import HANDLERS
from tests.e2e.program import SCRIPTS
from tests.support import images, manifests
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.nodes import KEPT, Node
from tests.support.manifests import FOLDER, Object

NAMESPACE = NAME = "toolkit-installer"
DAEMON_SET = f"daemonset/{NAME}"
RELOADS = "run/nvidia/toolkit-installer.reloads"
"""What a cleanup leaves by purpose: when the engine was reloaded."""
TAINT, LABEL = "toolkit-test/away", "toolkit-test/wanted"
"""What a test may put on a node; afterwards it is taken away."""
BYSTANDER, GPU = "bystander", "gpu"
_POLL = 0.5
_SECONDS = 240.0


@dataclasses.dataclass(frozen=True)
class Standing:
    """How a node stands: all its files, what its engine serves, and how often that was started."""

    files: Mapping[str, tuple[object, ...]]
    handlers: frozenset[str]
    starts: int


def wait_until(condition: Callable[[], bool], what: str, within: float = _SECONDS) -> None:
    """Wait until it holds; `what` says what was waited for where it does not come about."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"within {within:g} s it did not come about that {what}"
        time.sleep(_POLL)


class RealCluster:
    """A control plane and its nodes, each of which runs a workload that nothing here is to disturb."""

    def __init__(self, plane: ControlPlane, nodes: Iterable[Node]) -> None:
        self.plane = plane
        self.nodes = {node.name: node for node in nodes}
        self.before: dict[str, Standing] = {}

    # --- what is there ---

    def standing(self, name: str) -> Standing:
        """Return how a node stands."""
        node = self.nodes[name]
        return Standing(node.differences(), node.handlers(), node.engine_starts())

    def pods(self, app: str = NAME) -> dict[str, list[dict[str, Any]]]:
        """Return the pods of an application by the node that each was sent to, those that end among them."""
        found: dict[str, list[dict[str, Any]]] = {}
        for pod in self.plane.get(f"/api/v1/pods?labelSelector=app.kubernetes.io%2Fname%3D{app}"):
            found.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return found

    def workloads(self, app: str = BYSTANDER) -> dict[str, list[tuple[str, int]]]:
        """Return what tells whether a pod was disturbed: the containers by node, and how often each was restarted."""
        return {
            node: [
                (status.get("containerID", ""), status["restartCount"])
                for pod in pods
                for status in pod["status"].get("containerStatuses", [])
            ]
            for node, pods in self.pods(app).items()
        }

    def restarts(self, node: str) -> int:
        """Return how often the installer's containers on a node were started again."""
        statuses = [each for pod in self.pods().get(node, []) for each in pod["status"].get("containerStatuses", [])]
        return sum(each["restartCount"] for each in statuses)

    def story(self) -> str:
        """Return what the installer's pods said, for whoever reads why a test failed."""
        parts = []
        for node, pods in sorted(self.pods().items()):
            for pod in pods:
                states = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
                told = {each["name"]: each["state"] for each in states}
                parts.append(f"--- {node} {pod['metadata']['name']} {pod['status'].get('phase')} {json.dumps(told)}")
        for name, node in self.nodes.items():
            tail = f"find {KEPT} -name '*.log' -exec tail -n 60 {{}} +"
            kept = node.host.run("sh", "-c", tail, check=False).stdout
            parts.append(f"--- what its containers said, kept on {name}\n{kept}")
        return "\n".join(parts)

    # --- what is done ---

    def apply(self, what: str | list[dict[str, Any]] = "base") -> None:
        """Apply a kustomization of daemonset/, as a user does, or these objects."""
        if isinstance(what, str):
            self.plane.kubectl("apply", f"--kustomize={FOLDER / what}")
        else:
            self.plane.kubectl("apply", "--filename=-", given=yaml.safe_dump_all(what))

    def delete(self, what: str = "base") -> None:
        """Delete a kustomization, as a user does, and wait until nothing is left of it."""
        self.plane.kubectl("delete", f"--kustomize={FOLDER / what}", "--ignore-not-found", "--wait=false")
        self.wait_until_no_pods()
        self.wait_until_no_namespace()

    def wait_until_no_namespace(self, name: str = NAMESPACE) -> None:
        """Wait until a namespace that is being deleted, and has no pods any more, is gone.

        Kubernetes looks again after half of its pods' grace period, which is minutes; a change has it look at once.
        """
        found = self.plane.kubectl("annotate", f"namespace/{name}", "look=now", check=False)
        if found.returncode == 0:
            self.plane.kubectl("wait", "--for=delete", f"namespace/{name}", "--timeout=100s", check=False)
        left = self.plane.kubectl("get", "namespace", name, check=False)
        assert left.returncode, f"the namespace {name} is still there"

    def command(self, *words: str) -> None:
        """Run kubectl in the namespace of the installer."""
        self.plane.kubectl(f"--namespace={NAMESPACE}", *words)

    def wait_until_no_pods(self, nodes: Iterable[str] | None = None) -> None:
        """Wait until the installer has no pods, or none on these nodes."""
        wanted = set(self.nodes if nodes is None else nodes)
        wait_until(lambda: not wanted & set(self.pods()), f"no pods are left on {', '.join(sorted(wanted))}")

    def wait_until_ready(self, nodes: Iterable[str] | None = None) -> None:
        """Wait until each of these nodes, or each at all, has one pod, of the DaemonSet's last state, that is ready."""
        wanted = sorted(self.nodes if nodes is None else nodes)
        wait_until(lambda: self._ready(wanted), f"{', '.join(wanted)} have a ready pod of the last state")

    def _ready(self, nodes: list[str]) -> bool:
        (daemon_set,) = self.plane.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}")
        if daemon_set["status"].get("observedGeneration") != daemon_set["metadata"]["generation"]:
            return False
        generation = daemon_set["metadata"]["annotations"]["deprecated.daemonset.template.generation"]
        pods = self.pods()
        return all(
            [pod["metadata"]["labels"].get("pod-template-generation") for pod in pods.get(node, [])] == [generation]
            and is_ready(pods[node][0])
            for node in nodes
        )

    @contextlib.contextmanager
    def workload(self, app: str = GPU, runtime_class: str | None = "nvidia") -> Iterator[None]:
        """Have a pod on each node until the block ends, which asks for the GPU."""
        for node in self.nodes.values():
            node.settle()
        self.apply([workload(app, asks=True, runtime_class=runtime_class)])
        try:
            self.wait_until_running(app)
            yield
        finally:
            self.remove(app)

    def wait_until_running(self, app: str) -> None:
        """Wait until every node has a ready pod of an application."""

        def running() -> bool:
            pods = self.pods(app)
            return all(len(pods.get(node, [])) == 1 and is_ready(pods[node][0]) for node in self.nodes)

        wait_until(running, f"every node has a pod of {app}")

    def remove(self, app: str) -> None:
        """Delete a workload, and wait until its pods are gone."""
        self.plane.kubectl("delete", f"daemonset/{app}", "--ignore-not-found", "--wait")
        wait_until(lambda: not self.pods(app), f"no pods of {app} are left")

    def seen(self, node: str, app: str = GPU) -> set[str]:
        """Return what of the GPU the workload's pod on a node sees."""
        (pod,) = self.pods(app)[node]
        look = self.plane.kubectl("exec", pod["metadata"]["name"], "--", "/bin/busybox", "sh", "-c", LOOK)
        return set(look.stdout.split())

    # --- what has to hold ---

    def note(self) -> None:
        """Note how every node, and every workload, stands before anything is done."""
        self.before = {name: self.standing(name) for name in self.nodes}
        self._workloads = self.workloads()

    def assert_configured(self, *nodes: str, reloads: int | None = 1) -> None:
        """Assert that these nodes, or all, serve our handlers, after so many reloads since it was noted."""
        for name in nodes or self.nodes:
            before, now = self.before[name], self.standing(name)
            assert now.handlers == before.handlers | HANDLERS, f"{name}:\n{self.story()}"
            self._assert_reloads(name, now, reloads)

    def assert_as_before(self, *nodes: str, reloads: int | None = None) -> None:
        """Assert that these nodes, or all, are byte for byte as it was noted, after so many reloads."""
        for name in nodes or self.nodes:
            before, node = self.before[name], self.nodes[name]
            # CRI-O ends only after the pod that asks it to: systemd may be starting it just now
            wait_until(lambda node=node, before=before: node.handlers() == before.handlers, f"{name} is given back", 60)
            now = self.standing(name)
            both = now.files.keys() | before.files.keys()
            changed = {path for path in both if now.files.get(path) != before.files.get(path)} - {RELOADS}
            assert not changed, f"{name} is not as it was: {sorted(changed)}\n{self.story()}"
            assert now.handlers == before.handlers, f"{name}:\n{self.story()}"
            self._assert_reloads(name, now, reloads)

    def _assert_reloads(self, name: str, now: Standing, reloads: int | None) -> None:
        """Assert that an engine was restarted as often as that many reloads take; None: that may be any."""
        restarts = now.starts - self.before[name].starts
        expected = reloads if self.nodes[name].kind.restarted else 0
        assert reloads is None or restarts == expected, f"{name}: {restarts} restarts, not {expected}\n{self.story()}"

    def assert_undisturbed(self) -> None:
        """Assert that no workload's container was replaced or restarted since it was noted."""
        assert self.workloads() == self._workloads

    # --- afterwards ---

    def tidy(self) -> None:
        """Take everything of a test away, whatever state it left: the next one begins as this one did."""
        kubectl = self.plane.kubectl
        kubectl("taint", "nodes", "--all", f"{TAINT}-", check=False)
        kubectl("label", "nodes", "--all", f"{LABEL}-")
        kubectl("uncordon", "--selector=kubernetes.io/os=linux")
        if self.pods() or kubectl("get", "namespace", NAMESPACE, check=False).returncode == 0:
            kubectl("delete", f"--kustomize={FOLDER / 'base'}", "--ignore-not-found", "--wait=false", check=False)
            pods = [f"--selector=app.kubernetes.io/name={NAME}", "--all-namespaces"]
            kubectl("delete", "pods", *pods, "--force", "--grace-period=0", check=False)
            self.wait_until_no_pods()
            self.wait_until_no_namespace()
        for node in self.nodes.values():
            if HANDLERS & node.handlers() or node.host.path("/usr/local/nvidia").exists():
                node.host.run(SCRIPTS / "toolkit-installer", "uninstall", check=False, within=120)
            node.host.path(f"/{RELOADS}").unlink(missing_ok=True)
            node.host.run("sh", "-c", f"rm -rf {KEPT}/*")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod is ready, and is not ending."""
    conditions = pod["status"].get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def workload(name: str, *, asks: bool = False, runtime_class: str | None = None) -> dict[str, Any]:
    """Return a DaemonSet whose pods do nothing, on every node; `asks` says whether they ask for the GPU."""
    labels = {"app.kubernetes.io/name": name}
    container: dict[str, Any] = {"name": "main", "image": images.IMAGE, "command": images.COMMAND}
    spec: dict[str, Any] = {
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 5,
    }
    if asks:
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "nvidia.com/gpu=0"}]
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def copy_of_base(namespace: str) -> list[Object]:
    """Return daemonset/base as it is when somebody applies it a second time, in another namespace."""
    found = []
    for each in manifests.rendered("base"):
        metadata = each["metadata"]
        if each["kind"] == "RuntimeClass":
            continue
        if each["kind"] == "Namespace" or each["kind"].startswith("Cluster"):
            metadata["name"] = namespace
        else:
            metadata["namespace"] = namespace
        for subject in each.get("subjects", []):
            subject["namespace"] = namespace
        if each["kind"] == "ClusterRoleBinding":
            each["roleRef"]["name"] = namespace
        found.append(each)
    return found
