"""What comes before each question on an engine's socket: it has to be there, and not a stranger's."""

from __future__ import annotations

import os

from toolkit_installer.errors import InstallerError
from toolkit_installer.node.disk.root import NodeError, Root
from toolkit_installer.node.sockets import StrangerError, refuse_strangers


class NoAnswerError(InstallerError):
    """An engine did not answer. The text is its own, or the connection's."""


def place_of(root: Root, path: str) -> str:
    """Return where the node's socket is that may be asked. Raises NoAnswerError."""
    try:
        place = root.outside(root.canonical(path))
        if os.path.lexists(place):
            refuse_strangers(root, path)
            return place
    except (NodeError, StrangerError) as error:
        raise NoAnswerError(error.reason, path=path, hint=error.hint) from error
    raise NoAnswerError("there is no such socket", path=path)
