"""Asks CRI-O for the configuration that it runs with, over plain HTTP on its CRI socket (what `crio status` does)."""

from __future__ import annotations

import http.client
import socket

from toolkit_installer.engines.common import asking
from toolkit_installer.engines.common.asking import NoAnswerError
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.signals import interruptible, limited
from toolkit_installer.node.sockets import reachable

_LIMIT = 16 << 20
"""Bytes of an answer."""


def config(root: Root, path: str, seconds: float) -> bytes:
    """Return the answer of `GET /config` on the node's socket: TOML. Raises NoAnswerError, Stopped."""
    asking.place_of(root, path)
    try:
        with reachable(root, path) as name, interruptible(), limited(seconds):
            connection = _Connection(name, seconds)
            try:
                connection.request("GET", "/config")
                answer = connection.getresponse()
                body = answer.read(_LIMIT + 1)
            finally:
                connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"no configuration: {str(error) or type(error).__name__}", path=path) from error
    if len(body) > _LIMIT:  # a part of it would be taken for the whole
        raise NoAnswerError(f"its configuration is larger than {_LIMIT >> 20} MiB", path=path)
    if answer.status != http.HTTPStatus.OK:
        raise NoAnswerError(f"no configuration: {answer.status} {answer.reason}", path=path)
    return body


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._name = name

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._name)
