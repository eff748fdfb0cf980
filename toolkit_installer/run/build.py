"""Builds a run from its settings: the only place where they are taken apart for its parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from toolkit_installer.applying.reload_gate import ReloadGate
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning.prepare import prepare
from toolkit_installer.receipt import schema
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting.outcome import InspectionRecorder
from toolkit_installer.run.converge import Converger, MissingDriver, RunContext
from toolkit_installer.run.instance import Instance, RunCleanup, revert_installation
from toolkit_installer.run.node_status import NodeStatusReporter, RunReports
from toolkit_installer.settings import Cleanup, OnDrift, Settings, WithoutGpu
from toolkit_installer.waiting.node_watch import DriftWatch, DriverWatch, GpuWatch
from toolkit_installer.waiting.readiness import ReadinessWatch

if TYPE_CHECKING:
    from toolkit_installer.kubernetes.wanted import DaemonSetQuery
    from toolkit_installer.waiting.plugin import PluginWatch


def build_instance(settings: Settings, node: Node, pid_file: PidFile) -> Instance:
    """Build the run that these settings describe."""
    store = ReceiptStore(node, settings.toolkit.install_dir)
    context = RunContext(node, store, pid_file, SignalCollector(), settings.toolkit.install_dir)
    plan_change = partial(prepare, settings=settings, node=node, store=store)
    driver = DriverWatch(node, settings.toolkit)
    converger = Converger(
        context,
        plan_change,
        ReloadGate(settings.reload_when, node),
        driver,
        GpuWatch(node, settings.toolkit, may_idle=settings.without_gpu is WithoutGpu.IDLE),
        _choose_driver_wait(settings),
        partial(_wait_for_driver, settings, node),
    )
    drift = DriftWatch(node, f"{store.folder}/{schema.FILE}", settings.on_drift, settings.toolkit, plan_change)
    readiness = ReadinessWatch(
        node,
        settings.toolkit,
        settings.ready_file,
        settings.reload_timeout,
        checks_toolkit=settings.on_drift is not OnDrift.IGNORE,
        reports=settings.reports is not None or settings.counts,
    )
    reports, plugin = _build_reports(settings, node), _build_plugin(settings, node)
    status = NodeStatusReporter(readiness, reports, InspectionRecorder(), plugin)
    query = _build_query(settings)
    cleanup = RunCleanup(
        context,
        status,
        query,
        partial(revert_installation, settings, context),
        never=settings.cleanup is Cleanup.NEVER,
        daemon=settings.daemon,
    )
    return Instance(context, converger, drift, status, query, cleanup, daemon=settings.daemon)


def _build_reports(settings: Settings, node: Node) -> RunReports:
    """Build the reports that the settings ask for; without any, the modules are not imported."""
    cluster = metrics = None
    if settings.reports is not None:
        from toolkit_installer.reporting.cluster import NodeReport

        cluster = NodeReport(settings.reports, node)
    if settings.counts:
        from toolkit_installer.reporting.metrics import MetricsReport

        metrics = MetricsReport(
            node,
            settings.metrics_textfile,
            settings.metrics_address,
            checks_drift=settings.on_drift is not OnDrift.IGNORE,
        )
    return RunReports(cluster, metrics)


def _build_plugin(settings: Settings, node: Node) -> PluginWatch | None:
    """Build the watch of the NRI plugin, None if none is to be served."""
    if settings.nri is None:
        return None
    from toolkit_installer.waiting import plugin, plugin_protocol
    from toolkit_installer.waiting.child_process import ChildProcess

    plugin_settings = plugin_protocol.build_settings(settings, settings.nri, node.root.folder)
    return plugin.PluginWatch(node, plugin_settings, ChildProcess(plugin.FUNCTION))


def _build_query(settings: Settings) -> DaemonSetQuery | None:
    """Build the query whether the node is wanted, None if the settings name no cluster."""
    if settings.cluster is None:
        return None
    from toolkit_installer.kubernetes.wanted import DaemonSetQuery

    return DaemonSetQuery(settings.cluster)


def _choose_driver_wait(settings: Settings) -> MissingDriver:
    """Return what the run does while it needs a driver and none is usable. Pure."""
    if settings.wait_for_driver:
        return MissingDriver.IDLE if settings.daemon else MissingDriver.BLOCK
    if settings.daemon and settings.without_gpu is WithoutGpu.IDLE:
        return MissingDriver.IDLE_UNLESS_INSTALLED
    return MissingDriver.END


def _wait_for_driver(settings: Settings, node: Node) -> None:
    """Return once a driver is usable. Raises Stopped."""
    from toolkit_installer.driver import waiting

    waiting.wait_for_driver(node, settings, None)
