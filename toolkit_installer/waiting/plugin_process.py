"""The process that serves the plugin: one thread, and no work but the engine's requests.

    toolkit_installer.waiting.plugin_process:main CHANNEL ASKED

`CHANNEL` is a socket of packets (SOCK_SEQPACKET), `ASKED` the settings by plugin_protocol.py. Whenever the plugin's
status changes, the process reports that on the channel, and then sends the run a SIGCHLD, which wakes the run; the
first packet is the result of the first attempt. Once no process holds the other end, this process ends. It imports
little: it runs for months.

An engine asks about one container at a time, and all others wait meanwhile: so an answer comes before ordinary work.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable

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
from toolkit_installer.waiting import plugin_log as log
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

    def hear(self, event: Event | ConnectionLost) -> None:
        """Handle an event, after the engine received its answer."""
        if isinstance(event, Answered):
            _log_answer(event)
        elif isinstance(event, Malformed):
            log.get().warning(
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
            log.get().info(
                "The engine asks the NRI plugin about each container",
                key="nri-connected",
                engine=self._status.engine,
                file=self._socket,
            )
        elif self._status.unsupported:
            log.get().warning(
                "The engine leaves out what the NRI plugin names: it is not served",
                key="nri-unsupported",
                reason=self._status.reason,
            )
        else:
            log.get().warning(
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
        log.get().info(
            "A container gets devices", key="nri-granted", container=event.container, devices=verdict.devices
        )
    elif isinstance(verdict, Withheld):
        log.get().warning(
            "A container starts without the devices that it may not have",
            key="nri-withheld",
            container=event.container,
            reason=verdict.reason,
        )
    else:
        log.get().warning("A container is refused", key="nri-refused", container=event.container, reason=verdict.reason)


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
        log.get().info(
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
    log.configure(given.log_format)
    policy = Policy(frozenset(given.namespaces), frozenset(given.kinds), given.lenient)
    _try_real_time_priority()
    plugin = Plugin(Root(given.root), given.socket, PluginIdentity(given.name, given.place), policy)
    serve(plugin, PluginReporter(channel, run, given.socket), channel)
    return 0
