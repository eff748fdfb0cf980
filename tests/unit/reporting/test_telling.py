"""When whoever is told of a node hears that a look at it failed: at once where the run ends, else with what is so."""

from __future__ import annotations

from pathlib import Path

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.reporting.metrics import MetricsReport
from toolkit_installer.reporting.telling import RunReports
from toolkit_installer.waiting.readiness import Readiness


def test_metrics_are_not_written_of_a_look_that_failed_before_it_is_known_how_the_node_stands(tmp_path: Path) -> None:
    file = tmp_path / "it.prom"
    metrics = MetricsReport(Node.open(str(tmp_path), "/host"), str(file), None, checks_drift=True)
    telling, error = RunReports(None, metrics), ConfigurationError("the file is broken")
    telling.hear(error)
    assert not file.exists()
    telling.failed(error, Readiness(), None)
    assert 'code="bad-configuration"' in file.read_text()
