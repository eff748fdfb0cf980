"""daemonset/ on a real cluster from the first apply to the deletion: its own rollouts, and its default runtime."""

from __future__ import annotations

import pytest

from tests.e2e.cluster.rollout import DAEMON_SET, SECOND_IMAGE, RealCluster
from tests.e2e.hosts.gpu_nodes import NOTHING, THE_GPU

pytestmark = pytest.mark.cluster


def test_a_rollout_goes_from_node_to_node_and_deletion_restores_every_byte(
    cluster: RealCluster,
) -> None:
    cluster.apply_as_it_is()
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=1)
    with cluster.workload():
        for name in cluster.nodes:
            assert cluster.seen(name) == THE_GPU

    cluster.apply_as_it_is()
    cluster.wait_until_available()
    cluster.command("set", "image", DAEMON_SET, f"*={SECOND_IMAGE}")
    cluster.wait_until_rolled_out_one_by_one()
    cluster.assert_configured(reloads=1)

    cluster.delete()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()


def test_the_gpu_becomes_and_ceases_to_be_for_pods_without_a_class(cluster: RealCluster) -> None:
    cluster.apply("overlays/default-runtime")
    cluster.wait_until_ready()
    with cluster.workload(runtime_class=None):
        for name in cluster.nodes:
            assert cluster.seen(name) == THE_GPU

    cluster.apply()
    cluster.wait_until_ready()
    with cluster.workload(runtime_class=None):
        for name in cluster.nodes:
            assert cluster.seen(name) == NOTHING
    cluster.assert_configured(reloads=2)
    # the pods that did this were started through the default runtime, ours, and would keep the toolkit's files
    cluster.command("rollout", "restart", DAEMON_SET)
    cluster.wait_until_ready()
    cluster.remove_installation()
    cluster.assert_as_before(reloads=3)
    cluster.assert_undisturbed()
