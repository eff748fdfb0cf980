"""The node's status as a run reports it: ready file, cluster and metrics, and the outcome that `refresh` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.errors import InstallerError
from toolkit_installer.kubernetes.node_state import SavedReports
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.reporting.metrics_text import Counts
from toolkit_installer.reporting.outcome import InspectionRecorder
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.settings import EngineName
from toolkit_installer.waiting.readiness import Readiness, ReadinessWatch

if TYPE_CHECKING:
    from toolkit_installer.reporting.cluster import NodeReport
    from toolkit_installer.reporting.metrics import MetricsReport
    from toolkit_installer.waiting.plugin import PluginWatch


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


class NodeStatusReporter:
    """Keeps the node's status up to date wherever it is reported, and serves the NRI plugin that is part of it."""

    def __init__(
        self, readiness: ReadinessWatch, reports: RunReports, inspection: InspectionRecorder, plugin: PluginWatch | None
    ) -> None:
        """`plugin`: None if no NRI plugin is served."""
        self.readiness = readiness
        self.reports = reports
        self.inspection = inspection
        self.plugin = plugin

    def begin(self, receipt: Receipt | None) -> None:
        """Start the plugin, and report that the run is at work. Raises ConfigurationError, NodeError, Stopped."""
        if self.plugin is not None:
            self.plugin.begin()
        if receipt is None:
            self.readiness.ready_file.clear()  # left from when the node had no GPU
        self.reports.begin(receipt)

    def record_failure(self, error: InstallerError) -> None:
        """Store why the run could not converge, for the next report of the status."""
        self.inspection.fail(error)
        self.reports.record_failure(error)

    def update_plugin(self) -> None:
        """Update the status of an NRI plugin that is served. Raises Stopped."""
        if self.plugin is not None:
            self.plugin.update()
            self.readiness.set_plugin(self.plugin.status if self.plugin.started else None)

    def update(self, receipt: Receipt | None, *, driver_missing: bool, pending: Pending | None) -> None:
        """Query the engines, and report the node's status. Raises Stopped, NodeError."""

        def report() -> None:
            self.reports.report_status(self.readiness.current, receipt)

        self.readiness.update(receipt, driver_missing=driver_missing, pending=pending, report=report)
        report()

    def update_without_gpu(self, receipt: Receipt | None) -> None:
        """Report a node without a GPU, on which nothing is installed. Raises Stopped, NodeError."""
        self.readiness.update_without_gpu()
        self.reports.report_status(self.readiness.current, receipt)

    def stop(self) -> None:
        """Stop the plugin."""
        if self.plugin is not None:
            self.plugin.stop()

    @property
    def must_poll(self) -> bool:
        """Whether the run must poll: an engine is stopped or hangs, a report is pending, or the plugin is down."""
        plugin_down = self.plugin is not None and self.plugin.needs_restart
        return self.readiness.must_poll or self.reports.has_pending_report or plugin_down

    def list_watched_paths(
        self, receipt: Receipt | None, processes: Mapping[EngineName, Process | None]
    ) -> list[tuple[str, str, str]]:
        """Return the paths that the idle process watches for the status: event, path, identity."""
        return [*self.readiness.list_watched_paths(receipt, processes), *self.reports.watched()]

    def settle(self) -> bool:
        """Return whether the run may sleep: the plugin reported nothing new, and its next report wakes the run."""
        return self.plugin is None or self.plugin.settle()

    def save(self, state: SavedState) -> SavedState:
        """Return the state with what `restore` takes."""
        return msgspec.structs.replace(
            state,
            engine_stopped=self.readiness.must_poll,
            report=self.reports.cluster_reports,
            counts=self.reports.counts,
            metrics_process=self.reports.metrics_process,
            plugin=self.plugin.save() if self.plugin is not None else None,
            inspection=self.inspection.recorded,
        )

    def restore(self, saved: SavedState, *, engine_changed: bool) -> None:
        """Restore what the process before the idle one saved; `engine_changed`: an engine's change woke the run."""
        self.readiness.restore(polled=saved.engine_stopped, engine_changed=engine_changed)
        self.inspection.restore(saved.inspection)
        self.reports.restore(saved.report, saved.counts, saved.metrics_process)
        if self.plugin is not None and saved.plugin is not None:
            self.plugin.restore(saved.plugin)
