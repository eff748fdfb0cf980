"""Serves the node's status over HTTP: /metrics, /readyz and /healthz, with the values that the run sent last.

It is a process of its own, a child of the run. The run is another program at work than while it waits, and cannot
answer during the change, or for the minute that an engine may take; and a client that can reach a port must meet a
process without privileges, files or anything to lose. It runs for months: it imports a few of the standard library's
built-in modules, and nothing else.

    python -I -S -c '…; import metrics_server; metrics_server.main()' LISTENER CHANNEL

`LISTENER` is a listening stream socket, `CHANNEL` a socket of packets (SOCK_SEQPACKET). The process sends READY there
once it has given up its privileges, and again for each packet that it took: a process that is stopped or hangs sends
nothing. The run sends its values in one packet, NUL-separated: whether the node is ready (1 or 0), why, and the
metrics; empty metrics stay as they were. Once no process holds the other end, this process ends: so it never outlives
the run. Signals to stop are for the run alone, which starts this process with all of them blocked.

The protocol is HTTP/1.1 (RFC 9112) without its persistent connections: each response closes its connection. A client
that does not send its request in time is disconnected, and so is the oldest client if there are too many: a slow client
cannot keep out a quick one.
"""

import _socket  # without the classes and enumerations of the module socket
import posix as os  # only the system calls, as in idling.py
import select
import sys
import time

READY = b"ready"
MAX_PACKET = 1 << 20
"""The limit of one packet, in bytes."""
USER = 60947
"""The user and the group that root becomes.

Not `nobody`: node-exporter and others run as that user, and a process of the same user may stop this one. No system
assigns a number from 60578 to 61183 ("Users, Groups, UIDs and GIDs on systemd Systems"), and each user namespace of the
usual size has it.
"""
_HEAD = 8192
"""The limit of a request, in bytes, as in the common servers."""
_OPEN = 128
_SECONDS = 5.0
"""The limit of a connection's time."""
_PAUSE = 0.1
"""Seconds until the next accept if the machine has no more descriptors or memory."""
_PLAIN = "text/plain; charset=utf-8"
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
_READY, _NOT_READY = b"\ntoolkit_installer_ready 1\n", b"\ntoolkit_installer_ready 0\n"


class ServedStatus:
    """The values that the run sent last."""

    def __init__(self) -> None:
        """Start with a node of which nothing is known."""
        self.ready = False
        self.why = b"nothing is known of the node yet"
        self.metrics = b""

    def store(self, packet: bytes) -> None:
        """Store the values of a packet."""
        ready, self.why, metrics = packet.split(b"\0", 2)
        self.ready = ready == b"1"
        self.metrics = metrics or (self.metrics if self.ready else self.metrics.replace(_READY, _NOT_READY))


def respond(request: bytes, served: ServedStatus) -> bytes:
    """Return the response to a request whose head is complete."""
    method, _, rest = request.split(b"\n", 1)[0].rstrip(b"\r").partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, kind, body = "200 OK", _PLAIN, b"ok\n"
    if len(request) > _HEAD:
        status, body = "431 Request Header Fields Too Large", b"the request is too long\n"
    elif method not in {b"GET", b"HEAD"}:
        status, body = "405 Method Not Allowed\r\nAllow: GET, HEAD", b"GET and HEAD are understood, and nothing else\n"
    elif path == b"/metrics":
        kind, body = _EXPOSITION, served.metrics
    elif path == b"/readyz":
        status, body = ("200 OK" if served.ready else "503 Service Unavailable"), served.why + b"\n"
    elif path != b"/healthz":
        status, body = "404 Not Found", b"there are /metrics, /readyz and /healthz\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if method == b"HEAD" else body)


class Connection:
    """A client's connection."""

    def __init__(self, fd: int) -> None:
        """Take over the connection's descriptor."""
        self.fd = fd
        self.until = time.monotonic() + _SECONDS
        self._request = b""
        self._left = memoryview(b"")

    def transfer(self, served: ServedStatus) -> int:
        """Read or write as much as possible; return the event to wait for (0: none, the connection is done)."""
        try:
            if not self._left:
                got = os.read(self.fd, _HEAD)
                self._request += got
                whole = b"\r\n\r\n" in self._request or b"\n\n" in self._request or len(self._request) > _HEAD
                if not whole:
                    return select.EPOLLIN if got else 0
                self._left = memoryview(respond(self._request, served))
            self._left = self._left[os.write(self.fd, self._left) :]
        except BlockingIOError:
            return select.EPOLLOUT if self._left else select.EPOLLIN
        except OSError:
            return 0  # the client is gone
        return select.EPOLLOUT if self._left else 0


class MetricsServer:
    """The server: the clients' connections, and the channel to the run."""

    def __init__(self, listener: int, channel: int) -> None:
        """Take over both descriptors."""
        self.status = ServedStatus()
        self._listener = _socket.socket(fileno=listener)
        os.set_blocking(listener, False)
        self._channel = channel
        self._open: dict[int, Connection] = {}
        """The connections by their descriptors, the oldest first."""
        self._poll = select.epoll()
        for fd in (listener, channel):
            self._poll.register(fd, select.EPOLLIN)

    def step(self) -> bool:
        """Wait for the next events, and handle them; return whether the run still exists."""
        first = next(iter(self._open.values()), None)
        for fd, _ in self._poll.poll(None if first is None else max(0.0, first.until - time.monotonic())):
            if fd == self._channel:
                if not self._receive():
                    return False
            elif fd == self._listener.fileno():
                self._accept()
            elif fd in self._open:  # not closed just now in favour of another connection
                wanted = self._open[fd].transfer(self.status)
                if wanted:
                    self._poll.modify(fd, wanted)
                else:
                    self._close(fd)
        now = time.monotonic()
        for each in [each for each in self._open.values() if each.until <= now]:
            self._close(each.fd)
        return True

    def _receive(self) -> bool:
        """Take a packet of the run, and confirm it; return whether the run still exists."""
        try:
            packet = os.read(self._channel, MAX_PACKET)
            if packet:
                self.status.store(packet)
                os.write(self._channel, READY)
        except ConnectionError:
            return False  # the run ended without reading the last confirmation
        return bool(packet)

    def _accept(self) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001  # accept is the module's
        except BlockingIOError:
            return
        except OSError:
            time.sleep(_PAUSE)  # epoll reports it again at once: the client stays in the queue
            return
        os.set_blocking(fd, False)
        if len(self._open) >= _OPEN:
            self._close(next(iter(self._open)))
        self._open[fd] = Connection(fd)
        self._poll.register(fd, select.EPOLLIN)

    def _close(self, fd: int) -> None:
        del self._open[fd]
        os.close(fd)  # also removes it from the poll


def main() -> None:
    """Give up all privileges, then serve until the run ends."""
    os.chdir("/")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
    listener, channel = map(int, sys.argv[1:])
    endpoint = MetricsServer(listener, channel)
    os.write(channel, READY)
    while endpoint.step():
        pass
