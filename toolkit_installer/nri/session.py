"""The plugin's side of one connection: received bytes, bytes to send, and events. Pure.

Two streams share the connection between the engine and a plugin. A frame has a header of eight bytes: the stream, and
the length of what follows, four bytes each in network order, as in `pkg/net/multiplex` of github.com/containerd/nri
v0.12.5.

A stream carries ttrpc messages. A message has a header of ten bytes, numbers in network order: length of what follows
(four), call (four), kind (one), flags (one). Calls are numbered by the caller, in odd numbers, as in `channel.go` of
github.com/containerd/ttrpc v1.2.10. Its streaming calls are not used with plugins.

The body of a message is protobuf. nri_pb2.py is generated from nri.proto by `make stubs`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from toolkit_installer.nri import decision, nri_pb2
from toolkit_installer.nri.decision import ContainerRequest, DevicesRefused, DeviceVerdict, Granted, Policy

PLUGIN = 1
"""The stream of the engine's requests to the plugin."""
RUNTIME = 2
"""The stream of the plugin's requests to the engine."""
MAX_FRAME_BYTES = 10 + (4 << 20)
"""Bytes in a frame: the largest message of ttrpc with its header. A longer frame is invalid."""

_FRAME_HEADER = struct.Struct(">II")
_SENT = 4096
"""Bytes in a frame of ours. The engine's reader has a buffer of that size, and fails at a frame that is longer than the
part of it into which it reads (`conn.Read` there, ENOMEM; `bufio.NewReader` in ttrpc v1.2.10)."""


class ProtocolError(Exception):
    """The engine does not speak the protocol; the connection is unusable from now on."""


class Frames:
    """Parses frames from received data. Whatever arrives, it buffers at most a part of a header, seven bytes."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the data with its stream, in the order of arrival; a frame may arrive in pieces.

        Raises ProtocolError if a frame is longer than any that is sent.
        """
        rest = memoryview(data)
        while rest:
            if not self._missing:
                wanted = _FRAME_HEADER.size - len(self._header)
                self._header += bytes(rest[:wanted])
                rest = rest[wanted:]
                if len(self._header) < _FRAME_HEADER.size:
                    return
                self._stream, self._missing = _FRAME_HEADER.unpack(self._header)
                self._header = b""
                if self._missing > MAX_FRAME_BYTES:
                    raise ProtocolError(
                        f"a frame of {self._missing} bytes is announced, {MAX_FRAME_BYTES} are the most"
                    )
                continue
            piece = bytes(rest[: self._missing])
            rest = rest[len(piece) :]
            self._missing -= len(piece)
            yield self._stream, piece


def build_frames(stream: int, data: bytes) -> bytes:
    """Return the frames that carry `data` in a stream."""
    pieces = (data[start : start + _SENT] for start in range(0, len(data), _SENT))
    return b"".join(_FRAME_HEADER.pack(stream, len(piece)) + piece for piece in pieces)


MAX_MESSAGE_BYTES = 4 << 20
"""Bytes in a message, without its header."""

_MESSAGE_HEADER = struct.Struct(">IIBB")


class MessageKind(enum.IntEnum):
    """The kinds of messages that a plugin knows; others are ignored, as the protocol may be extended."""

    REQUEST = 1
    RESPONSE = 2


class TtrpcMessage(NamedTuple):
    """A message: the number of its call, its kind, and a Request or Response of nri.proto as bytes."""

    call: int
    kind: int
    body: bytes


class Messages:
    """Parses messages from a stream. It buffers one message at most, and no more of it than has arrived."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[TtrpcMessage]:
        """Yield the complete messages. Raises ProtocolError if one is too long."""
        self._held += data
        while len(self._held) >= _MESSAGE_HEADER.size:
            length, call, kind, _flags = _MESSAGE_HEADER.unpack_from(self._held)
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes is announced, {MAX_MESSAGE_BYTES} are the most")
            end = _MESSAGE_HEADER.size + length
            if len(self._held) < end:
                return
            body = bytes(self._held[_MESSAGE_HEADER.size : end])
            del self._held[:end]
            yield TtrpcMessage(call, kind, body)


def pack_message(message: TtrpcMessage) -> bytes:
    """Return the bytes of a message. Raises ProtocolError if it is too long."""
    if len(message.body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(message.body)} bytes cannot be sent, {MAX_MESSAGE_BYTES} are the most")
    return _MESSAGE_HEADER.pack(len(message.body), message.call, message.kind, 0) + message.body


PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

OK, INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED = 0, 3, 7, 9, 12
"""gRPC's status codes, which ttrpc uses too."""

