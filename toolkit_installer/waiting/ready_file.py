"""The ready marker: a file of the installer's own that is there while the engines serve the handlers.

Beside it lies another one, from when the engines have served them for the first time until the run leaves. A pod's
startup probe looks at that: a driver that is away makes a node not ready, and is no reason to start the pod anew.
"""

from __future__ import annotations

import os

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.receipt.schema import EngineRecord, Receipt
from toolkit_installer.waiting.plugin_protocol import PluginStatus

STARTED = ".started"
"""What the name of the other file ends with."""
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
        for end in ("", STARTED):
            self._files.sweep(self._place(end))
            self._remove(end)

    def clear(self) -> None:
        """Remove the file, if it is there. Raises NodeError, ConfigurationError."""
        self._remove()

    def clear_before_cleanup(self) -> None:
        """Remove both files; a failure is said, and no reason to leave the node as it is."""
        try:
            self._remove()
            self._remove(STARTED)
        except InstallerError as error:
            log.get().error(
                "The ready file cannot be removed", key="ready-file-stays", file=error.path, reason=error.reason
            )

    def write(self, text: str, why: str = "the engines serve the handlers") -> None:
        """Write the file, unless it is there already, and say `why`. Raises NodeError, ConfigurationError."""
        self.start(text)
        if self._write(text):
            log.get().info("Wrote the ready file", key="ready", file=self.path, why=why)

    def start(self, text: str) -> None:
        """Write the file beside it that says that the run has done its work. Raises NodeError, ConfigurationError."""
        self._write(text, STARTED)

    def _write(self, text: str, end: str = "") -> bool:
        """Write one of the files, unless it is there already; tell whether it was not."""
        if self.path is None or self._files.own_status(self.path + end) is not None:
            return False
        self._files.overwrite(self._place(end), text.encode(), own_metadata(_MODE))
        return True

    def _remove(self, end: str = "") -> None:
        if self.path is not None and self._files.own_status(self.path + end) is not None:
            self._files.remove(self._place(end))

    def _place(self, end: str = "") -> str:
        assert self.path is not None  # noqa: S101  # asked for only where there is one
        return self._files.in_folder(self.path + end)


def described(receipt: Receipt, plugin: PluginStatus | None = None) -> str:
    """Return what the file says: a line for each engine, with its handlers, and one for the engine of the plugin."""
    engines = [" ".join([each.name, *_served(receipt, each)]) for each in receipt.asked()]
    served = [f"NRI plugin of {plugin.engine}"] if plugin is not None else []
    return "".join(f"{line}\n" for line in (*engines, *served))


def _served(receipt: Receipt, engine: EngineRecord) -> tuple[str, ...]:
    """Return the handlers of an engine, or the word for the other way to its containers."""
    return tuple(name for name, _ in engine.handlers) or (("cdi",) if receipt.reads_cdi(engine.name) else ())
