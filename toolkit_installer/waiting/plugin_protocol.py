"""What the plugin's process is to know of what was asked for, as a word of its command line. Pure.

That process has no use for the package that `Settings` is made with: it is a fifth of its memory.

How the plugin stands, as its process tells the run, and as the run remembers it while it sleeps. Pure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from toolkit_installer.settings import NriSettings, Settings


class PluginSettings(NamedTuple):
    """All of it."""

    root: str
    """Where the node's / is seen from here."""
    socket: str
    """The engine's NRI socket on the node."""
    name: str
    """What the engine knows the plugin by, with its `place` among others."""
    place: int
    namespaces: tuple[str, ...]
    """Those whose pods may have management devices."""
    kinds: tuple[str, ...]
    """Kinds of management devices beside the one that is always one."""
    lenient: bool
    """What asks for such devices elsewhere starts without."""
    log_format: str
    """Empty: as suits whoever reads the log."""


def settings_of(settings: Settings, nri: NriSettings, root: str) -> PluginSettings:
    """Return what the process is to know.

    Where nothing is refused, the kind of devices is not looked at that --cdi-kind names, as the peer has it.
    """
    kinds = (settings.toolkit.cdi.kind,) if nri.strict else ()
    log_format = str(settings.log_format or "")
    return PluginSettings(
        root, nri.socket, str(settings.program), nri.index, nri.namespaces, kinds, not nri.strict, log_format
    )


def pack_settings(asked: PluginSettings) -> str:
    """Return it as a word."""
    return json.dumps(asked)


def parse_settings(word: str) -> PluginSettings:
    """Return what such a word says."""
    root, socket, name, place, namespaces, kinds, lenient, log_format = json.loads(word)
    return PluginSettings(root, socket, name, place, tuple(namespaces), tuple(kinds), lenient, log_format)


class PluginStatus(NamedTuple):
    """Whether the engine asks the plugin about each container that it creates."""

    connected: bool = False
    engine: str = ""
    """What the engine calls itself, with its version; empty: it has not said it yet."""
    reason: str = "it is not connected yet"
    """Why it does not ask; empty where it does."""
    unsupported: bool = False
    """It would leave out what the plugin names."""


class PluginState(NamedTuple):
    """What a run saves of the plugin while it waits."""

    process: tuple[int, int] | None
    """PID, and the descriptor of the channel."""
    started: float
    """When a process was last started anew, by a clock that never goes back; 0: none was."""
    status: PluginStatus


def pack_status(status: PluginStatus) -> bytes:
    """Return the status as one packet."""
    return json.dumps(status).encode()


def parse_packet(packet: bytes) -> PluginStatus:
    """Return the status in a packet."""
    return PluginStatus(*json.loads(packet))
