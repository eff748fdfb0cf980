"""The DaemonSet on a real cluster: what is done to it, and what every node is asked before and after."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import yaml

from tests.e2e.cluster import pod_logs
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.nodes import Node
from tests.e2e.cluster.objects import all_at_once, is_ready, workload
from tests.e2e.cluster.snapshot import PID_FILES, Snapshot, changes
from tests.e2e.hosts.gpu_nodes import LOOK
from tests.e2e.hosts.machine import HANDLERS
from tests.support.manifests import FOLDER
from toolkit_installer import __version__

NAMESPACE = NAME = "toolkit-installer"
DAEMON_SET = f"daemonset/{NAME}"
SECOND = "second"
SECOND_IMAGE = f"{NAME}:{SECOND}"
"""The same image under another tag: to Kubernetes it is a changed one."""
TAINT, LABEL = "toolkit-test/away", "toolkit-test/wanted"
"""What a test may put on a node; afterwards it is taken away."""
BYSTANDER, GPU = "bystander", "gpu"
_POLL = 0.2
_SECONDS = 600.0
_RESTART_SECONDS = 60.0


def wait_until(condition: Callable[[], bool], what: str, within: float = _SECONDS, *, seen: object = "") -> None:
    """Wait until it holds; `what` says what was waited for where it does not come about, `seen` what came about."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"within {within:g} s it did not come about that {what} {seen}".rstrip()
        time.sleep(_POLL)


