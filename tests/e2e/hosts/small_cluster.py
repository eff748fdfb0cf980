"""A node of a cluster: a machine, a kubelet in the small, and an API server with the objects of the manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.hosts.gpu_nodes import LOOK
from tests.e2e.hosts.machine import INSTALL_DIR
from tests.e2e.program import WAITING
from tests.support import api_server, manifests
from tests.support.engines import images
from tests.support.manifests import Object, may_get, one
from toolkit_installer import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.e2e.file_states import FileState
    from tests.e2e.hosts.kubelet_pod import Kubelet, Pod
    from tests.e2e.hosts.machine import Machine
    from tests.support.api_server import Server

RUN, WAIT = "toolkit-installer", "wait-driver"
"""The pod's containers."""


class NotGranted(set[str]):
    """The paths that a pod may not get: those that the manifest's RBAC does not grant, and those that a test adds."""

    def __init__(self, objects: list[Object]) -> None:
        super().__init__()
        self.objects = objects

    def __contains__(self, path: object) -> bool:
        return super().__contains__(path) or not may_get(self.objects, str(path))


class Site:
    """A machine, its kubelet, and the API server of its cluster.

    `config` is the engine's file; `handlers` returns the names of the live engine's, which is to have only its own.
    """

    def __init__(
        self, machine: Machine, kubelet: Kubelet, server: Server, config: str, handlers: Callable[[], set[str]]
    ) -> None:
        self.machine, self.kubelet, self.server = machine, kubelet, server
        self.config, self.handlers = config, handlers
        self.own = handlers()
        self.before: FileState | None = machine.state(config)
        self.cluster = server.cluster
        self.objects = objects = manifests.rendered("base")
        self.daemon_set = one(objects, "DaemonSet")
        name, namespace = (self.daemon_set["metadata"][key] for key in ("name", "namespace"))
        self.namespace = namespace
        self.daemon_set_path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
        self.namespace_path = f"/api/v1/namespaces/{namespace}"
        self.cluster.objects = {
            self.daemon_set_path: self.daemon_set,
            self.namespace_path: one(objects, "Namespace"),
            api_server.NODE_PATH: api_server.real("node"),
        }
        self.granted = NotGranted(objects)
        self.cluster.forbidden = self.granted
        (server.account / "namespace").write_text(namespace)

    def pod(self, name: str = "base", settings: Mapping[str, str] | None = None) -> Pod:
        """Start the pod of a kustomization's DaemonSet, none of its containers yet.

        `settings` are variables of the container RUN, as an overlay would set them.
        """
        template = one(manifests.rendered(name), "DaemonSet")["spec"]["template"]
        (run,) = (container for container in template["spec"]["containers"] if container["name"] == RUN)
        kept = [each for each in run["env"] if each["name"] not in (settings or {})]
        run["env"] = [*kept, *({"name": key, "value": value} for key, value in (settings or {}).items())]
        return self.kubelet.start_pod(
            template,
            namespace=self.namespace,
            account=self.server.account,
            environment={
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(self.server.port),
            },
        )

    def running_pod(self, name: str = "base", settings: Mapping[str, str] | None = None) -> Pod:
        """Start it, and wait until its run is ready and waits."""
        pod = self.pod(name, settings)
        pod.start_container(WAIT)
        assert pod.wait_until_ended(WAIT) == 0, pod.log(WAIT)
        pod.start_container(RUN)
        pod.wait_until_probed(RUN, "startupProbe")
        pod.wait_for(RUN, WAITING)
        return pod

    def debug_pod(self, command: str) -> Pod:
        """Start what `kubectl debug node/NODE --profile=sysadmin` starts: the program, on the whole node."""
        container = {
            "name": "debugger",
            "image": f"toolkit-installer:{__version__}",
            "command": ["toolkit-installer", command, "--node-root", "/host"],
            "securityContext": {"privileged": True},
            "volumeMounts": [{"name": "host-root", "mountPath": "/host"}],
        }
        root = {"name": "host-root", "hostPath": {"path": "/", "type": "Directory"}}
        spec = {"hostPID": True, "containers": [container], "volumes": [root]}
        pod = self.kubelet.start_pod({"metadata": {}, "spec": spec})
        pod.start_container("debugger")
        return pod

    def delete(self, pod: Pod) -> None:
        """Delete the DaemonSet, and assert that its pod then gives the node back."""
        del self.cluster.objects[self.daemon_set_path]
        assert pod.stop(RUN) == 0, pod.log(RUN)
        self.assert_given_back()

    def assert_given_back(self) -> None:
        """Assert that nothing is left but the record of reloads."""
        assert self.machine.state(self.config) == self.before
        assert self.handlers() == self.own
        assert not self.machine.exists(INSTALL_DIR)
        folder = self.machine.host.path("/run/nvidia")
        assert {path.name for path in folder.glob("*")} <= {"toolkit-installer.reloads"}

    def seen(self, handler: str, environment: dict[str, str]) -> set[str]:
        """Return what of the GPU a pod sees that runs through a handler."""
        container = {"name": "main", "image": images.IMAGE, "command": images.COMMAND}
        variables = [{"name": key, "value": value} for key, value in environment.items()]
        template = {"metadata": {}, "spec": {"containers": [container | {"env": variables}]}}
        pod = self.kubelet.start_pod(template, handler=handler)
        pod.start_container("main")
        code, said = pod.execute("main", "/bin/busybox", "sh", "-c", LOOK)
        assert code == 0, said
        pod.stop("main")
        pod.remove()
        return set(said.split())
