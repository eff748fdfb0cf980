"""Whom a run tells how its node stands, where somebody asked for it: the cluster, and whoever reads its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit_installer.errors import InstallerError
from toolkit_installer.kubernetes.node_state import ReportMemory
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.reporting.metrics_text import Counted
from toolkit_installer.settings import Settings
from toolkit_installer.waiting.readiness import Readiness

if TYPE_CHECKING:
    from toolkit_installer.reporting.cluster import NodeReport
    from toolkit_installer.reporting.metrics import MetricsReport


class Telling:
    """Both, or one of them, or none: then nothing is imported and nothing done."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self.report: NodeReport | None = None
        self.metrics: MetricsReport | None = None
        if settings.reports is not None:
            from toolkit_installer.reporting.cluster import NodeReport

            self.report = NodeReport(settings.reports, node)
        if settings.counts:
            from toolkit_installer.reporting.metrics import MetricsReport

            self.metrics = MetricsReport(settings, node)

    @property
    def owes(self) -> bool:
        """Whether something could not be told so far."""
        cluster = self.report is not None and self.report.owes
        return cluster or (self.metrics is not None and self.metrics.owes)

    def prepare(self) -> None:
        """Refuse what cannot work, before anything is written. Raises ConfigurationError, NodeError, Stopped."""
        if self.metrics is not None:
            self.metrics.prepare()

    def begin(self, receipt: Receipt | None) -> None:
        """Say that the run is at work. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.begin(receipt)
        if self.report is not None:
            self.report.begin(receipt)

    def hear(self, error: InstallerError) -> None:
        """Hear why the node could not be brought to where it should be: it is told with how the node stands now."""
        if self.metrics is not None:
            self.metrics.failed(error.exit_code.event)
        if self.report is not None:
            self.report.hear(error)

    def failed(self, error: InstallerError, readiness: Readiness, receipt: Receipt | None) -> None:
        """Tell why a run ends that could not bring the node to where it should be. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.failed(error.exit_code.event)
            self.metrics.tell(readiness, receipt)
        if self.report is not None:
            self.report.failed(error, receipt)

    def converged(self, *, whole: bool) -> None:
        """Note that a look at the node ended well; `whole`: the node is where it should be, and waits for nothing."""
        if self.metrics is not None:
            self.metrics.converged(whole=whole)

    def tell(self, readiness: Readiness, receipt: Receipt | None) -> None:
        """Tell how the node stands. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.tell(readiness, receipt)
        if self.report is not None:
            self.report.tell(readiness.state, receipt)

    def leave(self) -> None:
        """Do what is to be done before it is known whether the node is given back. Raises Stopped."""
        if self.metrics is not None:
            self.metrics.leave()
        if self.report is not None:
            self.report.leave()

    def withdraw(self) -> None:
        """Take back what the cluster was told. Raises Stopped."""
        if self.report is not None:
            self.report.withdraw()

    def watched(self) -> list[tuple[str, str, str]]:
        """Return what else the idle process is to watch; to be asked when the run becomes that."""
        return self.metrics.watched() if self.metrics is not None else []

    @property
    def report_memory(self) -> ReportMemory | None:
        """What the cluster was told, None where nothing is reported to it."""
        return self.report.saved if self.report is not None else None

    @property
    def counted(self) -> Counted | None:
        """What the metrics count, None without metrics."""
        return self.metrics.counted if self.metrics is not None else None

    @property
    def metrics_process(self) -> tuple[int, int] | None:
        """PID of the metrics server and the descriptor of its channel, None where there is no such process."""
        return self.metrics.process if self.metrics is not None else None

    def restore(
        self, report: ReportMemory | None, counted: Counted | None, metrics_process: tuple[int, int] | None
    ) -> None:
        """Restore what a run saved before it waited."""
        if self.report is not None and report is not None:
            self.report.restore(report)
        if self.metrics is not None:
            self.metrics.restore(counted, metrics_process)