class RealCluster:
    """A control plane and its nodes, each of which runs a workload that nothing here is to disturb."""

    def __init__(self, plane: ControlPlane, nodes: Iterable[Node]) -> None:
        self.plane = plane
        self.nodes = {node.name: node for node in nodes}
        self.before: dict[str, Snapshot] = {}
        self._engines: dict[str, str] = {}
        self.untouched = {name: node.differences() for name, node in self.nodes.items()}
        """The nodes' files before the first test."""

    # --- what is there ---

    def snapshots(self, names: Iterable[str] | None = None) -> dict[str, Snapshot]:
        """Return snapshots of these nodes, or of all, taken in parallel."""
        wanted = list(self.nodes if names is None else names)
        with ThreadPoolExecutor(len(wanted)) as pool:
            return dict(zip(wanted, pool.map(self._snapshot, wanted), strict=True))

    def _snapshot(self, name: str) -> Snapshot:
        node = self.nodes[name]
        return Snapshot(node.differences(), node.handlers(), node.engine_starts())

    def pods(self, app: str = NAME) -> dict[str, list[dict[str, Any]]]:
        """Return the pods of an application by the node that each was sent to, those that end among them."""
        found: dict[str, list[dict[str, Any]]] = {}
        for pod in self.plane.get(f"/api/v1/pods?labelSelector=app.kubernetes.io%2Fname%3D{app}"):
            found.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return found

    def engine(self, node: str) -> str:
        """Return the name and version of a node's engine, as its kubelet had them: none while an engine restarts."""
        if node not in self._engines:
            (found,) = self.plane.get(f"/api/v1/nodes/{node}")
            self._engines[node] = str(found["status"]["nodeInfo"]["containerRuntimeVersion"]).replace("://", " ")
        return self._engines[node]

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

    def said(self, node: str) -> str:
        """Return all that the installer's pods on a node said in this test, those that are gone too."""
        return self.nodes[node].logs.text()

    def story(self, *nodes: str) -> str:
        """Return what became of the installer's pods, for whoever reads why a test failed: on all nodes, or on some.

        Of some there is also what still runs there, and what kubelet and engine said of these pods.
        """
        parts = []
        for node, pods in sorted(self.pods().items()):
            for pod in pods if node in (nodes or self.nodes) else ():
                states = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
                told = {each["name"]: each["state"] for each in states}
                parts.append(f"--- {node} {pod['metadata']['name']} {pod['status'].get('phase')} {json.dumps(told)}")
        parts += [
            f"--- what its containers said on {name}\n{pod_logs.brief(self.said(name))}" for name in nodes or self.nodes
        ]
        parts += [f"--- what runs on {name}, and what was said of it\n{self.nodes[name].account()}" for name in nodes]
        return "\n".join(parts)

    # --- what is done ---

    def apply(self, what: str = "base") -> None:
        """Apply a kustomization of daemonset/ whose rollouts take all nodes at once: they are not what is looked at."""
        self.give(*all_at_once(what))

    def apply_as_it_is(self, what: str = "base") -> None:
        """Apply a kustomization of daemonset/, as a user does."""
        self.wait_until_no_namespace()
        self.plane.kubectl("apply", f"--kustomize={FOLDER / what}")

    def give(self, *objects: dict[str, Any]) -> None:
        """Apply objects."""
        self.wait_until_no_namespace()
        # the API server's schemas are not fetched for it each time: what is applied as a user does is checked by them
        self.plane.kubectl("apply", "--validate=false", "--filename=-", given=yaml.safe_dump_all(objects))

    def delete(self, what: str = "base") -> None:
        """Delete a kustomization, as a user does, and wait until no pod is left of it."""
        self.plane.kubectl("delete", f"--kustomize={FOLDER / what}", "--ignore-not-found", "--wait=false")
        self.wait_until_no_pods()
        self.hurry_namespace()

    def remove_installation(self) -> None:
        """Delete all of it, the DaemonSet first, and wait until no pod is left: each pod learns at once that it may go.

        For tests whose subject is another one: after `delete` the pods find their permissions gone, and have to wait
        until the API server's answers are certain.
        """
        self.command("delete", DAEMON_SET, "--wait=false")
        self.wait_until_no_pods()
        self.delete()

    def hurry_namespace(self, name: str = NAMESPACE) -> bool:
        """Have Kubernetes look now whether a namespace that is being deleted is empty; tell whether there is such.

        By itself it looks again after half of the pods' grace period, which is minutes; a change has it look.
        """
        path = f"/api/v1/namespaces/{name}"
        found = self.plane.find(path)
        if found is None or "deletionTimestamp" not in found["metadata"]:
            return False
        return self.plane.patch(path, {"metadata": {"annotations": {"look": str(time.monotonic())}}}) is not None

    def wait_until_no_namespace(self, name: str = NAMESPACE) -> None:
        """Wait until a namespace that is being deleted, and has no pods any more, is gone."""
        wait_until(lambda: not self.hurry_namespace(name), f"the namespace {name} is gone")

    def command(self, *words: str) -> str:
        """Run kubectl in the namespace of the installer; return what it printed."""
        return self.plane.kubectl(f"--namespace={NAMESPACE}", *words).stdout

    def wait_until_no_pods(self, nodes: Iterable[str] | None = None) -> None:
        """Wait until the installer has no pods, or none on these nodes."""
        wanted = set(self.nodes if nodes is None else nodes)
        wait_until(lambda: not wanted & set(self.pods()), f"no pods are left on {', '.join(sorted(wanted))}")

    def wait_until_ready(self, nodes: Iterable[str] | None = None) -> None:
        """Wait until each of these nodes, or each at all, has one pod, of the DaemonSet's last state, that is ready."""
        wanted = sorted(self.nodes if nodes is None else nodes)
        wait_until(lambda: self._ready(wanted), f"{', '.join(wanted)} have a ready pod of the last state")

    def wait_until_available(self) -> None:
        """Wait until each pod has been ready for minReadySeconds.

        Before that, a rollout replaces it at once, beside as many others as it likes: it counts as away already.
        """

        def available() -> bool:
            status = self._daemon_set()["status"]
            return bool(status.get("numberAvailable") == status["desiredNumberScheduled"] == len(self.nodes))

        wait_until(available, "every pod counts as available")

    def wait_until_rolled_out_one_by_one(self) -> None:
        """Wait until a rollout has ended, and assert that it never left more than one node without a ready pod."""

        def ended() -> bool:
            pods = self.pods()
            without = [node for node in self.nodes if not any(map(is_ready, pods.get(node, [])))]
            assert len(without) <= 1, f"{', '.join(without)} have no ready pod\n{self.story()}"
            return not without and self._ready(list(self.nodes))

        wait_until(ended, "the rollout has ended")

    def _ready(self, nodes: list[str]) -> bool:
        daemon_set = self._daemon_set()
        if daemon_set["status"].get("observedGeneration") != daemon_set["metadata"]["generation"]:
            return False
        if daemon_set["status"]["numberReady"] < len(nodes):  # to list all pods each time costs more
            return False
        generation = daemon_set["metadata"]["annotations"]["deprecated.daemonset.template.generation"]
        pods = self.pods()
        return all(
            [pod["metadata"]["labels"].get("pod-template-generation") for pod in pods.get(node, [])] == [generation]
            and is_ready(pods[node][0])
            for node in nodes
        )

    def _daemon_set(self) -> dict[str, Any]:
        (found,) = self.plane.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}")
        return found

    @contextlib.contextmanager
    def workload(
        self, app: str = GPU, runtime_class: str | None = "nvidia", nodes: Collection[str] = ()
    ) -> Iterator[None]:
        """Have a pod on each of these nodes, or each at all, until the block ends well, which asks for the GPU."""
        wanted = list(nodes or self.nodes)
        for name in wanted:
            self.nodes[name].settle()
        self.give(workload(app, asks=True, runtime_class=runtime_class, nodes=wanted))
        self.wait_until_running(app, wanted)
        yield
        self.remove(app)

    def wait_until_running(self, app: str, nodes: Iterable[str] | None = None) -> None:
        """Wait until each of these nodes, or each at all, has a ready pod of an application."""
        wanted = list(self.nodes if nodes is None else nodes)

        def running() -> bool:
            pods = self.pods(app)
            return all(len(pods.get(node, [])) == 1 and is_ready(pods[node][0]) for node in wanted)

        wait_until(running, f"every node has a pod of {app}")

    def remove(self, app: str) -> None:
        """Delete a workload, and wait until its pods are gone."""
        self.plane.kubectl("delete", f"daemonset/{app}", "--ignore-not-found", "--wait=false")
        wait_until(lambda: not self.pods(app), f"no pods of {app} are left")

    def seen(self, node: str, app: str = GPU) -> set[str]:
        """Return what of the GPU the workload's pod on a node sees."""
        (pod,) = self.pods(app)[node]
        look = self.plane.kubectl("exec", pod["metadata"]["name"], "--", "/bin/busybox", "sh", "-c", LOOK)
        return set(look.stdout.split())

    def uninstall(self, nodes: Collection[str]) -> None:
        """Take everything back on these nodes as the documentation says, on all of them at the same time."""
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(self._uninstall, nodes))

    def _uninstall(self, node: str) -> None:
        """Take everything back on a node, and delete the pod that this leaves."""
        program = ["toolkit-installer", "uninstall", "--node-root", "/host"]
        image = f"--image={NAME}:{__version__}"
        # the engine that it restarts is also what it is attached through
        self.plane.kubectl(
            "debug", f"node/{node}", "--attach", "--profile=sysadmin", image, "--", *program, check=False
        )

        def pods() -> list[dict[str, Any]]:
            found = self.plane.get("/api/v1/namespaces/default/pods")
            return [each for each in found if each["metadata"]["name"].startswith(f"node-debugger-{node}-")]

        def ended() -> bool:
            return all(each["status"]["phase"] in ("Succeeded", "Failed") for each in pods())

        (pod,) = pods()
        wait_until(ended, f"uninstall has ended on {node}")
        (status,) = pods()[0]["status"]["containerStatuses"]
        name = pod["metadata"]["name"]
        said = self.plane.kubectl("logs", name, check=False).stdout
        self.plane.kubectl("delete", "pod", name, "--wait=false")
        assert status["state"]["terminated"]["exitCode"] == 0, said

    # --- what has to hold ---

    def note(self) -> None:
        """Note how every node, and every workload, stands before anything is done."""
        self.before = self.snapshots()
        self._workloads = self.workloads()

    def assert_configured(self, *nodes: str, reloads: int | None = 1) -> None:
        """Assert that these nodes, or all, serve our handlers, after so many reloads since it was noted."""
        for name, now in self.snapshots(nodes or None).items():
            assert now.handlers == self.before[name].handlers | HANDLERS, f"{name}:\n{self.story()}"
            self._assert_reloads(name, now, reloads)

    def assert_untouched(self, *nodes: str) -> None:
        """Assert that these nodes, or all, whose pods are at work, are as it was noted, but for a run's PID files."""
        for name, now in self.snapshots(nodes or None).items():
            changed = set(changes(self.before[name].files, now.files)) - PID_FILES
            assert not changed, f"{name} is not as it was: {changed}\n{self.story()}"
            assert (now.handlers, now.starts) == (self.before[name].handlers, self.before[name].starts), self.story()

    def assert_as_before(self, *nodes: str, reloads: int | None = None) -> None:
        """Assert that these nodes, or all, are byte for byte as it was noted, after so many reloads."""
        # CRI-O ends only after the pod that asks it to: systemd may be starting it just now
        deadline = time.monotonic() + _RESTART_SECONDS
        left = list(nodes or self.nodes)
        while left:
            for name, now in self.snapshots(left).items():
                before = self.before[name]
                if now.handlers != before.handlers and time.monotonic() < deadline:
                    continue
                left.remove(name)
                assert not (changed := changes(before.files, now.files)), (
                    f"{name} is not as it was: {changed}\n{self.story(name)}"
                )
                assert now.handlers == before.handlers, f"{name}:\n{self.story(name)}"
                self._assert_reloads(name, now, reloads)

    def _assert_reloads(self, name: str, now: Snapshot, reloads: int | None) -> None:
        """Assert that an engine was restarted as often as that many reloads take; None: that may be any."""
        restarts = now.starts - self.before[name].starts
        expected = reloads if self.nodes[name].kind.restarted else 0
        assert reloads is None or restarts == expected, f"{name}: {restarts} restarts, not {expected}\n{self.story()}"

    def assert_undisturbed(self) -> None:
        """Assert that no workload's container was replaced or restarted since it was noted.

        A kubelet that has just found its engine again may not tell of a container for a moment. One that was replaced
        has another name for good, so to ask again hides nothing.
        """
        with contextlib.suppress(AssertionError):  # what differs is said below
            wait_until(lambda: self.workloads() == self._workloads, "each is as it was", _RESTART_SECONDS)
        now = self.workloads()
        assert now == self._workloads, f"noted: {self._workloads}\nnow: {now}\n{self.story()}"
