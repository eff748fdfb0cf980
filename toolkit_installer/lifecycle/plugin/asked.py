"""What the plugin's process is to know of what was asked for, as a word of its command line. Pure.

That process has no use for the package that `Settings` is made with: it is a fifth of its memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from toolkit_installer.settings import NriSettings, Settings


class Asked(NamedTuple):
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


def of(settings: Settings, nri: NriSettings, root: str) -> Asked:
    """Return what the process is to know.

    Where nothing is refused, the kind of devices is not looked at that --cdi-kind names, as the peer has it.
    """
    kinds = (settings.toolkit.cdi.kind,) if nri.strict else ()
    log_format = str(settings.log_format or "")
    return Asked(root, nri.socket, str(settings.program), nri.index, nri.namespaces, kinds, not nri.strict, log_format)


def packed(asked: Asked) -> str:
    """Return it as a word."""
    return json.dumps(asked)


def understood(word: str) -> Asked:
    """Return what such a word says."""
    root, socket, name, place, namespaces, kinds, lenient, log_format = json.loads(word)
    return Asked(root, socket, name, place, tuple(namespaces), tuple(kinds), lenient, log_format)
