"""Keeps a file of metrics for node-exporter's textfile collector."""

from __future__ import annotations

import os

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.disk.writing import own_metadata

_MODE = 0o644
_ENDING = ".prom"
"""What the textfile collector reads; it leaves all other files alone."""


class Textfile:
    """The file at `path` in the installer's own mount namespace."""

    def __init__(self, path: str, calls: SystemCalls) -> None:
        self._path = path
        self._files = Files(Root("/"), calls)
        self._written = ""

    def prepare(self) -> None:
        """Refuse a place that could not be written to, before anything is. Raises ConfigurationError, NodeError."""
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise ConfigurationError(
                "the folder of the metrics file does not exist", path=folder, hint="mount it, or choose another one"
            )
        if not self._path.endswith(_ENDING):
            raise ConfigurationError(
                "node-exporter reads no file of this name", path=self._path, hint=f"let it end with {_ENDING}"
            )
        self._files.sweep(self._place())

    def write(self, content: str) -> None:
        """Write the metrics where they have changed; a failure is said, and nothing else follows from it."""
        if content == self._written and os.path.exists(self._path):
            return
        try:
            self._files.overwrite(self._place(), content.encode(), own_metadata(_MODE))
        except InstallerError as error:
            log.get().warning(
                "The metrics file cannot be written", key="metrics-unwritten", file=self._path, reason=str(error)
            )
            return
        self._written = content

    def remove(self) -> None:
        """Remove the file: nobody keeps it up to date from here on. A failure is said."""
        try:
            if self._files.own_status(self._path) is not None:
                self._files.remove(self._place())
        except InstallerError as error:
            log.get().warning(
                "The metrics file stays, and is out of date", key="metrics-left", file=self._path, reason=error.reason
            )

    def _place(self) -> str:
        return self._files.in_folder(self._path)
