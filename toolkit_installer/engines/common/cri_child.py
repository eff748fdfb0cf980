"""A child process that queries CRI sockets for their status and pods, and tries their handlers (Coprocess).

gRPC leaves threads behind, and a process that starts programs must have none. Each input line is a request:

    {"what": "status", "folder": FOLDER, "name": SOCKET, "seconds": SECONDS, "handlers": null}

and each output line a response: {"answer": ...}, or {"said": ...} with the error.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import Any

from toolkit_installer import lazy

lazy.defer(
    *("asyncio", "grpc.aio", "inspect", "ssl"),  # gRPC's own coroutines, and secure channels
    *("google.protobuf.internal.python_message", "google.protobuf.text_format"),  # messages as Python, and as text
)  # a third of one request's cost

import grpc  # noqa: E402  # see above

from toolkit_installer.engines.common import cri_pb2  # noqa: E402  # see above

_SERVICE = "runtime.v1.RuntimeService"
_LEAST_SECONDS = 0.1
"""For a call whose time is over: gRPC then reports the timeout itself."""


def query_status(channel: grpc.Channel, seconds: float) -> dict[str, Any]:
    """Return a CRI's name, version, handlers and verbose info. Raises grpc.RpcError."""
    version = send_request(channel, "Version", cri_pb2.VersionRequest(), cri_pb2.VersionResponse, seconds)
    request = cri_pb2.StatusRequest(verbose=True)
    status = send_request(channel, "Status", request, cri_pb2.StatusResponse, seconds)
    return {
        "name": version.runtime_name,
        "version": version.runtime_version,
        "handlers": [handler.name for handler in status.runtime_handlers],
        "info": dict(status.info),
    }


def query_pods(channel: grpc.Channel, seconds: float) -> dict[str, Any]:
    """Return the pods of a CRI that run or have containers left, each with its specification's annotations.

    Annotations are None if the engine does not show the specification. All responses together may take `seconds`. A pod
    that is deleted meanwhile is omitted, and so is a stopped pod without containers: a kubelet removes the rest of a
    deleted pod only a minute later. Raises grpc.RpcError.
    """
    deadline = time.monotonic() + seconds
    request = cri_pb2.ListPodSandboxRequest()
    listed = send_request(channel, "ListPodSandbox", request, cri_pb2.ListPodSandboxResponse, seconds)
    asked = cri_pb2.ListContainersRequest()
    remaining = max(_LEAST_SECONDS, deadline - time.monotonic())
    containers = send_request(channel, "ListContainers", asked, cri_pb2.ListContainersResponse, remaining).containers
    inhabited = {container.pod_sandbox_id for container in containers}
    found = []
    for pod in listed.items:
        if pod.state == cri_pb2.SANDBOX_NOTREADY and pod.id not in inhabited:
            continue
        details = cri_pb2.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
        remaining = max(_LEAST_SECONDS, deadline - time.monotonic())
        try:
            answer = send_request(channel, "PodSandboxStatus", details, cri_pb2.PodSandboxStatusResponse, remaining)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                continue
            raise
        named = {"id": pod.id, "namespace": pod.metadata.namespace, "name": pod.metadata.name}
        found.append(named | {"annotations": _annotations(answer.info.get("info", ""))})
    return {"pods": found}


def _annotations(text: str) -> dict[str, str] | None:
    """Return the annotations in the JSON that CRI-O and containerd put into a pod's `info`, None if there are none."""
    try:
        annotations = json.loads(text)["runtimeSpec"]["annotations"]
        return {str(key): str(value) for key, value in annotations.items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def send_request(
    channel: grpc.Channel, method: str, request: Any, answer: Any, seconds: float, service: str = _SERVICE
) -> Any:
    """Send one CRI request and return the response, a message of the class `answer`. Raises grpc.RpcError."""
    made = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    return made(request, timeout=seconds)


def answer_request(question: dict[str, Any]) -> dict[str, Any]:
    """Return the response to a request, as it is printed. Raises KeyError for an unknown request."""
    seconds = float(question["seconds"])
    # some servers refuse the socket's path as the authority of an HTTP/2 request; and each request has a connection
    # of its own, so that it does not wait out the back-off of an earlier one that found no server
    options = (
        *(("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20)),
        ("grpc.use_local_subchannel_pool", 1),
    )
    try:
        os.chdir(question["folder"])  # a socket's path must be short
        with grpc.insecure_channel(f"unix:{question['name']}", options=options) as channel:
            if question["what"] == "try":
                from toolkit_installer.engines.common import cri_canary  # noqa: PLC0415  # rarely requested

                return {
                    "answer": cri_canary.try_handlers(
                        functools.partial(send_request, channel), seconds, question["handlers"]
                    )
                }
            return {"answer": {"status": query_status, "pods": query_pods}[question["what"]](channel, seconds)}
    except grpc.RpcError as error:
        return {"said": f"{error.code().name}: {error.details()}"}
    except OSError as error:
        return {"said": error.strerror or str(error)}
    finally:
        os.chdir("/")  # do not block unmounting the folder


def main() -> int:
    """Answer requests until the input ends, and return the exit status."""
    for line in sys.stdin.buffer:
        print(json.dumps(answer_request(json.loads(line))), flush=True)  # noqa: T201  # a program's own answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
