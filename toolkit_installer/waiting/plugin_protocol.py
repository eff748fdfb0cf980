"""Protocol between the run and the plugin's process: settings as a command-line word, status as packets. Pure.

The plugin's process does without the package that `Settings` is built with: that is a fifth of its memory. The run
saves the status over its sleep, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from toolkit_installer.settings import NriSettings, Settings


class PluginSettings(NamedTuple):
    """The settings of the plugin's process."""

    root: str
    """The path of the node's / as seen from here."""
    socket: str
    """The engine's NRI socket on the node."""
    name: str
    """The plugin's name in the engine; `place` is its index among the engine's plugins."""
    place: int
    namespaces: tuple[str, ...]
    """Namespaces whose pods may have management devices."""
    kinds: tuple[str, ...]
    """Kinds of management devices besides the built-in one."""
    lenient: bool
    """Whether containers elsewhere that request such devices start without them, instead of being refused."""
    log_format: str
    """Empty: chosen by the kind of the log's descriptor."""


def build_settings(settings: Settings, nri: NriSettings, root: str) -> PluginSettings:
    """Return the settings for the plugin's process.

    If nothing is refused, devices of the kind that --cdi-kind names are not checked, as in NVIDIA's installer.
    """
    kinds = (settings.toolkit.cdi.kind,) if nri.strict else ()
    log_format = str(settings.log_format or "")
    return PluginSettings(
        root, nri.socket, str(settings.program), nri.index, nri.namespaces, kinds, not nri.strict, log_format
    )


def pack_settings(settings: PluginSettings) -> str:
    """Return the settings as a command-line word."""
    return json.dumps(settings)


def parse_settings(word: str) -> PluginSettings:
    """Return the settings in a word of `pack_settings`."""
    root, socket, name, place, namespaces, kinds, lenient, log_format = json.loads(word)
    return PluginSettings(root, socket, name, place, tuple(namespaces), tuple(kinds), lenient, log_format)


class PluginStatus(NamedTuple):
    """Whether the engine asks the plugin about each container that it creates."""

    connected: bool = False
    engine: str = ""
    """The engine's name and version; empty: not received yet."""
    reason: str = "it is not connected yet"
    """Why the engine does not ask the plugin; empty if it does."""
    unsupported: bool = False
    """Whether the engine would drop the devices that the plugin names."""


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
    """Return the status in a packet; not connected if a process of another release sent the packet."""
    fields = json.loads(packet)
    if not isinstance(fields, list) or [type(field) for field in fields] != [bool, str, str, bool]:
        return PluginStatus(reason="its process is of another release")
    return PluginStatus(*fields)