_CREATE_CONTAINER = 1 << 3
"""The bit of the event CREATE_CONTAINER, which is number 4, in a plugin's subscription."""

_Kind = TypeVar("_Kind", bound=Message)


class MalformedError(Exception):
    """Bytes that are not the expected message."""


class ServiceCall(NamedTuple):
    """A call: its service, its method, and its message as bytes."""

    service: str
    method: str
    payload: bytes


class Engine(NamedTuple):
    """The engine's name and version, as it reports them."""

    name: str
    version: str


def parse_request(data: bytes) -> ServiceCall:
    """Parse a call. Raises MalformedError."""
    message = _read(data, nri_pb2.Request())
    return ServiceCall(message.service, message.method, message.payload)


def build_registration(name: str, index: int) -> bytes:
    """Return the call that registers a plugin; `index` is its position among the plugins, 0 to 99."""
    payload = nri_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=f"{index:02}").SerializeToString()
    call = nri_pb2.Request(service=RUNTIME_SERVICE, method="RegisterPlugin", payload=payload)
    return call.SerializeToString()


def parse_failure(data: bytes) -> str | None:
    """Return the error in a response, None if there is none. Raises MalformedError."""
    message = _read(data, nri_pb2.Response())
    if message.status.code == OK:
        return None
    return message.status.message or f"code {message.status.code}"


def build_response(payload: bytes = b"") -> bytes:
    """Return a response with a message."""
    return nri_pb2.Response(payload=payload).SerializeToString()


def build_error_response(code: int, reason: str) -> bytes:
    """Return a response with an error."""
    return nri_pb2.Response(status=nri_pb2.Status(code=code, message=reason)).SerializeToString()


def parse_engine(payload: bytes) -> Engine:
    """Parse Configure. Raises MalformedError."""
    message = _read(payload, nri_pb2.ConfigureRequest())
    return Engine(message.runtime_name, message.runtime_version)


def build_subscription() -> bytes:
    """Return the response to Configure, which subscribes to the creation of containers and to nothing else."""
    return nri_pb2.ConfigureResponse(events=_CREATE_CONTAINER).SerializeToString()


def build_synchronize_response(payload: bytes) -> tuple[bytes, bool]:
    """Return the response to Synchronize, and whether the request was the last part. Raises MalformedError.

    An engine with many containers sends them in parts, and expects a response to each before it continues.
    """
    message = _read(payload, nri_pb2.SynchronizeRequest())
    return nri_pb2.SynchronizeResponse(more=message.more).SerializeToString(), not message.more


def parse_container(payload: bytes) -> ContainerRequest:
    """Parse CreateContainer. Raises MalformedError."""
    message = _read(payload, nri_pb2.CreateContainerRequest())
    pod = message.pod
    return ContainerRequest(pod.namespace, pod.name, message.container.name, dict(pod.annotations))


def build_adjustment(devices: tuple[str, ...]) -> bytes:
    """Return the response to CreateContainer: the container gets these devices, and is otherwise unchanged."""
    named = [nri_pb2.CDIDevice(name=device) for device in devices]
    return nri_pb2.CreateContainerResponse(
        adjust=nri_pb2.ContainerAdjustment(cdi_devices=named) if named else None
    ).SerializeToString()


def _read(data: bytes, message: _Kind) -> _Kind:
    """Parse a message. Raises MalformedError."""
    try:
        message.ParseFromString(data)
    except DecodeError as wrong:
        raise MalformedError(f"it is no {message.DESCRIPTOR.name}") from wrong
    return message


_REGISTER = 1
"""The number of the plugin's only call."""
_UNSUBSCRIBED_METHODS = frozenset(
    [
        *("RunPodSandbox", "UpdatePodSandbox", "PostUpdatePodSandbox", "StopPodSandbox", "RemovePodSandbox"),
        *("PostCreateContainer", "StartContainer", "PostStartContainer", "UpdateContainer", "PostUpdateContainer"),
        *("StopContainer", "RemoveContainer", "StateChange", "ValidateContainerAdjustment"),
    ]
)
"""Requests that a plugin may receive without a subscription: an empty response changes nothing."""


class PluginIdentity(NamedTuple):
    """How the engine identifies a plugin: by a name, and its position among the plugins, 0 to 99."""

    name: str
    place: int


class PluginConfigured(NamedTuple):
    """The engine has accepted the plugin. It sends no requests about containers yet."""

    engine: Engine


class Unsupported(NamedTuple):
    """The engine gives a container no devices that a plugin names; the plugin has responded with the reason."""

    reason: str


class Rejected(NamedTuple):
    """The engine did not accept the plugin; the reason is the engine's own text."""

    reason: str


