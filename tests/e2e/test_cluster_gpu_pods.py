"""daemonset/base is deleted from a real cluster while GPU pods run: they run on, with all that they need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.cluster.rollout import GPU, RealCluster
from tests.e2e.cluster.snapshot import changes
from tests.e2e.hosts.gpu_nodes import THE_GPU
from tests.e2e.hosts.machine import INSTALL_DIR

pytestmark = pytest.mark.cluster


def names(cluster: RealCluster, wanted: Callable[[str], bool]) -> list[str]:
    """Return the nodes whose engine's unit is one of those wanted."""
    return [name for name, node in cluster.nodes.items() if wanted(node.kind.unit)]


def test_on_containerd_and_docker_the_toolkit_stays_for_gpu_pods_until_uninstall(
    cluster: RealCluster,
) -> None:
    nodes = names(cluster, lambda unit: unit != "crio")
    cluster.apply()
    cluster.wait_until_ready()
    with cluster.workload(nodes=nodes):
        pods = cluster.workloads(GPU)
        for name in nodes:
            assert cluster.seen(name) == THE_GPU
        cluster.delete()
        for name, now in cluster.snapshots(nodes).items():
            assert now.handlers == cluster.before[name].handlers
            left = changes(cluster.before[name].files, now.files)
            assert left, f"nothing of the toolkit is left on {name}"
            assert all(f"/{path}".startswith(INSTALL_DIR) or path == "run/nvidia" for path in left), left
        assert cluster.workloads(GPU) == pods
    cluster.uninstall(nodes)
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()


def test_on_crio_the_node_stays_configured_for_running_gpu_pods_until_uninstall(
    cluster: RealCluster,
) -> None:
    nodes = names(cluster, lambda unit: unit == "crio")
    cluster.apply()
    cluster.wait_until_ready()
    with cluster.workload(nodes=nodes):
        pods = cluster.workloads(GPU)
        cluster.delete()
        cluster.assert_configured(*nodes, reloads=1)
        for name in nodes:
            assert cluster.seen(name) == THE_GPU
        assert cluster.workloads(GPU) == pods
    cluster.assert_configured(*nodes, reloads=1)
    cluster.uninstall(nodes)
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()
