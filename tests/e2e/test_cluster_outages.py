"""daemonset/base is deleted from a real cluster whose API server then goes away: no node is left half-way."""

from __future__ import annotations

import pytest

from tests.e2e.cluster import outages
from tests.e2e.cluster.rollout import DAEMON_SET, RealCluster
from tests.e2e.hosts.machine import HANDLERS

pytestmark = pytest.mark.cluster


def test_a_node_whose_pod_cannot_ask_amid_a_deletion_stays_configured_and_uninstall_gives_it_back(
    cluster: RealCluster,
) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    cluster.command("delete", DAEMON_SET, "--wait=false")
    outages.wait_until_all_pods_end(cluster)
    with outages.outage(cluster):
        outages.last()
    cluster.wait_until_no_pods()
    standings = cluster.standings()
    left = [name for name, now in standings.items() if now.handlers >= HANDLERS]
    assert left, "every pod was answered: the API server did not go away soon enough"
    for name in left:
        assert outages.UNANSWERED in cluster.said(name)
    cluster.assert_configured(*left, reloads=1)
    if answered := cluster.nodes.keys() - left:
        cluster.assert_as_before(*answered, reloads=2)
    cluster.uninstall(left)
    cluster.assert_as_before(reloads=2)
    cluster.delete()
    cluster.assert_undisturbed()