class Serving(NamedTuple):
    """From now on the engine sends a request for each container."""


class Answered(NamedTuple):
    """The plugin has responded about a container that requests devices: NAMESPACE/POD/CONTAINER."""

    container: str
    verdict: DeviceVerdict


class Malformed(NamedTuple):
    """The plugin has responded that a request cannot be parsed."""

    method: str
    reason: str


class ShuttingDown(NamedTuple):
    """The engine has announced that it shuts down."""


Event = PluginConfigured | Unsupported | Rejected | Serving | Answered | Malformed | ShuttingDown


class Session:
    """One connection, from its beginning. After a ProtocolError it is unusable."""

    def __init__(self, identity: PluginIdentity, policy: Policy) -> None:
        self._identity = identity
        self._policy = policy
        self._frames = Frames()
        self._streams = {PLUGIN: Messages(), RUNTIME: Messages()}
        self._registering = True
        self._configured = False
        self._serving = False

    def begin(self) -> bytes:
        """Return the first bytes to send: the registration."""
        body = build_registration(*self._identity)
        return build_frames(RUNTIME, pack_message(TtrpcMessage(_REGISTER, MessageKind.REQUEST, body)))

    def receive(self, data: bytes) -> tuple[bytes, list[Event]]:
        """Process received bytes; return the bytes to send, and the events. Raises ProtocolError."""
        replies: list[bytes] = []
        events: list[Event] = []
        for stream, piece in self._frames.feed(data):
            received = self._streams.get(stream)
            if received is None:
                continue  # as the engine does with an unknown stream
            for message in received.feed(piece):
                if stream == RUNTIME:
                    events += self._handle_response(message)
                elif message.kind == MessageKind.REQUEST:
                    body, told = self._handle_request(message.body)
                    replies.append(
                        build_frames(PLUGIN, pack_message(TtrpcMessage(message.call, MessageKind.RESPONSE, body)))
                    )
                    events += told
        return b"".join(replies), events

    def _handle_response(self, message: TtrpcMessage) -> list[Event]:
        """Process the response to the registration. Raises ProtocolError."""
        if not self._registering or (message.call, message.kind) != (_REGISTER, MessageKind.RESPONSE):
            return []
        self._registering = False
        try:
            reason = parse_failure(message.body)
        except MalformedError as error:
            raise ProtocolError(f"the answer to the registration cannot be read: {error}") from error
        return [] if reason is None else [Rejected(reason)]

    def _handle_request(self, body: bytes) -> tuple[bytes, list[Event]]:
        """Return the response to one call, and the events."""
        method = ""
        try:
            request = parse_request(body)
            method = request.method if request.service == PLUGIN_SERVICE else ""
            return self._serve(method, request.payload)
        except MalformedError as error:
            reason = str(error)
            return build_error_response(INVALID_ARGUMENT, reason), [Malformed(method, reason)]

    def _serve(self, method: str, payload: bytes) -> tuple[bytes, list[Event]]:
        """Return the response to a method of the plugin's service, and the events. Raises MalformedError."""
        if method == "CreateContainer":
            return self._handle_new_container(payload)
        if method == "Configure":
            return self._configure(payload)
        if method == "Synchronize":
            response, last = build_synchronize_response(payload)
            begins = last and self._configured and not self._serving
            self._serving = self._serving or begins
            return build_response(response), [Serving()] if begins else []
        if method == "Shutdown":
            return build_response(), [ShuttingDown()]
        if method in _UNSUBSCRIBED_METHODS:
            return build_response(), []
        return build_error_response(UNIMPLEMENTED, "the plugin has no such method"), []

    def _configure(self, payload: bytes) -> tuple[bytes, list[Event]]:
        engine = parse_engine(payload)
        reason = decision.find_engine_refusal(*engine)
        if reason is not None:
            return build_error_response(FAILED_PRECONDITION, reason), [Unsupported(reason)]
        self._configured = True
        return build_response(build_subscription()), [PluginConfigured(engine)]

    def _handle_new_container(self, payload: bytes) -> tuple[bytes, list[Event]]:
        if not self._configured:
            return build_error_response(FAILED_PRECONDITION, "the plugin was not configured"), []
        asked = parse_container(payload)
        verdict = decision.decide(asked, self._policy)
        told: list[Event] = [] if verdict == Granted() else [Answered(str(asked), verdict)]
        if isinstance(verdict, DevicesRefused):
            return build_error_response(PERMISSION_DENIED, verdict.reason), told
        devices = verdict.devices if isinstance(verdict, Granted) else ()
        return build_response(build_adjustment(devices)), told
