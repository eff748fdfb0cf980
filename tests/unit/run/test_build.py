"""What parts a run is built of, and what follows from its settings."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from toolkit_installer.kubernetes.wanted import DaemonSetQuery
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.run import build
from toolkit_installer.run.build import _choose_driver_wait
from toolkit_installer.run.converge import MissingDriver
from toolkit_installer.settings import (
    Cleanup,
    ClusterSettings,
    NriSettings,
    OnDrift,
    ReportSettings,
    Settings,
    WithoutGpu,
)
from toolkit_installer.waiting.plugin import PluginWatch


@pytest.mark.parametrize(
    "settings, chosen",
    [
        (Settings(), MissingDriver.END),
        (Settings(wait_for_driver=True), MissingDriver.IDLE),
        (Settings(wait_for_driver=True, daemon=False), MissingDriver.BLOCK),
        (Settings(without_gpu=WithoutGpu.IDLE), MissingDriver.IDLE_UNLESS_INSTALLED),
        (Settings(without_gpu=WithoutGpu.IDLE, daemon=False), MissingDriver.END),
    ],
)
def test_what_a_run_does_without_a_driver_follows_from_its_settings(settings: Settings, chosen: MissingDriver) -> None:
    assert _choose_driver_wait(settings) is chosen


REPORTS = ReportSettings("gpu-node-1", "::1")
CLUSTER = ClusterSettings("toolkit-installer", "gpu-node-1", "::1")


def test_without_a_report_a_cluster_or_a_plugin_none_is_built(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    reports = build._build_reports(Settings(), node)
    assert (reports.cluster, reports.metrics) == (None, None)
    assert build._build_plugin(Settings(), node) is None
    assert build._build_query(Settings()) is None


def test_what_the_settings_ask_for_is_built(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    assert build._build_reports(Settings(reports=REPORTS), node).cluster is not None
    assert build._build_reports(Settings(metrics_textfile="/m.prom"), node).metrics is not None
    assert isinstance(build._build_query(Settings(cluster=CLUSTER)), DaemonSetQuery)
    plugin = build._build_plugin(Settings(nri=NriSettings(("gpu-operator",))), node)
    assert isinstance(plugin, PluginWatch)


class Held:
    """A PID file that is locked until this is closed."""

    def __init__(self, node: Node) -> None:
        self.pid_file = PidFile.acquire(node.files, "/run.pid")

    def close(self) -> None:
        self.pid_file.release()


@pytest.mark.parametrize(
    "settings, never, daemon",
    [
        (Settings(), False, True),
        (Settings(cleanup=Cleanup.NEVER), True, True),
        (Settings(daemon=False), False, False),
    ],
)
def test_a_run_cleans_up_as_its_settings_say(tmp_path: Path, settings: Settings, *, never: bool, daemon: bool) -> None:
    node = Node(str(tmp_path))
    with contextlib.closing(Held(node)) as held:
        made = build.build_instance(settings, node, held.pid_file)
        assert made.store.folder == f"{settings.toolkit.install_dir}/.toolkit-installer"
        assert (made._cleanup._never, made._cleanup._daemon) == (never, daemon)


@pytest.mark.parametrize("on_drift", list(OnDrift))
def test_a_run_repairs_drift_only_if_it_is_to(tmp_path: Path, on_drift: OnDrift) -> None:
    node = Node(str(tmp_path))
    with contextlib.closing(Held(node)) as held:
        made = build.build_instance(Settings(on_drift=on_drift), node, held.pid_file)
        assert made._drift.repairs is (on_drift is OnDrift.REPAIR)
