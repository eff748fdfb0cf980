"""Containers on a test's engine: started through a handler, entered, stopped and deleted, as the engine's users do it.

The image is made here from Debian's static busybox: no registry is asked.
"""

from __future__ import annotations

import abc
import hashlib
import io
import json
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO, Any, Self

import docker

from tests.support.engines import PATH, ContainerdEngine, DockerEngine

IMAGE = "registry.example/busybox:1"
PAUSE = "registry.example/pause:1"
"""The same image, by the name that tests/e2e/data/config.toml has for a pod's own container."""

# It ends by SIGTERM alone: whoever has to kill it did not reach it.
_SCRIPT = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"
_COMMAND = ["/bin/busybox", "sh", "-c", _SCRIPT]
_STOP_SECONDS = 30


class ContainerError(Exception):
    """The engine refused; the message is its own."""


class Containers(abc.ABC):
    """Containers that do nothing until they are told to stop; all are in one control group, such as `/tests`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def start(self, name: str, handler: str = "nvidia") -> str:
        """Start a container through `handler`; return the engine's id of it. Raises ContainerError."""

    @abc.abstractmethod
    def enter(self, name: str) -> str:
        """Return the process that a new process in the container finds as PID 1. Raises ContainerError."""

    @abc.abstractmethod
    def stop(self, name: str) -> int:
        """End it by SIGTERM and return its exit code. Raises ContainerError."""

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Delete it and what belongs to it. Raises ContainerError."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let the engine go."""


class DockerContainers(Containers):
    """docker's containers."""

    def __init__(self, engine: DockerEngine, cgroup: str) -> None:
        self._cgroup = cgroup
        self.client = docker.DockerClient(base_url=f"unix://{engine.socket}", version="auto", timeout=60)
        self.client.images.load(image())

    def start(self, name: str, handler: str = "nvidia") -> str:
        """Start a container through `handler`; return its id."""
        with _refusals():
            container = self.client.containers.run(
                IMAGE,
                _COMMAND,
                name=name,
                runtime=handler,
                network_mode="none",
                cgroup_parent=self._cgroup,
                detach=True,
            )
        return str(container.id)

    def start_again(self, name: str) -> None:
        """Start a stopped one."""
        with _refusals():
            self.client.containers.get(name).start()

    def enter(self, name: str) -> str:
        """Return what its PID 1 is."""
        with _refusals():
            # its stderr has what the wrapper says of a driver that is not loaded
            status, output = self.client.containers.get(name).exec_run(
                ["/bin/busybox", "cat", "/proc/1/comm"], stderr=False
            )
        if status:
            raise ContainerError(f"exec in {name}: {output!r}")
        return str(output.decode().strip())

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
    """containerd's, as a kubelet has them: each in a pod of its own, through the CRI."""

    def __init__(self, engine: ContainerdEngine, cgroup: str) -> None:
        self._cgroup = cgroup
        archive = engine.folder / "image.tar"
        archive.write_bytes(image())
        command = ["ctr", "--address", str(engine.socket), "--namespace", "k8s.io", "images", "import", str(archive)]
        subprocess.run(command, check=True, capture_output=True, timeout=60, env={"PATH": PATH})
        self._folder = engine.folder / "pods"
        self._folder.mkdir()
        self._pods: dict[str, tuple[str, str]] = {}
        self._caller = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cri_call.py")), str(engine.socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _call(self, method: str, request: dict[int, Any], *way: int) -> dict[str, str]:
        print(json.dumps([method, request, way]), file=_pipe(self._caller.stdin), flush=True)
        answer = json.loads(_pipe(self._caller.stdout).readline())
        if "error" in answer:
            raise ContainerError(answer["error"])
        fields: dict[str, str] = answer["fields"]
        return fields

    def start(self, name: str, handler: str = "nvidia") -> str:
        """Start a pod with one container; return the container's id."""
        host = {1: 2, 2: 1}  # NamespaceOption: the node's network, PIDs of its own
        pod = {1: {1: name, 2: f"uid-{name}", 3: "test"}, 3: str(self._folder), 8: {1: self._cgroup, 2: {1: host}}}
        sandbox = self._call("RunPodSandbox", {1: pod, 2: handler})["1"]
        config = {1: {1: name}, 2: {1: IMAGE}, 3: _COMMAND, 11: f"{name}.log", 15: {2: {3: host}}}
        container = self._call("CreateContainer", {1: sandbox, 2: config, 3: pod})["1"]
        self._pods[name] = sandbox, container
        self._call("StartContainer", {1: container})
        return container

    def pod(self, name: str) -> str:
        """Return the id of the container's pod."""
        return self._pods[name][0]

    def enter(self, name: str) -> str:
        """Return what its PID 1 is."""
        command = ["/bin/busybox", "cat", "/proc/1/comm"]
        answer = self._call("ExecSync", {1: self._pods[name][1], 2: command, 3: _STOP_SECONDS})
        if answer.get("3", "\0") != "\0":
            raise ContainerError(f"exec in {name}: {answer}")
        return answer["1"].strip()

    def stop(self, name: str) -> int:
        """Stop the container, not its pod."""
        self._call("StopContainer", {1: self._pods[name][1], 2: _STOP_SECONDS})
        status = self._call("ContainerStatus", {1: self._pods[name][1]}, 1)
        return ord(status.get("7", "\0"))

    def delete(self, name: str) -> None:
        """Delete the container and its pod."""
        sandbox, container = self._pods.pop(name)
        self._call("RemoveContainer", {1: container})
        self._call("StopPodSandbox", {1: sandbox})
        self._call("RemovePodSandbox", {1: sandbox})

    def close(self) -> None:
        """End the program that asks."""
        _pipe(self._caller.stdin).close()
        _pipe(self._caller.stdout).close()
        self._caller.wait(30)


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise ContainerError("the program that asks has no pipe")
    return stream


def image() -> bytes:
    """Return the image as `docker save` and an OCI layout have it, under both names."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    layer = _tar({"bin/busybox": Path(_busybox()).read_bytes()}, mode=0o755)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": _COMMAND},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    settings = json.dumps(config).encode()
    kind = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(f"{kind}.config.v1+json", settings),
            "layers": [_descriptor(f"{kind}.layer.v1.tar", layer)],
        }
    ).encode()
    named = [
        _descriptor(f"{kind}.manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name}}
        for name in (IMAGE, PAUSE)
    ]
    saved = [{"Config": _blob(settings), "RepoTags": [IMAGE, PAUSE], "Layers": [_blob(layer)]}]
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": named}).encode(),
        "manifest.json": json.dumps(saved).encode(),
    }
    return _tar(files | {_blob(content): content for content in (layer, settings, manifest)}, mode=0o644)


def missing() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [name for name in ("busybox", "ctr", "strace") if shutil.which(name, path=PATH) is None]


def _busybox() -> str:
    path = shutil.which("busybox", path=PATH)
    if path is None:
        raise ContainerError("busybox is not installed (Debian's package busybox-static)")
    return path


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob(content: bytes) -> str:
    return f"blobs/{_digest(content).replace(':', '/')}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
