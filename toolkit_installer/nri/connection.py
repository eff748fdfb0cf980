"""The plugin's connection to the engine's NRI socket: it connects, responds, and reconnects after the engine's restart.

Nothing here blocks or waits: the caller queries how long it may wait (`patience`) and for which descriptor (`fileno`,
`writing`), and calls `ready` and `due`. `serve` is a loop for a caller that waits for nothing else.

An engine that restarts creates its socket anew, and a pod that starts before the plugin is connected gets no devices:
so the first attempts follow fast, and a new socket is tried at once. A socket that exists but cannot be used is tried
less and less often, because the engine logs a line for each attempt.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from toolkit_installer.errors import InstallerError
from toolkit_installer.node import sockets
from toolkit_installer.node.root import Root
from toolkit_installer.nri.decision import Policy
from toolkit_installer.nri.session import (
    Event,
    PluginConfigured,
    PluginIdentity,
    ProtocolError,
    Rejected,
    Serving,
    Session,
    Unsupported,
)

FIRST_PAUSE = 0.05
CHECK_SECONDS = 1.0
"""Seconds between two checks of the file at the socket's path; the longest pause if no process listens there."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts at a socket that cannot be used."""
STEADY_SECONDS = 10.0
"""Seconds after which a connection counts as good: if it is lost then, the first attempts follow fast again."""


class Backoff:
    """Schedules the connection attempts. All times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._at = 0.0
        self._seen = ""
        self._look = 0.0

    def record_failure(self, now: float, seen: str, *, there: bool) -> None:
        """Record a failed attempt. `seen`: what is at the socket's path; `there`: whether a process listens."""
        self._at = now + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE if there else CHECK_SECONDS)
        self._seen, self._look = seen, now + min(CHECK_SECONDS, self._at - now)

    def record_loss(self, now: float, served_since: float, seen: str) -> None:
        """Record the loss of a connection that was good since `served_since`."""
        if now - served_since >= STEADY_SECONDS:
            self._pause = FIRST_PAUSE
        self.record_failure(now, seen, there=True)

    def find_next_check(self) -> float:
        """Return when to call `is_due` again."""
        return min(self._at, self._look)

    def is_due(self, now: float, seen: str) -> bool:
        """Return whether it is time for an attempt, with `seen` at the socket's path now."""
        if seen != self._seen:
            self._pause = FIRST_PAUSE
            return True
        if now >= self._at:
            return True
        if now >= self._look:
            self._look = now + CHECK_SECONDS
        return False


REGISTRATION_SECONDS = 5.0
"""The engine's time limit for a plugin (`DefaultPluginRegistrationTimeout`), and the plugin's for the engine."""
_FLAG = "--nri-socket"
_CLOSED = "the engine closed the connection"
_READ = 64 * 1024
_MAX_UNREAD = 8 << 20
"""Bytes that an engine may leave unread before the connection is closed: two of the largest messages."""


class ConnectionLost(NamedTuple):
    """The engine sends no requests any more, or not yet; the plugin tries to connect again."""

    reason: str


