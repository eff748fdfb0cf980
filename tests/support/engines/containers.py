"""Containers on a test's engine: started through a handler, entered, stopped, deleted, as the engine's users do it."""

from __future__ import annotations

import abc
import concurrent.futures
import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import docker

from tests.support.engines import images
from tests.support.engines.cri_client import CriClient
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import PATH, ContainerdEngine, DockerEngine

_NOTHING: Mapping[str, str] = {}

_STOP_SECONDS = 30
_HEARD_SECONDS, _POLL_SECONDS = 30.0, 0.05
_NAMESPACES = {1: 2, 2: 1}
"""NamespaceOption: the node's network, PIDs of its own."""
_RUNNING = "\1"
"""ContainerState: CONTAINER_RUNNING."""
_EXECS = 3
"""How often a container is asked that says nothing."""
_BECOMING, _BECOMES_SECONDS = "runc:[", 30.0
"""How runc's own process is called that becomes the container's, and how long that may take."""
NAMESPACE = "test"
"""Of all pods."""


class ContainerError(Exception):
    """The engine refused; the message is its own."""


class Containers(abc.ABC):
    """Containers that do nothing until they are told to stop; all are in one control group, such as `/tests`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def start(
        self,
        name: str,
        handler: str = "nvidia",
        *,
        environment: Mapping[str, str] = _NOTHING,
        annotations: Mapping[str, str] = _NOTHING,
        devices: Sequence[str] = (),
    ) -> str:
        """Start a container through `handler` (empty: the default) with CDI devices; return its id.

        Raises ContainerError.
        """

    @abc.abstractmethod
    def execute(self, name: str, *command: str) -> str:
        """Run busybox in the container with these words, and return what it printed. Raises ContainerError."""

    def enter(self, name: str) -> str:
        """Return the process that a new process in the container finds as PID 1. Raises ContainerError.

        docker now and then loses all that a short exec printed (moby, issue 27289): nothing is no answer. Nor is the
        runtime's own name: it says that the container has started right before its process becomes the container's.
        """
        deadline = time.monotonic() + _BECOMES_SECONDS
        told = self._first(name)
        while told.startswith(_BECOMING) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            told = self._first(name)
        return told

    def _first(self, name: str) -> str:
        told = (self.execute(name, "cat", "/proc/1/comm").strip() for _ in range(_EXECS))
        return next(filter(None, told), "")

    @abc.abstractmethod
    def runs(self, name: str) -> bool:
        """Tell whether the engine says that the container runs. Raises ContainerError."""

    @abc.abstractmethod
    def stop(self, name: str) -> int:
        """End it by SIGTERM and return its exit code. Raises ContainerError."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Delete it and what belongs to it. Raises ContainerError."""

    @abc.abstractmethod
    def are_there(self) -> bool:
        """Tell whether the engine has any container or pod, running or not, whoever made it."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let the engine go."""


class DockerContainers(Containers):
    """docker's containers."""

    def __init__(self, engine: DockerEngine, cgroup: str) -> None:
        self._cgroup = cgroup
        self.client = docker.DockerClient(base_url=f"unix://{engine.socket}", version="auto", timeout=60)
        self.client.images.load(images.archive())

    def start(
        self,
        name: str,
        handler: str = "nvidia",
        *,
        environment: Mapping[str, str] = _NOTHING,
        annotations: Mapping[str, str] = _NOTHING,
        devices: Sequence[str] = (),
    ) -> str:
        """Start a container through `handler`; return its id. docker passes no annotations on."""
        if annotations:
            raise ContainerError("docker gives a container no annotations")
        with _refusals():
            container = self.client.containers.run(
                images.IMAGE,
                images.COMMAND,
                name=name,
                runtime=handler or None,
                environment=dict(environment),
                device_requests=[docker.types.DeviceRequest(driver="cdi", device_ids=list(devices))] if devices else [],
                network_mode="none",
                cgroup_parent=self._cgroup,
                detach=True,
            )
        return str(container.id)

    def start_again(self, name: str) -> None:
        """Start a stopped one."""
        with _refusals():
            self.client.containers.get(name).start()

    def execute(self, name: str, *command: str) -> str:
        """Run busybox in it."""
        with _refusals():
            status, output = self.client.containers.get(name).exec_run(["/bin/busybox", *command])
        if status:
            raise ContainerError(f"exec in {name}: {output!r}")
        assert isinstance(output, bytes)  # it is no stream, as none was asked for
        return output.decode()

    def runs(self, name: str) -> bool:
        """Ask dockerd."""
        with _refusals():
            return bool(self.client.containers.get(name).status == "running")

    def stop(self, name: str) -> int:
        """Stop it."""
        with _refusals():
            container = self.client.containers.get(name)
            container.stop(timeout=_STOP_SECONDS)
            return int(container.wait()["StatusCode"])

    def delete(self, name: str) -> None:
        """Delete it."""
        with _refusals():
            self.client.containers.get(name).remove()

    def are_there(self) -> bool:
        """Ask dockerd."""
        return bool(self.client.containers.list(all=True))

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


