"""daemonset/base on a real cluster, one of whose nodes has no space left amid a rollout."""

from __future__ import annotations

import pytest

from tests.e2e.cluster.rollout import DAEMON_SET, RealCluster, wait_until
from tests.e2e.hosts.machine import HANDLERS

pytestmark = pytest.mark.cluster


def test_a_full_disk_amid_a_rollout_stops_it_there_and_every_node_serves_as_before(cluster: RealCluster) -> None:
    full = list(cluster.nodes)[1]
    with cluster.nodes[full].small_disk("/usr/local") as disk:
        cluster.note()
        cluster.apply()
        cluster.wait_until_ready()
        disk.fill()
        strategy = '{"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}}'
        cluster.command("patch", DAEMON_SET, "--patch", strategy)
        cluster.command("set", "env", DAEMON_SET, "NVIDIA_CONTAINER_RUNTIME_DEBUG=/var/log/nvidia.log")
        wait_until(lambda: cluster.restarts(full) > 0, f"the pod of {full} has failed")
        for name, node in cluster.nodes.items():
            assert node.handlers() == cluster.before[name].handlers | HANDLERS, name
        disk.make_room()
        cluster.wait_until_ready()
        cluster.assert_configured(reloads=1)
        cluster.remove_installation()
        cluster.assert_as_before(reloads=2)
        assert not list(disk.files())
    cluster.assert_undisturbed()
