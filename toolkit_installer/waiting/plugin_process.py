"""The process that serves the plugin: one thread, and no work but the engine's requests.

    toolkit_installer.waiting.plugin_process:main CHANNEL ASKED

`CHANNEL` is a socket of packets (SOCK_SEQPACKET), `ASKED` the settings by plugin_protocol.py. Whenever the plugin's
status changes, the process reports that on the channel, and then sends the run a SIGCHLD, which wakes the run; the
first packet is the result of the first attempt. Once no process holds the other end, this process ends. It imports
little, as it runs for months: structlog alone would double its size.

An engine asks about one container at a time, and all others wait meanwhile: so an answer comes before ordinary work,
and a log line that cannot be written at once is dropped. An engine waits two seconds for an answer.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

from toolkit_installer.documents import log_line
from toolkit_installer.documents.log_line import Renderer
from toolkit_installer.node.root import Root
from toolkit_installer.nri.connection import ConnectionLost, Plugin, serve
from toolkit_installer.nri.decision import Granted, Policy, Withheld
from toolkit_installer.nri.session import (
    Answered,
    Event,
    Malformed,
    PluginConfigured,
    PluginIdentity,
    Serving,
    Unsupported,
)
from toolkit_installer.waiting import plugin_protocol
from toolkit_installer.waiting.plugin_protocol import PluginStatus

_LONGEST_SECONDS = 1.0
"""Seconds of work without a pause, after which the kernel kills the process: it would hold a processor from all others.

That is many times the work for an engine's list of hundreds of containers, and half of the engine's timeout.
"""


_PAUSE, _LONGEST_PAUSE, _STEADY = 0.25, 30.0, 10.0
"""Seconds between two reports of the status: doubled each time, until the status has been steady for _STEADY seconds.

Each report wakes the run, and an engine may come and go hundreds of times a second.
"""


class PluginReporter:
    """A reporter of events: to the log, and to the run if the plugin's status changed."""

    def __init__(self, channel: int, run: int, socket: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`channel` leads to the run, whose PID is `run`; `socket` is the engine's."""
        os.set_blocking(channel, False)
        self._channel = channel
        self._run = run
        self._socket = socket
        self._clock = clock
        self._status = PluginStatus()
        self._logged: PluginStatus | None = None
        self._sent: PluginStatus | None = None
        self._pause = _PAUSE
        self._next = self._changed = 0.0
        """The earliest time of the next report, and the time of the last change of the status."""

    def handle_event(self, event: Event | ConnectionLost) -> None:
        """Handle an event, after the engine received its answer."""
        if isinstance(event, Answered):
            _log_answer(event)
        elif isinstance(event, Malformed):
            get_log().warning(
                "The engine asked the NRI plugin what cannot be read",
                key="nri-malformed",
                method=event.method,
                reason=event.reason,
            )
        else:
            before = self._status
            self._set_status(event)
            if self._status != before:
                self._record_change()
            self.due()

    def patience(self) -> float | None:
        """Return the seconds until a changed status is to be reported; None if it was reported."""
        return max(0.0, self._next - self._clock()) if self._is_new() else None

    def due(self) -> None:
        """Report a changed status, unless the last report is too recent."""
        now = self._clock()
        if not self._is_new() or now < self._next:
            return
        self._next = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._log_status()
        self._send_status()

    def _record_change(self) -> None:
        """Record a change of the status; after a steady status, reports follow fast again."""
        now = self._clock()
        if now - self._changed >= _STEADY:
            self._pause, self._next = _PAUSE, now
        self._changed = now

    def _is_new(self) -> bool:
        """Return whether the status is known, and differs from the last one sent to the run."""
        known = self._status.connected or self._status.reason != PluginStatus().reason
        return known and self._sent != self._status

    def _set_status(self, event: Event | ConnectionLost) -> None:
        """Set the plugin's status by an event."""
        if isinstance(event, PluginConfigured):
            self._status = PluginStatus(engine=" ".join(filter(None, event.engine)))
        elif isinstance(event, Serving):
            self._status = PluginStatus(connected=True, engine=self._status.engine, reason="")
        elif isinstance(event, Unsupported):
            self._status = PluginStatus(reason=event.reason, unsupported=True)
        elif isinstance(event, ConnectionLost) and not self._status.unsupported:
            self._status = PluginStatus(engine=self._status.engine, reason=event.reason)

    def _log_status(self) -> None:
        """Log the status, unless it was logged."""
        if self._logged == self._status:
            return
        self._logged = self._status
        if self._status.connected:
            get_log().info(
                "The engine asks the NRI plugin about each container",
                key="nri-connected",
                engine=self._status.engine,
                file=self._socket,
            )
        elif self._status.unsupported:
            get_log().warning(
                "The engine leaves out what the NRI plugin names: it is not served",
                key="nri-unsupported",
                reason=self._status.reason,
            )
        else:
            get_log().warning(
                "The NRI plugin is not connected: containers that ask for devices start without, until it is",
                key="nri-lost",
                file=self._socket,
                reason=self._status.reason,
            )

    def _send_status(self) -> None:
        """Send the run the status; if the channel is full, it is sent after the next pause."""
        try:
            os.write(self._channel, plugin_protocol.pack_status(self._status))
        except OSError:  # the run does not read, or is gone; then this process ends
            return
        self._sent = self._status
        if os.getppid() == self._run:  # not the process that adopted this one
            os.kill(self._run, signal.SIGCHLD)


def _log_answer(event: Answered) -> None:
    verdict = event.verdict
    if isinstance(verdict, Granted):
        get_log().info(
            "A container gets devices", key="nri-granted", container=event.container, devices=verdict.devices
        )
    elif isinstance(verdict, Withheld):
        get_log().warning(
            "A container starts without the devices that it may not have",
            key="nri-withheld",
            container=event.container,
            reason=verdict.reason,
        )
    else:
        get_log().warning("A container is refused", key="nri-refused", container=event.container, reason=verdict.reason)


_PRIORITY = 1
"""The lowest real-time priority, above all ordinary work (sched(7)); the kernel's own threads have higher ones."""


def _run_before_ordinary_work(seconds: float) -> None:
    """Give this process real-time priority; the kernel kills it after `seconds` of work without a pause (setrlimit(2)).

    If a hundred containers start at once, a process that wakes up waits tens of milliseconds for a processor. A nice
    value does not help: it counts among the processes of one control group, and a pod has its own. Raises OSError, with
    nothing changed, if the process may not have that priority: without CAP_SYS_NICE, or in a control group without a
    real-time share (CONFIG_RT_GROUP_SCHED).
    """
    limit = int(seconds * 1_000_000)
    _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_RTTIME, (limit, limit))  # the limit counts only under a real-time policy
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))


