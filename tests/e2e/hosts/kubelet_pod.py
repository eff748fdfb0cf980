"""A kubelet in the small: runs a pod template of a manifest through the CRI of a machine's engine.

It does with each field what a kubelet does, and refuses a template with a field that it does not know, so that nothing
of a manifest goes untested unseen. What it has not: the pod's own network (there is no CNI, so every pod is on the
node's), image pulls, and any decision of its own: the test says when a container starts, is probed, stops.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tests.e2e.hosts.host import Host
from tests.support.engines.cri_client import CriClient

SOCKET = "/run/containerd/containerd.sock"
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
_CALL_SECONDS = 300
_POLL = 0.05
_PROBE_SECONDS = 0.5  # an engine starts a runc for each
_CONTAINER, _NODE = 1, 2
"""NamespaceMode."""
_RUNNING, _EXITED = 1, 2
"""ContainerState."""
_PROPAGATION = {"None": 0, "HostToContainer": 1, "Bidirectional": 2}
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

# What it knows of each object. Of these, the API server, the scheduler and the kubelet's admission have used up the
# second half before a pod comes to the CRI.
_POD_FIELDS = {
    *("automountServiceAccountToken", "containers", "hostPID", "initContainers", "terminationGracePeriodSeconds"),
    *("restartPolicy", "runtimeClassName", "serviceAccountName", "volumes"),
    *("affinity", "enableServiceLinks", "nodeSelector", "priorityClassName", "tolerations"),
}
_CONTAINER_FIELDS = {
    *("command", "env", "image", "name", "readinessProbe", "resources", "securityContext", "startupProbe"),
    "volumeMounts",
}
_MOUNT_FIELDS = {"mountPath", "mountPropagation", "name", "readOnly"}
_SECURITY_FIELDS = {"privileged", "readOnlyRootFilesystem"}

Object: TypeAlias = Mapping[str, Any]


class PodError(Exception):
    """The template has something that no kubelet would do, or this one cannot; or the CRI refused, in its words."""


class AwayError(PodError):
    """The engine went away during a call, as one does that is restarted."""


def refuse_unknown(spec: Object) -> None:
    """Raise PodError where a pod's spec has a field that nothing would come of here."""
    _known(spec, _POD_FIELDS, "the pod")
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        name = container["name"]
        _known(container, _CONTAINER_FIELDS, f"the container {name}")
        _known(container.get("securityContext", {}), _SECURITY_FIELDS, f"the securityContext of {name}")
        for mount in container.get("volumeMounts", []):
            _known(mount, _MOUNT_FIELDS, f"a mount of {name}")


def _known(found: Object, fields: set[str], what: str) -> None:
    if strange := set(found) - fields:
        raise PodError(f"{what} has {', '.join(sorted(strange))}, which this kubelet does not know")


class Kubelet:
    """The kubelet of a machine, over the engine on `socket`. `node` is the node's name in the cluster."""

    def __init__(self, host: Host, node: str, socket: str = SOCKET) -> None:
        self.host = host
        self.node = node
        self._pods: list[Pod] = []
        self._cri = CriClient(
            socket, PodError, away=AwayError, enter=host.enter, seconds=_CALL_SECONDS, as_kubelet=True
        )
        self.call = self._cri.call

    def import_image(self, archive: Path | bytes) -> None:
        """Give containerd an image, from a file or from its bytes."""
        place = f"/tmp/{uuid.uuid4().hex}.tar"  # noqa: S108  # the machine's own, in memory
        inside = self.host.path(place)
        if isinstance(archive, bytes):
            inside.write_bytes(archive)
        else:
            shutil.copyfile(archive, inside)
        self.host.run("ctr", "--namespace=k8s.io", "images", "import", place, within=300)
        inside.unlink()

    def pull(self, image: str) -> None:
        """Have the engine pull an image, from where it is told to pull all images from. Raises PodError."""
        self.call("ImageService/PullImage", {1: {1: image}})

    def start_pod(
        self,
        template: Object,
        *,
        namespace: str = "default",
        account: Path | None = None,
        environment: Mapping[str, str] | None = None,
        handler: str = "",
    ) -> Pod:
        """Start a pod's sandbox; none of its containers yet.

        `account` is the folder with the ServiceAccount's token, `environment` what every container gets of the
        cluster's services, `handler` the one of the pod's RuntimeClass. Raises PodError.
        """
        pod = Pod(self, template, namespace, account, environment or {})
        self._pods.append(pod)
        pod.start(handler)
        return pod

    def close(self) -> None:
        """Take away what the pods had mounted, and end the program that asks."""
        for pod in self._pods:
            pod.unmount()
        self._cri.close()


