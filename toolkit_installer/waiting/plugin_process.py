"""The process that serves the plugin. One thread, and no work but the engine's questions.

    toolkit_installer.waiting.plugin_process:main CHANNEL ASKED

`CHANNEL` is a socket of packets (SOCK_SEQPACKET), `ASKED` what plugin_protocol.py says. This says there how the plugin
stands
whenever that changes, and then sends the run a SIGCHLD, which wakes it from its sleep; the first packet is what became
of the first try. Once nobody holds the other end, this ends. It imports little: it runs for months.

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
from toolkit_installer.nri.connection import Lost, Plugin, serve
from toolkit_installer.nri.decision import Granted, Policy, Withheld
from toolkit_installer.nri.session import Answered, Configured, Event, Identity, Malformed, Serving, Unsupported
from toolkit_installer.waiting import plugin_log as log
from toolkit_installer.waiting import plugin_protocol
from toolkit_installer.waiting.plugin_protocol import PluginStatus

_LONGEST_SECONDS = 1.0
"""Of work without a pause, before the kernel kills the process: it would keep a processor from all others. That is
many times what hundreds of containers take which an engine tells of, and half of what it waits for an answer."""


_PAUSE, _LONGEST_PAUSE, _STEADY = 0.25, 30.0, 10.0
"""Seconds from one report of the status to the next: twice as long each time, until it has stood for _STEADY. Each
report wakes the run, and an engine may come and go hundreds of times a second."""


class Teller:
    """Reports what happens: to the log, and to the run where it is about the plugin's status."""

    def __init__(self, channel: int, run: int, socket: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`channel` leads to the run, whose PID is `run`; `socket` is the engine's."""
        os.set_blocking(channel, False)
        self._channel = channel
        self._run = run
        self._socket = socket
        self._clock = clock
        self._standing = PluginStatus()
        self._said: PluginStatus | None = None
        self._told: PluginStatus | None = None
        self._pause = _PAUSE
        self._next = self._changed = 0.0
        """When the next report may be made, and when the status changed last."""

    def hear(self, event: Event | Lost) -> None:
        """Take what happened. The engine has its answer by now."""
        if isinstance(event, Answered):
            _say_answer(event)
        elif isinstance(event, Malformed):
            log.get().warning(
                "The engine asked the NRI plugin what cannot be read",
                key="nri-malformed",
                method=event.method,
                reason=event.reason,
            )
        else:
            before = self._standing
            self._stand(event)
            if self._standing != before:
                self._pace()
            self.due()

    def patience(self) -> float | None:
        """Return after how many seconds a changed status is to be reported; None: it was."""
        return max(0.0, self._next - self._clock()) if self._is_new() else None

    def due(self) -> None:
        """Report a changed status, unless the last report was just made."""
        now = self._clock()
        if not self._is_new() or now < self._next:
            return
        self._next = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._say()
        self._tell()

    def _pace(self) -> None:
        """Note that the status changed; after a steady one the reports follow fast again."""
        now = self._clock()
        if now - self._changed >= _STEADY:
            self._pause, self._next = _PAUSE, now
        self._changed = now

    def _is_new(self) -> bool:
        """Tell whether the status is known, and another one than the run was told."""
        known = self._standing.connected or self._standing.reason != PluginStatus().reason
        return known and self._told != self._standing

    def _stand(self, event: Event | Lost) -> None:
        """Note the plugin's status."""
        if isinstance(event, Configured):
            self._standing = PluginStatus(engine=" ".join(filter(None, event.engine)))
        elif isinstance(event, Serving):
            self._standing = PluginStatus(connected=True, engine=self._standing.engine, reason="")
        elif isinstance(event, Unsupported):
            self._standing = PluginStatus(reason=event.reason, unsupported=True)
        elif isinstance(event, Lost) and not self._standing.unsupported:
            self._standing = PluginStatus(engine=self._standing.engine, reason=event.reason)

    def _say(self) -> None:
        """Log the status, unless it was logged."""
        if self._said == self._standing:
            return
        self._said = self._standing
        if self._standing.connected:
            log.get().info(
                "The engine asks the NRI plugin about each container",
                key="nri-connected",
                engine=self._standing.engine,
                file=self._socket,
            )
        elif self._standing.unsupported:
            log.get().warning(
                "The engine leaves out what the NRI plugin names: it is not served",
                key="nri-unsupported",
                reason=self._standing.reason,
            )
        else:
            log.get().warning(
                "The NRI plugin is not connected: containers that ask for devices start without, until it is",
                key="nri-lost",
                file=self._socket,
                reason=self._standing.reason,
            )

    def _tell(self) -> None:
        """Send the run the status; what it has no room for is sent after the next pause."""
        try:
            os.write(self._channel, plugin_protocol.pack_status(self._standing))
        except OSError:  # it does not listen, or is gone; then this ends
            return
        self._told = self._standing
        if os.getppid() == self._run:  # and not whoever has this now
            os.kill(self._run, signal.SIGCHLD)


def _say_answer(event: Answered) -> None:
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
"""The lowest of those that come before all ordinary work (sched(7)): the kernel's own threads have higher ones."""


def _run_before_ordinary_work(seconds: float) -> None:
    """Give this process real-time priority. The kernel kills it after `seconds` of work without a pause (setrlimit(2)).

    Where a hundred containers start at once, a process that wakes up waits tens of milliseconds for a processor. A nice
    value does not help: it counts among the processes of one control group, and a pod has its own.
    Raises OSError where it may not have that: without CAP_SYS_NICE, or in a control group that has no real-time share
    (CONFIG_RT_GROUP_SCHED). Then nothing is changed.
    """
    limit = int(seconds * 1_000_000)
    _, most = resource.getrlimit(resource.RLIMIT_RTTIME)
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_RTTIME, (limit, limit))  # it counts under such a policy alone
    os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_PRIORITY))


def _take_precedence() -> None:
    """Answer before ordinary work is done, where that is allowed."""
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
    _take_precedence()
    plugin = Plugin(Root(given.root), given.socket, Identity(given.name, given.place), policy)
    serve(plugin, Teller(channel, run, given.socket), channel)
    return 0
