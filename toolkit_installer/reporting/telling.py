"""The reports of a run, as far as the settings ask for them: to the cluster, and as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit_installer.errors import InstallerError
from toolkit_installer.kubernetes.node_state import SavedReports
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.reporting.metrics_text import Counts
from toolkit_installer.waiting.readiness import Readiness

if TYPE_CHECKING:
    from toolkit_installer.reporting.cluster import NodeReport
    from toolkit_installer.reporting.metrics import MetricsReport


class RunReports:
    """A sender of the node's status to the cluster and to metrics; without either it imports and does nothing."""

    def __init__(self, report: NodeReport | None, metrics: MetricsReport | None) -> None:
        self.report = report
        self.metrics = metrics

    @property
    def owes(self) -> bool:
        """Whether a report is still pending."""
        cluster = self.report is not None and self.report.owes
        return cluster or (self.metrics is not None and self.metrics.owes)

    def prepare(self) -> None:
        """Refuse settings that cannot work, before any change. Raises ConfigurationError, NodeError, Stopped."""
        if self.metrics is not None:
            self.metrics.prepare()

    def begin(self, receipt: Receipt | None) -> None:
        """Report that the run is at work. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.begin(receipt)
        if self.report is not None:
            self.report.begin(receipt)

    def hear(self, error: InstallerError) -> None:
        """Store why the run could not converge, for the next report of the node's status."""
        if self.metrics is not None:
            self.metrics.failed(error.exit_code.event)
        if self.report is not None:
            self.report.hear(error)

    def failed(self, error: InstallerError, readiness: Readiness, receipt: Receipt | None) -> None:
        """Report why a run ends that could not converge. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.failed(error.exit_code.event)
            self.metrics.tell(readiness, receipt)
        if self.report is not None:
            self.report.failed(error, receipt)

    def converged(self, *, whole: bool) -> None:
        """Record a successful inspection; `whole`: the node is complete, and waits for nothing."""
        if self.metrics is not None:
            self.metrics.converged(whole=whole)

    def tell(self, readiness: Readiness, receipt: Receipt | None) -> None:
        """Report the node's status. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.tell(readiness, receipt)
        if self.report is not None:
            self.report.tell(readiness.state, receipt)

    def leave(self) -> None:
        """Make the reports that precede the decision whether the node is reverted. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.leave()
        if self.report is not None:
            self.report.leave()

    def withdraw(self) -> None:
        """Withdraw the reports to the cluster. Raises Stopped."""
        if self.report is not None:
            self.report.withdraw()

    def watched(self) -> list[tuple[str, str, str]]:
        """Return further paths for the idle process to watch; to be called when the run becomes idle."""
        return self.metrics.watched() if self.metrics is not None else []

    @property
    def report_memory(self) -> SavedReports | None:
        """What the cluster was told, None where nothing is reported to it."""
        return self.report.saved if self.report is not None else None

    @property
    def counted(self) -> Counts | None:
        """What the metrics count, None without metrics."""
        return self.metrics.counted if self.metrics is not None else None

    @property
    def metrics_process(self) -> tuple[int, int] | None:
        """PID of the metrics server and the descriptor of its channel, None where there is no such process."""
        return self.metrics.process if self.metrics is not None else None

    def restore(
        self, report: SavedReports | None, counted: Counts | None, metrics_process: tuple[int, int] | None
    ) -> None:
        """Restore what a run saved before it waited."""
        if self.report is not None and report is not None:
            self.report.restore(report)
        if self.metrics is not None:
            self.metrics.restore(counted, metrics_process)
