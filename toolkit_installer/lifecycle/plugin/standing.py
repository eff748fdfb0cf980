"""How the plugin stands, as its process tells the run, and as the run remembers it while it sleeps. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Standing(NamedTuple):
    """Whether the engine asks the plugin about each container that it creates."""

    connected: bool = False
    engine: str = ""
    """What the engine calls itself, with its version; empty: it has not said it yet."""
    reason: str = "it is not connected yet"
    """Why it does not ask; empty where it does."""
    unsupported: bool = False
    """It would leave out what the plugin names."""


def plain(standing: Standing) -> dict[str, Any]:
    """Return it as JSON has it."""
    return standing._asdict()


def packed(standing: Standing) -> bytes:
    """Return it as one packet."""
    return json.dumps(plain(standing)).encode()


def heard(packet: bytes) -> Standing:
    """Return what a packet says."""
    return understood(json.loads(packet))


def understood(said: Mapping[str, Any]) -> Standing:
    """Return what was remembered, as far as it is understood: another version of the program may have written it."""
    connected, engine, reason = said.get("connected"), said.get("engine"), said.get("reason")
    return Standing(
        connected is True,
        engine if isinstance(engine, str) else "",
        reason if isinstance(reason, str) else "",
        said.get("unsupported") is True,
    )


def remembered(said: Mapping[str, Any]) -> Standing:
    """Return how the plugin stood when the run fell asleep that remembers this of it."""
    found = said.get("standing")
    return understood(found if isinstance(found, Mapping) else {})
