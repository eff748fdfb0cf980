"""Keeps a file of metrics for node-exporter's textfile collector."""

from __future__ import annotations

import os
import stat

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.root import Root, attempt
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.node.owners import refuse_if_others_write

_MODE = 0o644
_ENDING = ".prom"
"""What the textfile collector reads; it leaves all other files alone."""


class Textfile:
    """The file at `path` in the installer's own mount namespace."""

    def __init__(self, path: str, calls: SystemCalls) -> None:
        self._path = path
        self._files = Files(Root("/"), calls)

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
        place = self._place()
        # what no write would do later is said before the first change of the node
        with attempt("look at its folder", place), self._files.root.parent(place) as (open_folder, _):
            refuse_if_others_write(open_folder, place)
        self._files.sweep(place)

    def write(self, content: str) -> None:
        """Write the metrics where the file says something else; a failure is said, and nothing else follows from it."""
        encoded = content.encode()
        try:
            place = self._place()
            if not self._holds(place, encoded):
                self._files.overwrite(place, encoded, own_metadata(_MODE))
        except InstallerError as error:
            log.get().warning(
                "The metrics file cannot be written", key="metrics-unwritten", file=self._path, reason=str(error)
            )

    def remove(self) -> None:
        """Remove the file: nobody keeps it up to date from here on. A failure is said."""
        try:
            if self._files.own_status(self._path) is not None:
                self._files.remove(self._place())
        except InstallerError as error:
            log.get().warning(
                "The metrics file stays, and is out of date", key="metrics-left", file=self._path, reason=error.reason
            )

    def _holds(self, place: str, content: bytes) -> bool:
        """Tell whether a file of ours with this content is there. Raises NodeError, ConfigurationError."""
        status = self._files.own_status(place)
        if status is None or not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != _MODE:
            return False
        found = self._files.read_file(place)
        return found is not None and found.content == content

    def _place(self) -> str:
        return self._files.in_folder(self._path)
