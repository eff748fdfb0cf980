"""daemonset/base is deleted from a real cluster whose API server then goes away: no node is left half-way."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import outages
from tests.e2e.cluster.rollout import DAEMON_SET, RealCluster
from tests.e2e.hosts.machine import HANDLERS

pytestmark = pytest.mark.cluster


def test_without_an_api_server_a_deletion_leaves_the_node_to_uninstall(
    cluster: RealCluster,
) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    with outages.outage_before_pods_end(cluster, lambda: cluster.command("delete", DAEMON_SET, "--wait=false")):
        outages.last()
    cluster.wait_until_no_pods()
    snapshots = cluster.snapshots()
    for name, now in snapshots.items():
        assert now.handlers >= HANDLERS, name
        assert outages.UNANSWERED in cluster.said(name)
    cluster.assert_configured(reloads=1)
    cluster.uninstall(snapshots)
    cluster.assert_as_before(reloads=2)
    cluster.delete()
    cluster.assert_undisturbed()
