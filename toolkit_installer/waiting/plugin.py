"""The NRI plugin's life within a run: started before the node is changed, watched during the wait, ended at the end."""

from __future__ import annotations

import time
from collections.abc import Callable

from toolkit_installer import log
from toolkit_installer.engines.detect import decide
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import interpreter, signals
from toolkit_installer.node.node import Node
from toolkit_installer.waiting import plugin_protocol
from toolkit_installer.waiting.child_process import ChildProcess
from toolkit_installer.waiting.plugin_protocol import PluginSettings, PluginState, PluginStatus

FUNCTION = "toolkit_installer.waiting.plugin_process:main"
"""The child's entry point, named here and imported by no module of the run: its imports belong to a process of its own.
"""
_NAME = "toolkit-installer-nri"
_BEGIN_SECONDS = 30.0
"""More than a process takes to start on a busy node, including an engine's list of hundreds of containers."""
_AGAIN_SECONDS = 10.0
"""A process that ends sooner than this after a restart is restarted with the pauses of a longer wait."""
_UNKNOWN = "the process that is to serve it did not begin; where it ended, its reason stands above"


class UnsupportedEngineError(ConfigurationError):
    """The engine would drop the devices that the plugin names."""


class CannotStartError(ConfigurationError):
    """The plugin could not be registered."""


class PluginWatch:
    """A watch of the plugin's process: starts it, receives its status, and restarts it after it ended."""

    def __init__(
        self,
        node: Node,
        settings: PluginSettings,
        process: ChildProcess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.status = PluginStatus()
        """The plugin's status at the last inspection."""
        self._node = node
        self._settings = settings
        self._process = process
        self._clock = clock
        self.started = False
        """Whether the plugin is to be served by now: not on a node that must not be changed, or not yet."""
        self._restarted_at = 0.0
        """The time of the last restart, by a monotonic clock."""

    @property
    def needs_restart(self) -> bool:
        """Whether there is no process, and a restart is due."""
        return self.started and self._process.lost

    def begin(self) -> None:
        """Start the plugin, or inspect it if it was started before.

        Raises UnsupportedEngineError, CannotStartError if the engine refuses the plugin; ConfigurationError if the
        kubelet's engine does; Stopped.
        """
        if self.started:
            self.update()
            return
        decide.refuse_without_nri(self._node)
        try:
            self.status = self._start()
        except OSError as error:
            raise CannotStartError(f"the NRI plugin cannot start: {error.strerror or error}") from error
        if not self.status.connected:
            self._process.close()
            if self.status.unsupported:
                raise UnsupportedEngineError(
                    self.status.reason, hint="nothing was changed; update the engine, or run without the NRI plugin"
                )
            raise CannotStartError(
                f"the NRI plugin cannot start: {self.status.reason}",
                path=self._settings.socket,
                hint="nothing was changed; see that NRI is on in the engine, and name its socket with --nri-socket",
            )
        self.started = True

    def update(self) -> None:
        """Update the plugin's status; restart a process that has ended. Raises Stopped."""
        while packet := self._process.receive_pending():
            self.status = plugin_protocol.parse_packet(packet)
        if self.needs_restart:
            self._restart()

    def settle(self) -> bool:
        """Make later reports of the process wake the idle process; return whether there was no new report until now.

        The channel stays open in the idle process.
        """
        signals.block_child_signal()
        before = self.status
        self.update()
        self._process.keep()
        if self.status == before:
            return True
        signals.unblock_child_signal()
        return False

    def stop(self) -> None:
        """End the process, as the run ends."""
        self._process.close()

    def save(self) -> PluginState | None:
        """Return what `restore` takes, None where the plugin is not served yet."""
        return PluginState(self._process.saved, self._restarted_at, self.status) if self.started else None

    def restore(self, saved: PluginState) -> None:
        """Take up the plugin's process again, if its channel is still open."""
        self.started = True
        if saved.process is not None:
            self._process.restore(saved.process)
        self._restarted_at = saved.started
        self.status = saved.status

    def _restart(self) -> None:
        """Restart the process, unless that was just done: then `needs_restart` defers it. Raises Stopped."""
        self._process.close()
        now = self._clock()
        if self._restarted_at <= now < self._restarted_at + _AGAIN_SECONDS:
            self.status = PluginStatus(reason="its process ended again, right after it was started")
            return
        self._restarted_at = now
        try:
            self.status = self._start()
        except OSError as error:
            reason = error.strerror or str(error)
            self.status = PluginStatus(reason=reason)
            log.get().warning("The NRI plugin is served no more", key="nri-unserved", reason=reason)
            return
        log.get().warning(
            "The NRI plugin is served again, by a new process", key="nri-served-again", pid=self._process.pid
        )

    def _start(self) -> PluginStatus:
        """Start the process, and return the status after its first attempt. Raises OSError, Stopped."""
        self._process.end_left_over()

        def command(channel: int) -> list[str]:
            return interpreter.calling(FUNCTION, _NAME, str(channel), plugin_protocol.pack_settings(self._settings))

        packet = self._process.start(command, (), _BEGIN_SECONDS)
        if not packet:
            raise OSError(_UNKNOWN)
        return plugin_protocol.parse_packet(packet)
