"""Keeps a file of metrics, for node-exporter's textfile collector, as the node stands."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.lifecycle import counting, exposition
from toolkit_installer.lifecycle.counting import Counted
from toolkit_installer.lifecycle.exposition import Metrics
from toolkit_installer.lifecycle.readiness import Readiness
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import drift
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.settings import OnDrift

_MODE = 0o644
_ENDING = ".prom"
"""What the textfile collector reads; it leaves all other files alone."""


class MetricsFile:
    """The file at `path` in the installer's own mount namespace."""

    def __init__(self, path: str, node: Node, on_drift: OnDrift) -> None:
        self._path = path
        self._node = node
        self._looks_for_drift = on_drift is not OnDrift.IGNORE
        self._files = Files(Root("/"), node.calls)
        self._written = ""
        self._counted = Counted()
        log.overhear(self._overheard)

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

    def write(self, readiness: Readiness, receipt: Receipt | None, at: float) -> None:
        """Write how the node stands, where that has changed; a failure is said, and nothing else follows from it.

        `at` is when the node was last brought to where it should be, in seconds since 1970.
        """
        try:
            content = exposition.text(self._metrics(readiness, receipt, at))
            if content == self._written and os.path.exists(self._path):
                return
            self._files.overwrite(self._place(), content.encode(), own_metadata(_MODE))
        except InstallerError as error:
            log.get().warning(
                "The metrics file cannot be written", key="metrics-unwritten", file=self._path, reason=str(error)
            )
            return
        self._written = content

    def _metrics(self, readiness: Readiness, receipt: Receipt | None, at: float) -> Metrics:
        engines = receipt.engines if receipt is not None else ()
        return Metrics(
            ready=readiness.state.ready,
            served={str(each.name): str(each.name) not in readiness.unserved for each in engines},
            reloads={(name, why): count for name, why, count in self._counted.reloads},
            away=dict(self._counted.away),
            rollbacks=self._counted.rollbacks,
            drifted=tuple(drift.drifted(self._node, receipt)) if self._looks_for_drift else (),
            result=self._counted.result,
            converged_at=float(int(at)),
            payload=(receipt.release or "") if receipt is not None else "",
            driver_usable=not readiness.driver_away,
            damaged=readiness.damaged,
        )

    def remembered(self) -> dict[str, Any]:
        """Return what was counted, as JSON has it."""
        return counting.plain(self._counted)

    def recall(self, said: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self._counted = counting.understood(said)

    def ended(self, code: str) -> None:
        """Note with which exit code's name the last look ended."""
        self._counted = counting.ended(self._counted, code)

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

    def _overheard(self, line: Mapping[str, Any]) -> None:
        self._counted = counting.heard(self._counted, line, time.monotonic())
