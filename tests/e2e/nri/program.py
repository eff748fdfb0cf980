"""Runs the NRI plugin until its stdin ends, and prints what happens, one JSON list a line.

    program.py SOCKET NAMESPACES KINDS [lenient] [ungated]

NAMESPACES and KINDS are separated by commas, as `Policy` has them. With `ungated` every engine is served.
"""

from __future__ import annotations

import json
import sys

from toolkit_installer.node.root import Root
from toolkit_installer.nri import decision
from toolkit_installer.nri.connection import ConnectionLost, Plugin, serve
from toolkit_installer.nri.decision import Policy
from toolkit_installer.nri.session import Event, PluginConfigured, PluginIdentity, Unsupported

_REFUSED = 3


def main() -> int:
    socket, namespaces, kinds, *words = sys.argv[1:]
    if "ungated" in words:
        decision.find_engine_refusal = _none
    policy = Policy(frozenset(namespaces.split(",")), frozenset(filter(None, kinds.split(","))), "lenient" in words)
    plugin = Plugin(Root("/"), socket, PluginIdentity("toolkit-installer", 10), policy)
    serve(plugin, _Printer(), sys.stdin.fileno())
    return 0


def _none(name: str, version: str) -> str | None:  # noqa: ARG001  # as the original is called
    return None


class _Printer:
    """Prints what happens; ends where the first try fails, or the engine is none that is served."""

    def __init__(self) -> None:
        self._known = False

    def handle_event(self, event: Event | ConnectionLost) -> None:
        """Print it."""
        print(json.dumps([type(event).__name__, *event]), flush=True)  # noqa: T201  # it is read
        self._known |= isinstance(event, PluginConfigured)
        if isinstance(event, Unsupported) or (isinstance(event, ConnectionLost) and not self._known):
            sys.exit(_REFUSED)

    def patience(self) -> float | None:
        """Wait for the next event."""
        return None

    def due(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    sys.exit(main())