def _try_real_time_priority() -> None:
    """Answer before ordinary work, if that is allowed."""
    try:
        _run_before_ordinary_work(_LONGEST_SECONDS)
    except OSError as error:
        get_log().info(
            "The NRI plugin answers in its turn: containers wait for it while the node is busy",
            key="nri-in-turn",
            reason=error.strerror,
        )


def main() -> int:
    """Serve the plugin until the run ends."""
    run = os.getppid()
    os.chdir("/")
    channel = int(sys.argv[1])
    given = plugin_protocol.parse_settings(sys.argv[2])
    configure_log(given.log_format)
    policy = Policy(frozenset(given.namespaces), frozenset(given.kinds), given.lenient)
    _try_real_time_priority()
    plugin = Plugin(Root(given.root), given.socket, PluginIdentity(given.name, given.place), policy)
    serve(plugin, PluginReporter(channel, run, given.socket), channel)
    return 0


_STDERR = 2
_MAX_LINE = select.PIPE_BUF
"""The bytes that a pipe takes whole or not at all (pipe(7))."""
_CUT = "..."


class LineWriter:
    """A writer of log lines to a descriptor, in a format of LogFormat; empty: chosen by the kind of descriptor."""

    def __init__(self, log_format: str, fd: int) -> None:
        suits = log_line.CONSOLE if os.isatty(fd) else log_line.LOGFMT
        self._renderer = Renderer(log_format or suits, color=False)
        self._write = _make_writer(fd)

    def info(self, msg: str, *, key: str, **values: object) -> None:
        """Log normal operation."""
        self._line("info", msg, key, values)

    def warning(self, msg: str, *, key: str, **values: object) -> None:
        """Log a fault that an administrator should know of."""
        self._line("warning", msg, key, values)

    def _line(self, level: str, msg: str, key: str, values: dict[str, Any]) -> None:
        now = time.strftime(log_line.TIME, time.gmtime())
        text = self._renderer.line({"time": now, "level": level, "msg": msg, "event": key, **values})
        data = text.encode(errors="backslashreplace")
        if len(data) >= _MAX_LINE:
            data = data[: _MAX_LINE - 1 - len(_CUT)] + _CUT.encode()
        try:
            self._write(data + b"\n")
        except OSError:
            return  # the log's reader is slow, or gone; the engine has its answer


def _make_writer(fd: int) -> Callable[[bytes], object]:
    """Return a function that writes to a descriptor without waiting; the run's own writes there still block.

    O_NONBLOCK holds for every process that shares an open file: so a file that can be opened is opened again.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return lambda data: os.write(fd, data)  # opened again, it would be overwritten from its beginning
    if stat.S_ISSOCK(mode):
        return lambda data: _send(fd, data)
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:  # the file is gone, or belongs to another user
        return lambda data: os.write(fd, data) if _is_writable(fd) else 0
    return lambda data: os.write(own, data)


def _send(fd: int, data: bytes) -> None:
    """Send as many of the bytes as can be sent at once. Raises OSError."""
    connection = socket.socket(fileno=fd)
    try:
        connection.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        connection.detach()


def _is_writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


class _CurrentLog:
    lines: ClassVar[LineWriter | None] = None


def configure_log(log_format: str, fd: int = _STDERR) -> None:
    """Set the format and the descriptor of all later lines."""
    _CurrentLog.lines = LineWriter(log_format, fd)


def get_log() -> LineWriter:
    """Return the writer of log lines."""
    if _CurrentLog.lines is None:
        configure_log("")
    assert _CurrentLog.lines is not None  # noqa: S101  # set just above
    return _CurrentLog.lines
