"""The NRI plugin's life within a run: started before the node is changed, watched during the wait, ended at the end."""

from __future__ import annotations

import time

from toolkit_installer import log
from toolkit_installer.engines.detect import decide
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import interpreter, signals
from toolkit_installer.node.node import Node
from toolkit_installer.settings import NriSettings, Settings
from toolkit_installer.waiting import plugin_protocol
from toolkit_installer.waiting.child_process import ChildProcess
from toolkit_installer.waiting.plugin_protocol import PluginState, PluginStatus

_FUNCTION = "toolkit_installer.waiting.plugin_process:main"
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

    def __init__(self, settings: Settings, nri: NriSettings, node: Node) -> None:
        self.standing = PluginStatus()
        """The plugin's status at the last inspection."""
        self._node = node
        self._socket = nri.socket
        self._asked = plugin_protocol.pack_settings(plugin_protocol.settings_of(settings, nri, node.root.folder))
        self._process = ChildProcess(_FUNCTION)
        self.begun = False
        """Whether the plugin is to be served by now: not on a node that must not be changed, or not yet."""
        self._started = 0.0
        """The time of the last restart, by a monotonic clock."""

    @property
    def owes(self) -> bool:
        """Whether there is no process, and a restart is due."""
        return self.begun and self._process.lost

    def begin(self) -> None:
        """Start the plugin, or inspect it if it was started before.

        Raises UnsupportedEngineError, CannotStartError if the engine refuses the plugin; ConfigurationError if the
        kubelet's engine does; Stopped.
        """
        if self.begun:
            self.look()
            return
        decide.refuse_without_nri(self._node)
        try:
            self.standing = self._start()
        except OSError as error:
            raise CannotStartError(f"the NRI plugin cannot start: {error.strerror or error}") from error
        if not self.standing.connected:
            self._process.close()
            if self.standing.unsupported:
                raise UnsupportedEngineError(
                    self.standing.reason, hint="nothing was changed; update the engine, or run without the NRI plugin"
                )
            raise CannotStartError(
                f"the NRI plugin cannot start: {self.standing.reason}",
                path=self._socket,
                hint="nothing was changed; see that NRI is on in the engine, and name its socket with --nri-socket",
            )
        self.begun = True

    def look(self) -> None:
        """Update the plugin's status; restart a process that has ended. Raises Stopped."""
        while packet := self._process.receive_pending():
            self.standing = plugin_protocol.parse_packet(packet)
        if self.owes:
            self._replace()

    def settle(self) -> bool:
        """Make later reports of the process wake the idle process; return whether there was no new report until now."""
        signals.block_child_signal()
        before = self.standing
        self.look()
        if self.standing == before:
            return True
        signals.unblock_child_signal()
        return False

    def end(self) -> None:
        """End the process, as the run ends."""
        self._process.close()

    def keep(self) -> None:
        """Keep the channel open in the idle process."""
        self._process.keep()

    def save(self) -> PluginState | None:
        """Return what `restore` takes, None where the plugin is not served yet."""
        return PluginState(self._process.saved, self._started, self.standing) if self.begun else None

    def restore(self, saved: PluginState) -> None:
        """Take up the plugin's process again, if its channel is still open."""
        self.begun = True
        if saved.process is not None:
            self._process.restore(saved.process)
        self._started = saved.started
        self.standing = saved.status

    def _replace(self) -> None:
        """Restart the process, unless that was just done: then `owes` defers it. Raises Stopped."""
        self._process.close()
        now = time.monotonic()
        if self._started <= now < self._started + _AGAIN_SECONDS:
            self.standing = PluginStatus(reason="its process ended again, right after it was started")
            return
        self._started = now
        try:
            self.standing = self._start()
        except OSError as error:
            reason = error.strerror or str(error)
            self.standing = PluginStatus(reason=reason)
            log.get().warning("The NRI plugin is served no more", key="nri-unserved", reason=reason)
            return
        log.get().warning(
            "The NRI plugin is served again, by a new process", key="nri-served-again", pid=self._process.pid
        )

    def _start(self) -> PluginStatus:
        """Start the process, and return the status after its first attempt. Raises OSError, Stopped."""
        self._process.end_left_over()

        def command(channel: int) -> list[str]:
            return interpreter.calling(_FUNCTION, _NAME, str(channel), self._asked)

        said = self._process.start(command, (), _BEGIN_SECONDS)
        if not said:
            raise OSError(_UNKNOWN)
        return plugin_protocol.parse_packet(said)
