"""Starts one short container through each of some handlers of a CRI; cri_child.py calls it, in a program of its own.

The image is the one that the engine keeps pods' namespaces with, which does nothing: no other one is started, as others
are what any user of the cluster has made. The pod is in the node's own network, so that no network plugin is needed.
All is removed again, and so is what a killed one left.
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
"""Where the pod's control group is: the engine's default, and what runc takes where systemd keeps the groups."""
_TRIES = 3
"""A kubelet deletes pods that it does not know, every other second: one that it took may be made again."""
_LEAST_SECONDS = 0.1
_GONE = (grpc.StatusCode.NOT_FOUND,)
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class _UntriedError(Exception):
    """No handler can be tried; the text says why."""


class _TakenError(_UntriedError):
    """Somebody else deleted the canary while it was tried."""


class _Canary:
    """Tries handlers of one engine, whose answers may take until `deadline`, by time.monotonic()."""

    def __init__(self, call: Callable[..., Any], deadline: float) -> None:
        self._request = call
        self._deadline = deadline

    def fault(self, handler: str, *, shows_gpus: bool) -> str:
        """Return what is wrong with the handler, in the engine's words; empty: nothing. Raises _UntriedError."""
        for _ in range(_TRIES):
            with contextlib.suppress(_TakenError):
                return self._tried(handler, shows_gpus=shows_gpus)
        raise _TakenError("somebody, such as a kubelet, deletes the canary each time")

    def remove_all(self) -> None:
        """Remove the canaries that are there: this one, and those of a run that was killed. Raises grpc.RpcError."""
        request = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(label_selector=_LABELS))
        for pod in self._call("ListPodSandbox", request, cri.ListPodSandboxResponse).items:
            if pod.metadata.namespace == NAME:
                self._removed(pod.id)

    def _tried(self, handler: str, *, shows_gpus: bool) -> str:
        try:
            with self._pod(handler) as (pod, config):
                container = self._started(pod, config, canaries.asking(shows_gpus=shows_gpus))
                return self._wrong(container, shows_gpus=shows_gpus)
        except grpc.RpcError as error:
            if error.code() in _GONE and "handler" not in error.details():
                raise _TakenError from error
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise
            return str(error.details())

    @contextlib.contextmanager
    def _pod(self, handler: str) -> Iterator[tuple[str, Any]]:
        """Yield a pod that runs, and how it was asked for. Raises grpc.RpcError."""
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
        """Return the image that a pod's namespaces are kept with. Raises _UntriedError, grpc.RpcError.

        containerd tells it of each pod; CRI-O of itself, as a pod need not have a container that keeps its namespaces.
        """
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=pod, verbose=True)
        of_pod = self._call("PodSandboxStatus", request, cri.PodSandboxStatusResponse).info
        image = _said(of_pod, "info").get("image")
        if not image:
            of_engine = self._call("Status", cri.StatusRequest(verbose=True), cri.StatusResponse).info
            image = _said(of_engine, "config").get("sandboxImage")
        if not isinstance(image, str) or not image:
            raise _UntriedError("the engine does not tell which image it keeps pods' namespaces with")
        return image

    def _wrong(self, container: str, *, shows_gpus: bool) -> str:
        """Return what is wrong with a container that was started. Raises grpc.RpcError."""
        request = cri.ContainerStatusRequest(container_id=container, verbose=True)
        answer = self._call("ContainerStatus", request, cri.ContainerStatusResponse)
        status = answer.status
        if status.state == cri.CONTAINER_EXITED:
            return f"the container ended at once, with status {status.exit_code}: {status.message}".rstrip(": ")
        pid = _said(answer.info, "info").get("pid") if shows_gpus else None
        return canaries.without_gpus(pid) if isinstance(pid, int) else ""

    def _removed(self, pod: str) -> None:
        """Stop and remove a pod with its containers. Raises grpc.RpcError for what is there and cannot be removed."""
        for method, request in (
            ("StopPodSandbox", cri.StopPodSandboxRequest(pod_sandbox_id=pod)),
            ("RemovePodSandbox", cri.RemovePodSandboxRequest(pod_sandbox_id=pod)),
        ):
            try:
                self._call(method, request, cri.Nothing)
            except grpc.RpcError as error:
                if error.code() not in _GONE:
                    raise

    def _call(self, method: str, request: Any, answer: Any, service: str = "runtime.v1.RuntimeService") -> Any:
        seconds = max(_LEAST_SECONDS, self._deadline - time.monotonic())
        return self._request(method, request, answer, seconds, service)


def _said(info: Mapping[str, str], key: str) -> Mapping[str, Any]:
    """Return an object in what the engine tells as `info`, empty where it tells none. Pure."""
    try:
        said = json.loads(info.get(key, ""))
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def tried(call: Callable[..., Any], seconds: float, handlers: Mapping[str, bool]) -> dict[str, Any]:
    """Return the handlers' faults, by name, in words, and why nothing is known of them where that is so.

    `call` sends one request of the CRI (cri_child.call). A value of `handlers` tells whether a container is to see the
    node's GPUs. Raises grpc.RpcError.
    """
    canary = _Canary(call, time.monotonic() + seconds)
    try:
        canary.remove_all()
        faults = {name: canary.fault(name, shows_gpus=shown) for name, shown in handlers.items()}
        canary.remove_all()  # an engine keeps a pod that it could not start
    except _UntriedError as error:
        return {"faults": {}, "unknown": str(error)}
    except grpc.RpcError as error:  # of what an earlier run left, or of the images
        if error.code() in _AWAY:
            raise
        return {"faults": {}, "unknown": f"{error.code().name}: {error.details()}"}
    return {"faults": {name: fault for name, fault in faults.items() if fault}, "unknown": ""}
