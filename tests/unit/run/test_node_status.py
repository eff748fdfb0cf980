"""When whoever is told of a node hears that a look at it failed: at once where the run ends, else with what is so."""

from __future__ import annotations

from pathlib import Path

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.reporting.metrics import MetricsReport
from toolkit_installer.run.node_status import RunReports
from toolkit_installer.waiting.readiness import Readiness


def test_a_failed_inspection_writes_metrics_only_once_the_status_is_known(tmp_path: Path) -> None:
    file = tmp_path / "it.prom"
    metrics = MetricsReport(Node.open(str(tmp_path), "/host"), str(file), None, checks_drift=True)
    reports, error = RunReports(None, metrics), ConfigurationError("the file is broken")
    reports.record_failure(error)
    assert not file.exists()
    reports.report_failure(error, Readiness(), None)
    assert 'code="bad-configuration"' in file.read_text()
