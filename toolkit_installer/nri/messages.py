"""What is said between the engine and the plugin, as values and as protobuf's bytes. Pure.

nri_pb2.py is made of nri.proto: `make stubs` does that anew.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from toolkit_installer.nri import nri_pb2
from toolkit_installer.nri.decision import Asked

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

OK, INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED = 0, 3, 7, 9, 12
"""gRPC's codes, which ttrpc has too."""

_CREATE_CONTAINER = 1 << 3
"""The bit of the event CREATE_CONTAINER, which is number 4, in what a plugin wants to be asked about."""

_Kind = TypeVar("_Kind", bound=Message)


class MalformedError(Exception):
    """Bytes that are no such message."""


class Request(NamedTuple):
    """A call: which method of which service, and its message as bytes."""

    service: str
    method: str
    payload: bytes


class Engine(NamedTuple):
    """What the engine calls itself."""

    name: str
    version: str


def request(data: bytes) -> Request:
    """Read a call. Raises MalformedError."""
    message = _read(data, nri_pb2.Request())
    return Request(message.service, message.method, message.payload)


def registration(name: str, index: int) -> bytes:
    """Return the call by which a plugin registers; `index` is its place among the plugins, 0 to 99."""
    payload = nri_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=f"{index:02}").SerializeToString()
    call = nri_pb2.Request(service=RUNTIME_SERVICE, method="RegisterPlugin", payload=payload)
    return call.SerializeToString()


def failure(data: bytes) -> str | None:
    """Return what an answer says that went wrong, None: nothing. Raises MalformedError."""
    message = _read(data, nri_pb2.Response())
    if message.status.code == OK:
        return None
    return message.status.message or f"code {message.status.code}"


def answer(payload: bytes = b"") -> bytes:
    """Return an answer with a message."""
    return nri_pb2.Response(payload=payload).SerializeToString()


def error(code: int, reason: str) -> bytes:
    """Return an answer that says what went wrong."""
    return nri_pb2.Response(status=nri_pb2.Status(code=code, message=reason)).SerializeToString()


def engine(payload: bytes) -> Engine:
    """Read Configure. Raises MalformedError."""
    message = _read(payload, nri_pb2.ConfigureRequest())
    return Engine(message.runtime_name, message.runtime_version)


def subscription() -> bytes:
    """Return the answer to Configure: to be asked about each container that is created, and of nothing else."""
    return nri_pb2.ConfigureResponse(events=_CREATE_CONTAINER).SerializeToString()


def synchronized(payload: bytes) -> tuple[bytes, bool]:
    """Return the answer to Synchronize, and whether it was the last part of what is told. Raises MalformedError.

    An engine with many containers tells them in parts, and wants to hear for each that it may go on.
    """
    message = _read(payload, nri_pb2.SynchronizeRequest())
    return nri_pb2.SynchronizeResponse(more=message.more).SerializeToString(), not message.more


def asked(payload: bytes) -> Asked:
    """Read CreateContainer. Raises MalformedError."""
    message = _read(payload, nri_pb2.CreateContainerRequest())
    pod = message.pod
    return Asked(pod.namespace, pod.name, message.container.name, dict(pod.annotations))


def adjustment(devices: tuple[str, ...]) -> bytes:
    """Return the answer to CreateContainer: the container gets these devices, and is else as it was to be."""
    named = [nri_pb2.CDIDevice(name=device) for device in devices]
    return nri_pb2.CreateContainerResponse(
        adjust=nri_pb2.ContainerAdjustment(cdi_devices=named) if named else None
    ).SerializeToString()


def _read(data: bytes, message: _Kind) -> _Kind:
    """Fill a message. Raises MalformedError."""
    try:
        message.ParseFromString(data)
    except DecodeError as wrong:
        raise MalformedError(f"it is no {message.DESCRIPTOR.name}") from wrong
    return message
