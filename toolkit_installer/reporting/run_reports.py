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

    def __init__(self, cluster: NodeReport | None, metrics: MetricsReport | None) -> None:
        self.cluster = cluster
        self.metrics = metrics

    @property
    def has_pending_report(self) -> bool:
        """Whether a report is still pending."""
        cluster = self.cluster is not None and self.cluster.has_pending_report
        return cluster or (self.metrics is not None and self.metrics.needs_restart)

    def prepare(self) -> None:
        """Refuse settings that cannot work, before any change. Raises ConfigurationError, NodeError, Stopped."""
        if self.metrics is not None:
            self.metrics.prepare()

    def begin(self, receipt: Receipt | None) -> None:
        """Report that the run is at work. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.begin(receipt)
        if self.cluster is not None:
            self.cluster.begin(receipt)

    def record_failure(self, error: InstallerError) -> None:
        """Store why the run could not converge, for the next report of the node's status."""
        if self.metrics is not None:
            self.metrics.record_failure(error.exit_code.event)
        if self.cluster is not None:
            self.cluster.record_failure(error)

    def report_failure(self, error: InstallerError, readiness: Readiness, receipt: Receipt | None) -> None:
        """Report why a run ends that could not converge. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.record_failure(error.exit_code.event)
            self.metrics.report_status(readiness, receipt)
        if self.cluster is not None:
            self.cluster.report_failure(error, receipt)

    def record_success(self, *, complete: bool) -> None:
        """Record a successful inspection; `complete`: the node is complete, and waits for nothing."""
        if self.metrics is not None:
            self.metrics.record_success(complete=complete)

    def report_status(self, readiness: Readiness, receipt: Receipt | None) -> None:
        """Report the node's status. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.report_status(readiness, receipt)
        if self.cluster is not None:
            self.cluster.report_status(readiness.state, receipt)

    def prepare_shutdown(self) -> None:
        """Make the reports that precede the decision whether the node is reverted. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.prepare_shutdown()
        if self.cluster is not None:
            self.cluster.prepare_shutdown()

    def remove_reports(self) -> None:
        """Withdraw the reports to the cluster. Raises Stopped."""
        if self.cluster is not None:
            self.cluster.remove_reports()

    def watched(self) -> list[tuple[str, str, str]]:
        """Return further paths for the idle process to watch; to be called when the run becomes idle."""
        return self.metrics.watched() if self.metrics is not None else []

    @property
    def cluster_reports(self) -> SavedReports | None:
        """The reports that the cluster has, None where nothing is reported to it."""
        return self.cluster.saved if self.cluster is not None else None

    @property
    def counts(self) -> Counts | None:
        """What the metrics count, None without metrics."""
        return self.metrics.counts if self.metrics is not None else None

    @property
    def metrics_process(self) -> tuple[int, int] | None:
        """PID of the metrics server and the descriptor of its channel, None where there is no such process."""
        return self.metrics.server_process if self.metrics is not None else None

    def restore(
        self, reports: SavedReports | None, counts: Counts | None, metrics_process: tuple[int, int] | None
    ) -> None:
        """Restore what a run saved before it waited."""
        if self.cluster is not None and reports is not None:
            self.cluster.restore(reports)
        if self.metrics is not None:
            self.metrics.restore(counts, metrics_process)
