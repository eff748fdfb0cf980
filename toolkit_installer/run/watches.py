"""What a waiting run watches: the paths for the idle process, and the state that it saves over its sleep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit_installer import log
from toolkit_installer.events import get_fault_digests
from toolkit_installer.kubernetes.verdicts import CleanupState
from toolkit_installer.node import idling
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting.outcome import InspectionRecorder
from toolkit_installer.reporting.run_reports import RunReports
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.run.converge import Converger
from toolkit_installer.settings import Settings
from toolkit_installer.waiting.node_watch import DriftWatch, DriverWatch, GpuWatch
from toolkit_installer.waiting.readiness import Readiness

if TYPE_CHECKING:
    from toolkit_installer.kubernetes.wanted import DaemonSetQuery
    from toolkit_installer.waiting.plugin import PluginWatch


class Watches:
    """All watches of one run, with their common steps before and after a sleep."""

    def __init__(self, settings: Settings, node: Node, store: ReceiptStore, converger: Converger) -> None:
        self.question: DaemonSetQuery | None = None
        """The query whether the node is wanted, None if the settings name no cluster."""
        if settings.cluster is not None:
            from toolkit_installer.kubernetes.wanted import DaemonSetQuery  # noqa: PLC0415  # few runs query

            self.question = DaemonSetQuery(settings.cluster)
        self.plugin: PluginWatch | None = None
        """The NRI plugin's watch, None if no plugin is served."""
        if settings.nri is not None:
            from toolkit_installer.waiting.plugin import PluginWatch  # noqa: PLC0415  # few runs serve it

            self.plugin = PluginWatch(settings, settings.nri, node)
        self.telling = RunReports(settings, node)
        self.readiness = Readiness(settings, node)
        self.drift = DriftWatch(settings, node, store)
        self.driver = DriverWatch(settings, node)
        self.gpus = GpuWatch(settings, node)
        self.look = InspectionRecorder()
        self.tries = 0
        self.looked_at, self.failure = 0.0, ""
        """When the node was last brought to where it should be, and why that failed (`SavedState`)."""
        self._converger = converger
        self._gate = converger.gate
        self._command: tuple[str, ...] = ()
        """The command line of the program's first start; empty during that first start."""

    def is_held(self) -> bool:
        """Return whether the API server has yet to allow any change of the node."""
        return self.question is not None and self.question.cleanup_state.held

    @property
    def driver_away(self) -> bool:
        """Whether no driver was usable at the last inspection."""
        return self._converger.driver_away or self.driver.away

    def restore(self, saved: SavedState) -> None:
        """Restore what the process before the idle one saved."""
        if self.question is not None:
            self.question.cleanup_state = saved.standing
        self.driver.restore(saved.driver, saved.driver_seen, away=saved.driver_away)
        self._converger.driver_away = saved.driver_away and not self.driver.named
        self._command = saved.command
        self.looked_at, self.failure = saved.looked_at, saved.failure
        self.gpus.idle = saved.without_gpu
        self.look.restore(saved.look)
        self.telling.restore(saved.report, saved.counted, saved.metrics_process)
        self._gate.pending = saved.pending
        if self.plugin is not None and saved.plugin is not None:
            self.plugin.restore(saved.plugin)

    def settled(self) -> bool:
        """Return whether the run may sleep: the plugin reported nothing new, and its next report wakes the run.

        To be called last of all.
        """
        if self.plugin is None:
            return True
        self.plugin.keep()
        return self.plugin.settle()

    def watched(self, receipt: Receipt | None) -> list[tuple[str, str, str]]:
        """Return the paths that the idle process watches besides the managed files: event, path, identity."""
        return [
            *self.readiness.watched(receipt, self._converger.processes),
            *((idling.DRIVER, *each) for each in self.driver.watched),
            *((idling.GPU, *each) for each in self.gpus.watched),
            *((idling.BUSY, *each) for each in self._gate.watched),
            *self.telling.watched(),
        ]

    def later(self) -> tuple[bool, float | None]:
        """Return whether the run must poll for something, and in how many seconds at most that is due."""
        opens = self._gate.seconds()
        unknown = self.driver_away or (self.question is not None and not self.question.cleanup_state.wanted)
        unknown |= (
            self.readiness.stopped or self.telling.has_pending_report or (self.plugin is not None and self.plugin.owes)
        )
        unknown |= self._gate.pending is not None and opens is None
        return unknown, opens

    def save(self, *, later: bool) -> SavedState:
        """Return the state to restore after the wait; `later`: something is still unknown, and tries are counted."""
        return SavedState(
            driver=self.driver.watched,
            driver_away=self.driver_away,
            driver_seen=self.driver.seen,
            tries=self.tries if later else 0,
            without_gpu=self.gpus.idle,
            command=self._command,
            standing=self.question.cleanup_state if self.question is not None else CleanupState(),
            engine_stopped=self.readiness.stopped,
            looked_at=self.looked_at,
            failure=self.failure,
            said=log.get_line_digests(),
            faults=get_fault_digests(),
            differences=tuple(self.drift.differences.items()),
            report=self.telling.cluster_reports,
            counted=self.telling.counts,
            metrics_process=self.telling.metrics_process,
            pending=self._gate.pending,
            plugin=self.plugin.save() if self.plugin is not None else None,
            look=self.look.recorded,
        )
