"""Run one short container through each of some handlers of a CRI; cri_child.py calls this in its own process.

The image is the engine's sandbox image, which does nothing: other images may come from any user of the cluster, so none
of them is started. The pod uses the node's network, so no network plugin is needed. All pods are removed again, and so
are those of a killed run.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc

from toolkit_installer.engines.common import canaries
from toolkit_installer.engines.common import cri_pb2 as cri
from toolkit_installer.engines.common.canaries import NAME, VARIABLE

_LABELS = {"toolkit-installer/canary": "true"}
_PARENTS = ("", "system.slice")
"""The pod's cgroup parent: the engine's default, and the one that runc requires if systemd manages the cgroups."""
_TRIES = 3
"""A kubelet deletes unknown pods every other second: recreate a canary that it deleted."""
_LEAST_SECONDS = 0.1
_GONE = (grpc.StatusCode.NOT_FOUND,)
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class _UntriedError(Exception):
    """No handler can be tried; the text says why."""


class _TakenError(_UntriedError):
    """Another program deleted the canary while it was tried."""


class _PodCanary:
    """Tries handlers of one engine, whose responses may take until `deadline`, by time.monotonic()."""

    def __init__(self, call: Callable[..., Any], deadline: float) -> None:
        self._request = call
        self._deadline = deadline

    def fault(self, handler: str, *, shows_gpus: bool) -> str:
        """Return why the handler does not work, in the engine's words; empty if it works. Raises _UntriedError."""
        for _ in range(_TRIES):
            with contextlib.suppress(_TakenError):
                return self._tried(handler, shows_gpus=shows_gpus)
        raise _TakenError("somebody, such as a kubelet, deletes the canary each time")

    def remove_all(self) -> None:
        """Remove all canaries: this run's, and those of a killed run. Raises grpc.RpcError."""
        request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(label_selector=_LABELS))
        for pod in self._call("ListPodSandbox", request, cri.ListPodSandboxResponse).items:
            if pod.metadata.namespace == NAME:
                self._removed(pod.id)

    def _tried(self, handler: str, *, shows_gpus: bool) -> str:
        try:
            with self._pod(handler) as (pod, config):
                container = self._started(pod, config, canaries.choose_visible_devices(shows_gpus=shows_gpus))
                return self._wrong(container, shows_gpus=shows_gpus)
        except grpc.RpcError as error:
            if error.code() in _GONE and "handler" not in error.details():
                raise _TakenError from error
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise
            return str(error.details())

    @contextlib.contextmanager
    def _pod(self, handler: str) -> Iterator[tuple[str, Any]]:
        """Yield the ID of a running pod, and its configuration. Raises grpc.RpcError."""
        for parent in _PARENTS:
            namespaces = cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)
            security = cri.LinuxSandboxSecurityContext(namespace_options=namespaces)
            config = cri.PodSandboxConfig(
                metadata=cri.PodSandboxMetadata(name=NAME, uid=f"{os.getpid()}-{time.time_ns()}", namespace=NAME),
                labels=_LABELS,
                linux=cri.LinuxPodSandboxConfig(cgroup_parent=parent, security_context=security),
            )
            request = cri.RunPodSandboxRequest(config=config, runtime_handler=handler)
            try:
                pod = self._call("RunPodSandbox", request, cri.RunPodSandboxResponse).pod_sandbox_id
            except grpc.RpcError as error:
                if parent == _PARENTS[-1] or "cgroup" not in error.details():
                    raise
                continue
            try:
                yield pod, config
            finally:
                self._removed(pod)
            return

    def _started(self, pod: str, config: Any, devices: str) -> str:
        """Start a container in the pod, and return its ID. Raises grpc.RpcError."""
        image = self._of_pod(pod)
        namespaces = cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)
        container = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=NAME),
            image=cri.ImageSpec(image=image, user_specified_image=image),
            envs=[cri.KeyValue(key=VARIABLE, value=devices)],
            labels=_LABELS,
            linux=cri.LinuxContainerConfig(
                security_context=cri.LinuxContainerSecurityContext(namespace_options=namespaces)
            ),
        )
        request = cri.CreateContainerRequest(pod_sandbox_id=pod, config=container, sandbox_config=config)
        identity: str = self._call("CreateContainer", request, cri.CreateContainerResponse).container_id
        self._call("StartContainer", cri.StartContainerRequest(container_id=identity), cri.Nothing)
        return identity

    def _of_pod(self, pod: str) -> str:
        """Return the engine's sandbox image. Raises _UntriedError, grpc.RpcError.

        containerd reports it per pod; CRI-O for the engine, as its pods need not have a container that keeps their
        namespaces.
        """
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod, verbose=True)
        of_pod = self._call("PodSandboxStatus", request, cri.PodSandboxStatusResponse).info
        image = _parse_info(of_pod, "info").get("image")
        if not image:
            of_engine = self._call("Status", cri.StatusRequest(verbose=True), cri.StatusResponse).info
            image = _parse_info(of_engine, "config").get("sandboxImage")
        if not isinstance(image, str) or not image:
            raise _UntriedError("the engine does not tell which image it keeps pods' namespaces with")
        return image

    def _wrong(self, container: str, *, shows_gpus: bool) -> str:
        """Return why a started container does not work, empty if it works. Raises grpc.RpcError."""
        request = cri.ContainerStatusRequest(container_id=container, verbose=True)
        answer = self._call("ContainerStatus", request, cri.ContainerStatusResponse)
        status = answer.status
        if status.state == cri.CONTAINER_EXITED:
            return f"the container ended at once, with status {status.exit_code}: {status.message}".rstrip(": ")
        pid = _parse_info(answer.info, "info").get("pid") if shows_gpus else None
        return canaries.describe_missing_gpus(pid) if isinstance(pid, int) else ""

    def _removed(self, pod: str) -> None:
        """Stop and remove a pod with its containers. Raises grpc.RpcError if the pod exists and cannot be removed."""
        for method, request in (
            ("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod)),
            ("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod)),
        ):
            try:
                self._call(method, request, cri.Nothing)
            except grpc.RpcError as error:
                if error.code() not in _GONE:
                    raise

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        seconds = max(_LEAST_SECONDS, self._deadline - time.monotonic())
        return self._request(method, request, answer, seconds, "runtime.v1.RuntimeService")


def _parse_info(info: Mapping[str, str], key: str) -> Mapping[str, Any]:
    """Return an object of the engine's `info`, empty if it has none. Pure."""
    try:
        said = json.loads(info.get(key, ""))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def try_handlers(call: Callable[..., Any], seconds: float, handlers: Mapping[str, bool]) -> dict[str, Any]:
    """Return the handlers' faults, by name, in words, or why none could be tried.

    `call` sends one request of the CRI (cri_child.py). A value of `handlers` tells whether a container should see the
    node's GPUs. Raises grpc.RpcError.
    """
    canary = _PodCanary(call, time.monotonic() + seconds)
    try:
        canary.remove_all()
        faults = {name: canary.fault(name, shows_gpus=shown) for name, shown in handlers.items()}
        canary.remove_all()  # an engine keeps a pod that it could not start
    except _UntriedError as error:
        return {"faults": {}, "unknown": str(error)}
    except grpc.RpcError as error:  # from removing an earlier run's canaries, or finding the image
        if error.code() in _AWAY:
            raise
        return {"faults": {}, "unknown": f"{error.code().name}: {error.details()}"}
    return {"faults": {name: fault for name, fault in faults.items() if fault}, "unknown": ""}
