"""What the plugin's process is to know of what was asked for, as a word of its command line. Pure.

That process has no use for the package that `Settings` is made with: it is a fifth of its memory.

How the plugin stands, as its process tells the run, and as the run remembers it while it sleeps. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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


def status_fields(standing: PluginStatus) -> dict[str, Any]:
    """Return it as JSON has it."""
    return standing._asdict()


def pack_status(standing: PluginStatus) -> bytes:
    """Return it as one packet."""
    return json.dumps(status_fields(standing)).encode()


def parse_packet(packet: bytes) -> PluginStatus:
    """Return what a packet says."""
    return parse_status(json.loads(packet))


def parse_status(said: Mapping[str, Any]) -> PluginStatus:
    """Return what was remembered, as far as it is understood: another version of the program may have written it."""
    connected, engine, reason = said.get("connected"), said.get("engine"), said.get("reason")
    return PluginStatus(
        connected is True,
        engine if isinstance(engine, str) else "",
        reason if isinstance(reason, str) else "",
        said.get("unsupported") is True,
    )


def saved_status(said: Mapping[str, Any]) -> PluginStatus:
    """Return how the plugin stood when the run fell asleep that remembers this of it."""
    found = said.get("standing")
    return parse_status(found if isinstance(found, Mapping) else {})