class Pod:
    """A pod: its sandbox, volumes and containers. Containers are known by their names, the last of each counts."""

    def __init__(
        self, kubelet: Kubelet, template: Object, namespace: str, account: Path | None, services: Mapping[str, str]
    ) -> None:
        self._kubelet, self._host = kubelet, kubelet.host
        self.spec: Object = template["spec"]
        refuse_unknown(self.spec)
        self.uid = str(uuid.uuid4())
        self.name = f"{template['metadata'].get('name', 'pod')}-{self.uid[:5]}"
        self.namespace = namespace
        self._services = services
        self._folder = f"/var/lib/kubelet/pods/{self.uid}"
        self._logs = f"/var/log/pods/{namespace}_{self.name}_{self.uid}"
        self._mounted: list[str] = []
        self._places = {each["name"]: self._volume(each) for each in self.spec.get("volumes", [])}
        self._account = self._projected(account)
        self._attempts: dict[str, int] = {}
        self.containers: dict[str, str] = {}
        """Their IDs by name."""

    # --- volumes ---

    def _volume(self, volume: Object) -> str:
        """Return where on the node a volume is, made if it is one that the kubelet makes."""
        kinds = set(volume) - {"name"}
        if kinds == {"hostPath"}:
            path = str(volume["hostPath"]["path"])
            if (
                volume["hostPath"].get("type") != "Directory"
                or self._host.run("test", "-d", path, check=False).returncode
            ):
                raise PodError(f"the hostPath {path} is no folder that was there before")
            return path
        if kinds != {"emptyDir"} or volume["emptyDir"].get("medium") != "Memory":
            raise PodError(f"a volume of another kind: {sorted(kinds)}")
        place = f"{self._folder}/volumes/kubernetes.io~empty-dir/{volume['name']}"
        self._host.run("mkdir", "-p", "-m", "777", place)
        size = _bytes(volume["emptyDir"]["sizeLimit"])
        self._host.run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place)
        self._mounted.append(place)
        return place

    def _projected(self, account: Path | None) -> str | None:
        """Return where on the node the ServiceAccount's files are; None where the pod is not to have them."""
        if account is None or not self.spec.get("automountServiceAccountToken", True):
            return None
        place = f"{self._folder}/volumes/kubernetes.io~projected/kube-api-access"
        self._host.run("mkdir", "-p", place)
        for file in account.iterdir():
            shutil.copyfile(file, self._host.path(place) / file.name)
        return place

    def place(self, volume: str) -> Path:
        """Return where a volume is seen from here."""
        return self._host.path(self._places[volume])

    def unmount(self) -> None:
        """Take away the volumes in memory."""
        for place in self._mounted:
            self._host.run("umount", "--lazy", place, check=False)
        self._mounted.clear()

    # --- what the CRI is told ---

    @property
    def _namespaces(self) -> dict[int, int]:
        """NamespaceOption: the node's network, see the module's words; the node's processes where the pod says so."""
        return {1: _NODE, 2: _NODE if self.spec.get("hostPID") else _CONTAINER}

    @property
    def _sandbox_config(self) -> dict[int, Any]:
        each = [*self.spec.get("initContainers", []), *self.spec["containers"]]
        privileged = any(container.get("securityContext", {}).get("privileged") for container in each)
        labels = {
            "io.kubernetes.pod.name": self.name,
            "io.kubernetes.pod.namespace": self.namespace,
            "io.kubernetes.pod.uid": self.uid,
        }
        return {
            1: {1: self.name, 2: self.uid, 3: self.namespace},
            3: self._logs,
            6: [{1: key, 2: value} for key, value in labels.items()],
            8: {1: f"/kubepods/burstable/pod{self.uid}", 2: {1: self._namespaces, 6: int(privileged)}},
        }

    def start(self, handler: str) -> None:
        """Start the sandbox."""
        self._host.run("mkdir", "-p", self._logs)
        self._sandbox = self._kubelet.call("RunPodSandbox", {1: self._sandbox_config, 2: handler})["1"]

    def template(self, name: str) -> Object:
        """Return what the template says of a container."""
        each = [*self.spec.get("initContainers", []), *self.spec["containers"]]
        (found,) = (container for container in each if container["name"] == name)
        return found  # type: ignore[no-any-return]

    def _environment(self, container: Object) -> dict[str, str]:
        fields = {"spec.nodeName": self._kubelet.node, "metadata.name": self.name, "metadata.namespace": self.namespace}
        own = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container.get("env", [])
        }
        return {**self._services, **own}

    def _mounts(self, container: Object) -> list[dict[int, Any]]:
        found = []
        for each in container.get("volumeMounts", []):
            propagation = _PROPAGATION[each.get("mountPropagation", "None")]
            place = self._places[each["name"]]
            found.append({1: each["mountPath"], 2: place, 3: int(each.get("readOnly", False)), 5: propagation})
        if self._account is not None:
            found.append({1: ACCOUNT_FOLDER, 2: self._account, 3: 1})
        return found

    def _config(self, container: Object, attempt: int) -> dict[int, Any]:
        security = container.get("securityContext", {})
        limit = container.get("resources", {}).get("limits", {}).get("memory")
        return {
            1: {1: container["name"], 2: attempt},
            2: {1: container["image"], 18: container["image"]},
            3: list(container["command"]),
            6: [{1: key, 2: value} for key, value in self._environment(container).items()],
            7: self._mounts(container),
            11: f"{container['name']}_{attempt}.log",
            15: {
                1: {4: _bytes(limit)} if limit else {},
                2: {
                    2: int(security.get("privileged", False)),
                    3: self._namespaces,
                    7: int(security.get("readOnlyRootFilesystem", False)),
                },
            },
        }

    # --- containers ---

    def start_container(self, name: str) -> str:
        """Start a container, or the next one in place of one that has ended; return its ID. Raises PodError."""
        attempt = self._attempts.get(name, -1) + 1
        self._attempts[name] = attempt
        config = self._config(self.template(name), attempt)
        created = self._kubelet.call("CreateContainer", {1: self._sandbox, 2: config, 3: self._sandbox_config})
        self.containers[name] = created["1"]
        self._kubelet.call("StartContainer", {1: created["1"]})
        return created["1"]

    def _status(self, name: str) -> dict[str, str]:
        return self._kubelet.call("ContainerStatus", {1: self.containers[name]}, 1)

    def running(self, name: str) -> bool:
        """Tell whether a container runs."""
        return ord(self._status(name).get("3", "\0")) == _RUNNING

    def wait_until_ended(self, name: str, within: float = 120.0) -> int:
        """Return a container's exit code, of which only 0 to 127 are told apart, once it has ended.

        Raises PodError with what it said where it goes on.
        """
        deadline = time.monotonic() + within
        while ord((status := self._status(name)).get("3", "\0")) != _EXITED:
            if time.monotonic() > deadline:
                raise PodError(f"{name} still runs after {within:g} s; it said:\n{self.log(name)}")
            time.sleep(_POLL)
        return ord(status.get("7", "\0"))

    def log(self, name: str) -> str:
        """Return all that a container said, of the last one by that name."""
        path = self._host.path(self._logs) / f"{name}_{self._attempts[name]}.log"
        if path.is_symlink():  # cri-dockerd's, to docker's own
            path = self._host.path(os.readlink(path))
        lines = path.read_text().splitlines() if path.exists() else []
        return "".join(map(_said, lines))

    def wait_for(self, name: str, text: str, within: float = 120.0) -> None:
        """Wait until a container has said something. Raises PodError."""
        deadline = time.monotonic() + within
        while text not in self.log(name):
            if time.monotonic() > deadline or not self.running(name):
                time.sleep(_POLL)
                if text in self.log(name):
                    return
                raise PodError(f"{name} did not say {text!r}; it said:\n{self.log(name)}")
            time.sleep(_POLL)

    def execute(self, name: str, *command: str) -> tuple[int, str]:
        """Run a command in a container; return its exit code and what it said."""
        answer = self._kubelet.call("ExecSync", {1: self.containers[name], 2: list(command), 3: 30})
        return ord(answer.get("3", "\0")), answer.get("1", "") + answer.get("2", "")

    def probe(self, name: str, which: str) -> bool:
        """Run a probe's command once, as it stands in the template, and tell whether it succeeded."""
        return self.execute(name, *self.template(name)[which]["exec"]["command"])[0] == 0

    def wait_until_probed(self, name: str, which: str, *, succeeds: bool = True, within: float = 120.0) -> None:
        """Probe until it succeeds, or fails. Raises PodError.

        A probe that the engine itself fails says nothing, as to a kubelet.
        """
        deadline = time.monotonic() + within
        while self._probed(name, which) is not succeeds:
            if time.monotonic() > deadline:
                wanted = "succeeded" if succeeds else "failed"
                raise PodError(f"the {which} of {name} never {wanted}; it said:\n{self.log(name)}")
            time.sleep(_PROBE_SECONDS)

    def _probed(self, name: str, which: str) -> bool | None:
        try:
            return self.probe(name, which)
        except AwayError:
            return None
        except PodError as error:
            raise PodError(f"{error}; {name} said:\n{self.log(name)}") from error

    def stop(self, name: str) -> int:
        """Stop a container by SIGTERM within the pod's grace period, and return its exit code.

        Like a kubelet it asks again where the engine went away meanwhile, as an engine does that its own pod restarts.
        """
        grace = self.spec.get("terminationGracePeriodSeconds", 30)
        deadline = time.monotonic() + grace
        while True:
            try:
                self._kubelet.call("StopContainer", {1: self.containers[name], 2: grace})
                return self.wait_until_ended(name)
            except AwayError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL)

    def remove(self) -> None:
        """Stop and remove the pod with all its containers."""
        self._kubelet.call("StopPodSandbox", {1: self._sandbox})
        self._kubelet.call("RemovePodSandbox", {1: self._sandbox})
        self.unmount()


@contextmanager
def kubelet(host: Host, node: str, socket: str = SOCKET) -> Iterator[Kubelet]:
    """Be the kubelet of a machine until the block ends."""
    made = Kubelet(host, node, socket)
    try:
        yield made
    finally:
        made.close()


def _said(line: str) -> str:
    """Return what a line of a container's log says, in either of the two forms that a kubelet knows."""
    if line.startswith("{"):
        text: str = json.loads(line)["log"]
        return text
    return f"{line.split(' ', 3)[3]}\n"  # time, stream, whether it is a whole line


def _bytes(quantity: str) -> int:
    """Return a memory quantity such as 512Mi in bytes."""
    return int(quantity[:-2]) * _UNITS[quantity[-2:]]
