"""The plugin's side of one connection: bytes that came in, bytes that go out, and what happened. Pure."""

from __future__ import annotations

from typing import NamedTuple

from toolkit_installer.nri import decision, wire
from toolkit_installer.nri.decision import Granted, Policy, Refused, Verdict
from toolkit_installer.nri.wire import (
    PLUGIN,
    RUNTIME,
    Frames,
    MalformedError,
    Messages,
    ProtocolError,
    TtrpcMessage,
    framed,
)

_REGISTER = 1
"""The number of the plugin's only call."""
_LEFT_ALONE = frozenset(
    [
        *("RunPodSandbox", "UpdatePodSandbox", "PostUpdatePodSandbox", "StopPodSandbox", "RemovePodSandbox"),
        *("PostCreateContainer", "StartContainer", "PostStartContainer", "UpdateContainer", "PostUpdateContainer"),
        *("StopContainer", "RemoveContainer", "StateChange", "ValidateContainerAdjustment"),
    ]
)
"""What a plugin may be asked or told that has not subscribed to it: an empty answer changes nothing."""


class Identity(NamedTuple):
    """What the engine knows a plugin by: a name, and its place among the plugins, 0 to 99."""

    name: str
    place: int


class Configured(NamedTuple):
    """The engine has taken the plugin. It is not asked about containers yet."""

    engine: wire.Engine


class Unsupported(NamedTuple):
    """The engine is none that gives a container what the plugin names; it was told so."""

    reason: str


class Rejected(NamedTuple):
    """The engine did not take the plugin; the words are its own."""

    reason: str


class Serving(NamedTuple):
    """From now on the engine asks about each container."""


class Answered(NamedTuple):
    """The engine asked about a container that wants something: NAMESPACE/POD/CONTAINER."""

    container: str
    verdict: Verdict


class Malformed(NamedTuple):
    """The engine was told that what it asked cannot be read."""

    method: str
    reason: str


class ShuttingDown(NamedTuple):
    """The engine says that it ends."""


Event = Configured | Unsupported | Rejected | Serving | Answered | Malformed | ShuttingDown


class Session:
    """One connection, from its beginning. After ProtocolError it is of no use."""

    def __init__(self, identity: Identity, policy: Policy) -> None:
        self._identity = identity
        self._policy = policy
        self._frames = Frames()
        self._streams = {PLUGIN: Messages(), RUNTIME: Messages()}
        self._registering = True
        self._configured = False
        self._serving = False

    def begin(self) -> bytes:
        """Return what is sent first: the registration."""
        body = wire.registration(*self._identity)
        return framed(RUNTIME, wire.packed(TtrpcMessage(_REGISTER, wire.Kind.REQUEST, body)))

    def receive(self, data: bytes) -> tuple[bytes, list[Event]]:
        """Take what came in; return what is to be sent, and what happened. Raises ProtocolError."""
        replies: list[bytes] = []
        events: list[Event] = []
        for stream, piece in self._frames.feed(data):
            received = self._streams.get(stream)
            if received is None:
                continue  # as the engine does with a stream that it does not know
            for message in received.feed(piece):
                if stream == RUNTIME:
                    events += self._answered(message)
                elif message.kind == wire.Kind.REQUEST:
                    body, told = self._called(message.body)
                    replies.append(framed(PLUGIN, wire.packed(TtrpcMessage(message.call, wire.Kind.RESPONSE, body))))
                    events += told
        return b"".join(replies), events

    def _answered(self, message: TtrpcMessage) -> list[Event]:
        """Take the answer to the registration. Raises ProtocolError."""
        if not self._registering or (message.call, message.kind) != (_REGISTER, wire.Kind.RESPONSE):
            return []
        self._registering = False
        try:
            reason = wire.failure(message.body)
        except MalformedError as error:
            raise ProtocolError(f"the answer to the registration cannot be read: {error}") from error
        return [] if reason is None else [Rejected(reason)]

    def _called(self, body: bytes) -> tuple[bytes, list[Event]]:
        """Return the answer to one call, and what happened."""
        method = ""
        try:
            request = wire.request(body)
            method = request.method if request.service == wire.PLUGIN_SERVICE else ""
            return self._served(method, request.payload)
        except MalformedError as error:
            reason = str(error)
            return wire.error(wire.INVALID_ARGUMENT, reason), [Malformed(method, reason)]

    def _served(self, method: str, payload: bytes) -> tuple[bytes, list[Event]]:
        """Return the answer to a method of the plugin's service, and what happened. Raises MalformedError."""
        if method == "CreateContainer":
            return self._created(payload)
        if method == "Configure":
            return self._configure(payload)
        if method == "Synchronize":
            response, last = wire.synchronized(payload)
            begins = last and self._configured and not self._serving
            self._serving = self._serving or begins
            return wire.answer(response), [Serving()] if begins else []
        if method == "Shutdown":
            return wire.answer(), [ShuttingDown()]
        if method in _LEFT_ALONE:
            return wire.answer(), []
        return wire.error(wire.UNIMPLEMENTED, "the plugin has no such method"), []

    def _configure(self, payload: bytes) -> tuple[bytes, list[Event]]:
        engine = wire.engine(payload)
        reason = decision.refusal(*engine)
        if reason is not None:
            return wire.error(wire.FAILED_PRECONDITION, reason), [Unsupported(reason)]
        self._configured = True
        return wire.answer(wire.subscription()), [Configured(engine)]

    def _created(self, payload: bytes) -> tuple[bytes, list[Event]]:
        if not self._configured:
            return wire.error(wire.FAILED_PRECONDITION, "the plugin was not configured"), []
        asked = wire.asked(payload)
        verdict = decision.decide(asked, self._policy)
        told: list[Event] = [] if verdict == Granted() else [Answered(str(asked), verdict)]
        if isinstance(verdict, Refused):
            return wire.error(wire.PERMISSION_DENIED, verdict.reason), told
        devices = verdict.devices if isinstance(verdict, Granted) else ()
        return wire.answer(wire.adjustment(devices)), told