class _refusals:  # noqa: N801 - used as a function
    """Turns the client's errors into ContainerError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, docker.errors.DockerException):
            raise ContainerError(str(error)) from error


class PodContainers(Containers):
    """containerd's and CRI-O's, as a kubelet has them: each in a pod of its own, through the CRI."""

    def __init__(
        self, engine: ContainerdEngine | CrioEngine, cgroup: str, more: Mapping[str, Path] | None = None
    ) -> None:
        """Give the engine the image; `more` are files in it, by path."""
        self._cgroup = cgroup
        self._folder = engine.folder / "pods"
        self._folder.mkdir()
        self._pods: dict[str, tuple[str, str]] = {}
        self._socket = engine.socket
        self._cri = CriClient(engine.socket, ContainerError)
        self._call = self._cri.call
        if isinstance(engine, CrioEngine):
            self._pull(engine, more or {})
        else:
            _import(engine, more or {})
            self._wait_for_images()

    def _wait_for_images(self) -> None:
        """Wait until the CRI has heard of what was imported: containerd tells it after the import has ended."""
        deadline = time.monotonic() + _HEARD_SECONDS
        for name in (images.IMAGE, images.PAUSE):
            while not self._call("ImageService/ImageStatus", {1: {1: name}}):
                if time.monotonic() > deadline:
                    raise ContainerError(f"the CRI does not know {name}, which was imported")
                time.sleep(_POLL_SECONDS)

    def _pull(self, engine: CrioEngine, more: Mapping[str, Path]) -> None:
        """Let CRI-O pull the image, from where it is told to pull all images from."""
        engine.images.write_bytes(images.archive(more))
        self._call("ImageService/PullImage", {1: {1: images.IMAGE}})

    def start(
        self,
        name: str,
        handler: str = "nvidia",
        *,
        environment: Mapping[str, str] = _NOTHING,
        annotations: Mapping[str, str] = _NOTHING,
        of_pod: Mapping[str, str] = _NOTHING,
        namespace: str = NAMESPACE,
        devices: Sequence[str] = (),
    ) -> str:
        """Start a pod with one container; return the container's id. `of_pod` are the pod's own annotations."""
        pod, sandbox = self._pod(name, handler, namespace, of_pod)
        self._pods[name] = sandbox, ""  # its container may be refused
        variables, notes = ([{1: key, 2: value} for key, value in each.items()] for each in (environment, annotations))
        config = {
            1: {1: name},
            2: {1: images.IMAGE, 18: images.IMAGE},
            3: images.COMMAND,
            6: variables,
            10: notes,
            11: f"{name}.log",
            15: {2: {3: _NAMESPACES}},
            17: [{1: device} for device in devices],
        }
        container = self._call("CreateContainer", {1: sandbox, 2: config, 3: pod})["1"]
        self._pods[name] = sandbox, container
        self._call("StartContainer", {1: container})
        return container

    def _pod(
        self, name: str, handler: str, namespace: str, annotations: Mapping[str, str]
    ) -> tuple[dict[int, Any], str]:
        """Start a pod; return its configuration and its id."""
        config = {
            1: {1: name, 2: f"uid-{name}", 3: namespace},
            3: str(self._folder),
            7: [{1: key, 2: value} for key, value in annotations.items()],
            8: {1: self._cgroup, 2: {1: _NAMESPACES}},
        }
        return config, self._call("RunPodSandbox", {1: config, 2: handler})["1"]

    def create_many(self, name: str, count: int, of_pod: Mapping[str, str], *, at_once: int) -> list[str]:
        """Create containers in one pod, none of them started, and so many calls at a time; return their ids."""
        pod, sandbox = self._pod(name, "", NAMESPACE, of_pod)
        self._pods[name] = sandbox, ""
        clients = [CriClient(self._socket, ContainerError) for _ in range(at_once)]

        def create(number: int) -> str:
            client = clients.pop()
            try:
                return client.call("CreateContainer", _one_of_many(pod, sandbox, f"{name}-{number}"))["1"]
            finally:
                clients.append(client)

        try:
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                return list(pool.map(create, range(count)))
        finally:
            for client in clients:
                client.close()

    def start_at_once(self, name: str, count: int) -> list[str]:
        """Create and start containers in one pod, all calls at the same time; return the containers' names."""
        pod, sandbox = self._pod(name, "", NAMESPACE, _NOTHING)
        self._pods[name] = sandbox, ""
        names = [f"{name}-{number}" for number in range(count)]
        self._cri.together([["CreateContainer", _one_of_many(pod, sandbox, each), "StartContainer"] for each in names])
        return names

    def specification(self, container: str) -> dict[str, Any]:
        """Return a container's OCI specification, as containerd shows it."""
        told = self._call("ContainerStatus", {1: container, 2: 1}, 2)
        specification: dict[str, Any] = json.loads(told["2"])["runtimeSpec"]
        return specification

    def pod(self, name: str) -> str:
        """Return the id of the container's pod."""
        return self._pods[name][0]

    def execute(self, name: str, *command: str) -> str:
        """Run busybox in it."""
        words = ["/bin/busybox", *command]
        answer = self._call("ExecSync", {1: self._pods[name][1], 2: words, 3: _STOP_SECONDS})
        if answer.get("3", "\0") != "\0":
            raise ContainerError(f"exec in {name}: {answer}")
        return answer.get("1", "")

    def runs(self, name: str) -> bool:
        """Ask the CRI for the container's state."""
        status = self._call("ContainerStatus", {1: self._pods[name][1]}, 1)
        return bool(status.get("3", "\0") == _RUNNING)

    def stop(self, name: str) -> int:
        """Stop the container, not its pod."""
        self._call("StopContainer", {1: self._pods[name][1], 2: _STOP_SECONDS})
        status = self._call("ContainerStatus", {1: self._pods[name][1]}, 1)
        return ord(status.get("7", "\0"))

    def delete(self, name: str) -> None:
        """Delete the container and its pod; what is refused may be tried again."""
        self.end(name)
        self.remove(name)

    def end(self, name: str) -> None:
        """Delete the container, running or not, and stop its pod, as a kubelet does for a pod that is deleted."""
        sandbox, container = self._pods[name]
        self._call("RemoveContainer", {1: container})
        self._call("StopPodSandbox", {1: sandbox})

    def remove(self, name: str) -> None:
        """Delete what is left of a pod that has ended."""
        self._call("RemovePodSandbox", {1: self._pods[name][0]})
        del self._pods[name]

    def are_there(self) -> bool:
        """Ask the CRI."""
        return bool(self._call("ListPodSandbox", {}) or self._call("ListContainers", {}))

    def clear(self) -> None:
        """Delete all pods, those among them whose container was refused."""
        for name, (sandbox, container) in list(self._pods.items()):
            if container:
                self.delete(name)
            else:
                self._call("StopPodSandbox", {1: sandbox})
                self.remove(name)

    def close(self) -> None:
        """End the program that asks."""
        self._cri.close()


def _one_of_many(pod: dict[int, Any], sandbox: str, name: str) -> dict[int, Any]:
    """Return the request for a container in a pod that may have more of them."""
    config = {1: {1: name}, 2: {1: images.IMAGE, 18: images.IMAGE}, 3: images.COMMAND, 15: {2: {3: _NAMESPACES}}}
    return {1: sandbox, 2: config, 3: pod}


def _import(engine: ContainerdEngine, more: Mapping[str, Path]) -> None:
    """Put the image where the CRI looks for images."""
    archive = engine.folder / "image.tar"
    archive.write_bytes(images.archive(more))
    command = ["ctr", "--address", str(engine.socket), "--namespace", "k8s.io", "images", "import", str(archive)]
    subprocess.run(command, check=True, capture_output=True, timeout=60, env={"PATH": engine.path})


def missing() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [name for name in ("busybox", "ctr", "strace") if shutil.which(name, path=PATH) is None]
