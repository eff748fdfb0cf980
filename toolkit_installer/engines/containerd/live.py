"""What the running containerd says of itself over the CRI, and which of its handlers a distribution registered."""

from __future__ import annotations

from toolkit_installer.engines.api import EngineSilentError, Live
from toolkit_installer.engines.common.answering import EngineBrokenError, NoAnswerError
from toolkit_installer.engines.common.cri import client
from toolkit_installer.engines.containerd import root_file, templates
from toolkit_installer.engines.containerd.tables import executable, runtimes_in
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import read_as

_NO_CRI = "UNIMPLEMENTED"
"""What gRPC says of a service that a server does not have."""


def ask(node: Node, socket: str, seconds: float) -> Live:
    """Ask the CRI for its handlers. Raises EngineSilentError."""
    try:
        status = client.status(node.root, socket, seconds)
        process = sockets.speaker(node.root, socket, b"")
    except (NoAnswerError, sockets.StrangerError) as error:
        # containerd serves once its plugins are loaded: one that is missing then failed, or is switched off
        kind = EngineBrokenError if error.reason.startswith(_NO_CRI) else EngineSilentError
        raise kind(f"the CRI of containerd does not answer: {error.reason}", path=socket) from error
    table = status.config.get("containerd") or {}
    handlers = {name: executable(entry) for name, entry in (table.get("runtimes") or {}).items()}
    for name in status.handlers - handlers.keys() - {""}:
        handlers[name] = None
    return Live(status.version, handlers, table.get("defaultRuntimeName"), process)


def registered_by_itself(live: Live) -> frozenset[str]:
    """Return the handlers that a distribution registered on its own, because it found the toolkit when it started.

    One that runs something else than the distribution's file says is somebody else's by now.
    """
    process = live.process
    layout = root_file.behind(process) if process is not None else None
    if process is None or layout is None or layout.detects is None:
        return frozenset()
    try:
        # a template's block of ours is in what was made of it, and is none of the distribution's
        document = layout.document(templates.without_block(read_as(process, layout.source) or b""), "")
    except ConfigurationError:
        return frozenset()  # nothing is known of it then
    made = runtimes_in(document, layout.plugin)
    return frozenset(
        name
        for name in layout.detects.handlers & made.keys() & live.handlers.keys()
        if live.handlers[name] in (None, executable(made[name]))
    )