class Plugin:
    """The plugin of one engine. `path` is the node's path of the NRI socket."""

    def __init__(
        self,
        root: Root,
        path: str,
        identity: PluginIdentity,
        policy: Policy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self.path = path
        self._identity = identity
        self._policy = policy
        self._clock = clock
        self._backoff = Backoff()
        self._socket: socket.socket | None = None
        self._session = Session(identity, policy)
        self._out = bytearray()
        self._deadline: float | None = None
        self._since: float | None = None
        self._told: str | None = None

    def fileno(self) -> int | None:
        """Return the connection's descriptor, None if there is no connection."""
        return None if self._socket is None else self._socket.fileno()

    @property
    def writing(self) -> bool:
        """Whether data is to be sent as soon as the engine reads."""
        return bool(self._out)

    def patience(self) -> float | None:
        """Return after how many seconds `due` is to be called at the latest; None: never, the engine sends requests."""
        when = self._backoff.find_next_check() if self._socket is None else self._deadline
        return None if when is None else max(0.0, when - self._clock())

    def due(self) -> list[Event | ConnectionLost]:
        """Do what is due: connect, or close the connection to an engine that does not respond."""
        now = self._clock()
        if self._socket is not None:
            if self._deadline is not None and now >= self._deadline:
                return self._end_connection(
                    f"the engine has not configured the plugin within {REGISTRATION_SECONDS:g} s"
                )
            return []
        if not self._backoff.is_due(now, self._seen()):
            return []
        return self._connect()

    def ready(self) -> list[Event | ConnectionLost]:
        """Read what the engine sent, respond, and send pending data."""
        if self._socket is None:
            return []
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return self._send()  # the other direction was ready
        except OSError as error:
            return self._end_connection(_words(error))
        return self._receive(data) if data else self._end_connection(_CLOSED)

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> list[Event | ConnectionLost]:
        try:
            connection = sockets.connect_to_trusted(self._root, self.path, _FLAG)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
            return self._record_failure(_words(error), there=False)
        except (OSError, InstallerError) as error:
            return self._record_failure(_words(error), there=True)
        self._socket = connection
        self._session = Session(self._identity, self._policy)
        self._out = bytearray(self._session.begin())
        self._deadline = self._clock() + REGISTRATION_SECONDS
        self._since = None
        return self._send()

    def _receive(self, data: bytes) -> list[Event | ConnectionLost]:
        """Respond to received data."""
        try:
            replies, events = self._session.receive(data)
        except ProtocolError as error:
            return self._end_connection(f"the engine does not speak NRI: {error}")
        self._update_deadline(events)
        self._out += replies
        told: list[Event | ConnectionLost] = [*events, *self._send()]
        for event in events:
            if isinstance(event, Rejected):
                told += self._end_connection(f"the engine did not take the plugin: {event.reason}")
        return told

    def _send(self) -> list[Event | ConnectionLost]:
        """Send what the engine accepts now; the rest stays pending, within bounds."""
        if self._socket is None or not self._out:
            return []
        try:
            sent = self._socket.send(self._out, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            return self._end_connection(_words(error))
        del self._out[:sent]
        if len(self._out) > _MAX_UNREAD:
            return self._end_connection("the engine does not read its answers")
        return []

    def _update_deadline(self, events: list[Event]) -> None:
        """Record the deadline and the start of service, on which the next steps depend."""
        for event in events:
            if isinstance(event, PluginConfigured | Unsupported):
                self._deadline = None
            if isinstance(event, Serving):
                self._since = self._clock()
                self._told = None

    def _end_connection(self, reason: str) -> list[Event | ConnectionLost]:
        self.close()
        self._out.clear()
        since, self._since, self._deadline = self._since, None, None
        if since is None:
            return self._record_failure(reason, there=True)
        self._backoff.record_loss(self._clock(), since, self._seen())
        return self._report_loss(reason)

    def _record_failure(self, reason: str, *, there: bool) -> list[Event | ConnectionLost]:
        self._backoff.record_failure(self._clock(), self._seen(), there=there)
        return self._report_loss(reason)

    def _report_loss(self, reason: str) -> list[Event | ConnectionLost]:
        """Report a reason once, however often it is repeated in a row."""
        if reason == self._told:
            return []
        self._told = reason
        return [ConnectionLost(reason)]

    def _seen(self) -> str:
        """Return a text that identifies the file at the socket's path."""
        try:
            with sockets.shorten_socket_path(self._root, self.path) as name:
                status = os.lstat(name)
        except (OSError, InstallerError) as error:
            return type(error).__name__
        return f"{status.st_dev} {status.st_ino} {status.st_ctime_ns}"


def _words(error: Exception) -> str:
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return _CLOSED  # a killed engine closes without having read everything: one event, one message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


class Listener(Protocol):
    """Receives the plugin's events. Its methods do not wait."""

    def handle_event(self, event: Event | ConnectionLost) -> None:
        """Handle an event."""

    def patience(self) -> float | None:
        """Return after how many seconds `due` is to be called at the latest; None: not before the next event."""

    def due(self) -> None:
        """Do what is due."""


def serve(plugin: Plugin, listener: Listener, stop: int) -> None:
    """Run the plugin until the descriptor `stop` is readable."""
    try:
        while True:
            stopping, ready = _wait(plugin, listener, stop)
            if stopping:
                return
            for event in [*(plugin.ready() if ready else ()), *plugin.due()]:
                listener.handle_event(event)
            listener.due()
    finally:
        plugin.close()


def _wait(plugin: Plugin, listener: Listener, stop: int) -> tuple[bool, bool]:
    """Wait until there is something to do; return whether to stop, and whether the engine's connection is ready."""
    connection = plugin.fileno()
    pauses = [pause for pause in (plugin.patience(), listener.patience()) if pause is not None]
    with selectors.PollSelector() as selector:
        selector.register(stop, selectors.EVENT_READ)
        if connection is not None:
            selector.register(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if plugin.writing else 0))
        found = {key.fd for key, _ in selector.select(min(pauses, default=None))}
    return stop in found, connection in found
