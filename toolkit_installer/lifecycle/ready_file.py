"""The ready marker: a file of the installer's own that is there while the engines serve the handlers."""

from __future__ import annotations

import os

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.receipt.schema import Receipt

_MODE = 0o644


class Marker:
    """The file at `path` in the installer's own mount namespace; with None there is none, and nothing is done."""

    def __init__(self, path: str | None, calls: SystemCalls) -> None:
        self.path = path
        self._files = Files(Root("/"), calls)

    def prepare(self) -> None:
        """Remove what an earlier run left. Raises ConfigurationError where there is no folder for the file."""
        if self.path is None:
            return
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise ConfigurationError(
                "the folder of the ready file does not exist", path=folder, hint="mount it, or choose another one"
            )
        self._files.sweep(self._place())
        self.clear()

    def clear(self) -> None:
        """Remove the file, if it is there. Raises NodeError, ConfigurationError."""
        if self.path is not None and self._files.own_status(self.path) is not None:
            self._files.remove(self._place())

    def clear_before_cleanup(self) -> None:
        """Remove the file; a failure is said, and no reason to leave the node as it is."""
        try:
            self.clear()
        except InstallerError as error:
            log.get().error(
                "The ready file cannot be removed", key="ready-file-stays", file=error.path, reason=error.reason
            )

    def write(self, text: str, why: str = "the engines serve the handlers") -> None:
        """Write the file, unless it is there already, and say `why`. Raises NodeError, ConfigurationError."""
        if self.path is not None and self._files.own_status(self.path) is None:
            self._files.overwrite(self._place(), text.encode(), own_metadata(_MODE))
            log.get().info("Wrote the ready file", key="ready", file=self.path, why=why)

    def _place(self) -> str:
        assert self.path is not None  # noqa: S101  # asked for only where there is one
        return self._files.in_folder(self.path)


def described(receipt: Receipt) -> str:
    """Return what the file says: a line for each engine, with its handlers."""
    return "".join(f"{' '.join([each.name, *(name for name, _ in each.handlers)])}\n" for each in receipt.engines)
