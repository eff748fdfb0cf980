"""daemonset/ on a real cluster: rollouts reload no engine that is configured, and other ways to start and to change."""

from __future__ import annotations

import pytest

from tests.e2e.gpu_nodes import NOTHING, THE_GPU
from tests.e2e.machine import HANDLERS
from tests.e2e.rollout import BYSTANDER, DAEMON_SET, NAME, RealCluster, copy_of_base, wait_until

pytestmark = pytest.mark.cluster


def test_one_daemonset_configures_every_node_no_rollout_reloads_an_engine_and_the_deletion_is_byte_exact(
    cluster: RealCluster,
) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=1)
    with cluster.workload():
        for name in cluster.nodes:
            assert cluster.seen(name) == THE_GPU

    cluster.apply()
    cluster.command("rollout", "restart", DAEMON_SET)
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=1)
    cluster.command("set", "env", DAEMON_SET, "RELOAD_TIMEOUT=61")
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=1)

    cluster.delete()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()


def test_the_gpu_becomes_and_ceases_to_be_for_pods_without_a_class(cluster: RealCluster) -> None:
    cluster.apply()
    cluster.wait_until_ready()
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
    cluster.assert_configured(reloads=3)
    # the pods that did this were started through the default runtime, ours, and would keep the toolkit's files
    cluster.command("rollout", "restart", DAEMON_SET)
    cluster.wait_until_ready()
    cluster.delete()
    cluster.assert_as_before(reloads=4)
    cluster.assert_undisturbed()


def test_of_two_daemonsets_by_mistake_the_first_has_the_nodes_and_the_second_changes_nothing(
    cluster: RealCluster,
) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    second = copy_of_base(namespace := "toolkit-installer-too")
    cluster.apply(second)

    def all_refused() -> bool:
        pods = cluster.plane.get(f"/api/v1/namespaces/{namespace}/pods")
        statuses = [each for pod in pods for each in pod["status"].get("containerStatuses", [])]
        return len(statuses) == len(cluster.nodes) and all(each["restartCount"] for each in statuses)

    wait_until(all_refused, "the second DaemonSet's pods have ended on every node")
    cluster.assert_configured(reloads=1)
    cluster.plane.kubectl("delete", "namespace", namespace, "--wait=false")
    wait_until(lambda: not cluster.plane.get(f"/api/v1/namespaces/{namespace}/pods"), "the second's pods are gone")
    cluster.wait_until_no_namespace(namespace)
    cluster.assert_configured(reloads=1)
    cluster.delete()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()


def test_a_kubelet_that_is_restarted_changes_nothing(cluster: RealCluster) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    pods = cluster.workloads(NAME)
    for name, node in cluster.nodes.items():
        node.host.run("systemctl", "restart", "kubelet")
        cluster.command("wait", "--for=condition=Ready", f"node/{name}", "--timeout=60s")
    cluster.wait_until_ready()
    assert cluster.workloads(NAME) == pods
    cluster.assert_configured(reloads=1)
    cluster.delete()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()


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
    with cluster.workload():
        assert cluster.seen(name) == THE_GPU
    cluster.delete()
    cluster.assert_as_before()
    assert node.engine_starts() == 2
