"""daemonset/base on a real cluster, one of whose nodes loses its power."""

from __future__ import annotations

import pytest

from tests.e2e.cluster.rollout import BYSTANDER, NAME, RealCluster, wait_until
from tests.e2e.hosts.gpu_nodes import THE_GPU
from tests.e2e.hosts.machine import HANDLERS

pytestmark = pytest.mark.cluster


def test_a_node_that_was_rebooted_is_found_configured_and_given_back(cluster: RealCluster) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    name, node = next(iter(cluster.nodes.items()))
    old = cluster.workloads(NAME)[name]
    node.reboot()
    wait_until(lambda: cluster.workloads(NAME).get(name, old) != old, "the rebooted node runs its pod again")
    cluster.wait_until_ready()
    cluster.wait_until_running(BYSTANDER)
    assert node.engine_starts() == 1, "it was started by the boot, and restarted by us"
    assert node.handlers() >= HANDLERS
    with cluster.workload(nodes=[name]):
        assert cluster.seen(name) == THE_GPU
    cluster.remove_installation()
    cluster.assert_as_before()
    assert node.engine_starts() == 2
