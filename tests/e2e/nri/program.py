"""Runs the NRI plugin until its stdin ends, and prints what happens, one JSON list a line.

    program.py SOCKET NAMESPACES KINDS [lenient] [ungated]

NAMESPACES and KINDS are separated by commas, as `Policy` has them. With `ungated` every engine is served.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from toolkit_installer.node.disk.root import Root
from toolkit_installer.nri import support
from toolkit_installer.nri.connection import Lost, Plugin
from toolkit_installer.nri.decision import Policy
from toolkit_installer.nri.serving import serve
from toolkit_installer.nri.session import Configured, Identity, Unsupported

_REFUSED = 3


def main() -> int:
    socket, namespaces, kinds, *words = sys.argv[1:]
    if "ungated" in words:
        support.refusal = _none
    policy = Policy(frozenset(namespaces.split(",")), frozenset(filter(None, kinds.split(","))), "lenient" in words)
    plugin = Plugin(Root("/"), socket, Identity("toolkit-installer", 10), policy)
    serve(plugin, _tell, sys.stdin.fileno())
    return 0


def _none(name: str, version: str) -> str | None:  # noqa: ARG001  # as the original is called
    return None


class _Known:
    serving = False


def _tell(event: Any) -> None:
    """Print what happened; end where the first try fails, or the engine is none that is served."""
    print(json.dumps([type(event).__name__, *event]), flush=True)  # noqa: T201  # it is read
    _Known.serving |= isinstance(event, Configured)
    if isinstance(event, Unsupported) or (isinstance(event, Lost) and not _Known.serving):
        sys.exit(_REFUSED)


if __name__ == "__main__":
    sys.exit(main())
