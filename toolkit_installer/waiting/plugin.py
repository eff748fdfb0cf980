"""The NRI plugin as the run sees it: begun before the node is changed, looked after while it waits, ended with it."""

from __future__ import annotations

import time

from toolkit_installer import log
from toolkit_installer.engines.detect import decide
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import interpreter, signals
from toolkit_installer.node.node import Node
from toolkit_installer.settings import NriSettings, Settings
from toolkit_installer.waiting import plugin_protocol
from toolkit_installer.waiting.child_process import Beside
from toolkit_installer.waiting.plugin_protocol import PluginState, PluginStatus

_FUNCTION = "toolkit_installer.waiting.plugin_process:main"
"""It is named here alone, and imported by nobody: what it is made of is for a process of its own."""
_NAME = "toolkit-installer-nri"
_BEGIN_SECONDS = 30.0
"""More than a process takes to begin on a busy node, and an engine that has hundreds of containers to tell of."""
_AGAIN_SECONDS = 10.0
"""A process that ends sooner than that after it was started anew is started again with the pauses of a longer wait."""
_UNKNOWN = "the process that is to serve it did not begin; where it ended, its reason stands above"


class UnsupportedEngineError(ConfigurationError):
    """The engine would leave out what the plugin names."""


class CannotStartError(ConfigurationError):
    """The plugin could not be registered."""


class PluginWatch:
    """Starts the plugin's process, hears how the plugin stands, and starts it again where it has ended."""

    def __init__(self, settings: Settings, nri: NriSettings, node: Node) -> None:
        self.standing = PluginStatus()
        """How the plugin stood when it was last looked at."""
        self._node = node
        self._socket = nri.socket
        self._asked = plugin_protocol.pack_settings(plugin_protocol.settings_of(settings, nri, node.root.folder))
        self._process = Beside(_FUNCTION)
        self.begun = False
        """Whether the plugin is to be served by now: not on a node that is left alone, or may not be changed yet."""
        self._started = 0.0
        """When a process was last started anew, by a clock that never goes back."""

    @property
    def owes(self) -> bool:
        """Whether there is no process, and it is to be tried again."""
        return self.begun and self._process.lost

    def begin(self) -> None:
        """Have the plugin served, unless it was begun: then look after it.

        Raises UnsupportedEngineError, CannotStartError where the engine does not take it; ConfigurationError where the
        kubelet's does not; Stopped.
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
        """Learn how the plugin stands; a process that has ended is replaced. Raises Stopped."""
        while packet := self._process.heard():
            self.standing = plugin_protocol.parse_packet(packet)
        if self.owes:
            self._replace()

    def settle(self) -> bool:
        """Have what the process says from now on wake the idle process; tell whether it has said nothing new by now."""
        signals.hold_child()
        before = self.standing
        self.look()
        if self.standing == before:
            return True
        signals.release_child()
        return False

    def end(self) -> None:
        """End it: the run leaves."""
        self._process.close()

    def keep(self) -> None:
        """Have the idle process keep the channel open."""
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
        """Start the process anew, unless it was just done: then `owes` has it done later. Raises Stopped."""
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
        """Start the process, and return how its first try went. Raises OSError, Stopped."""
        self._process.end_left_over()

        def command(channel: int) -> list[str]:
            return interpreter.calling(_FUNCTION, _NAME, str(channel), self._asked)

        said = self._process.start(command, (), _BEGIN_SECONDS)
        if not said:
            raise OSError(_UNKNOWN)
        return plugin_protocol.parse_packet(said)
