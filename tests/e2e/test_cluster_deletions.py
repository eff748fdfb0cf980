"""daemonset/base on a real cluster: however it is deleted, or ceases to want a node, the node is given back."""

from __future__ import annotations

import json

import pytest

from tests.e2e.rollout import BYSTANDER, DAEMON_SET, LABEL, NAMESPACE, TAINT, RealCluster

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("what", [DAEMON_SET, f"namespace/{NAMESPACE}"])
def test_the_nodes_are_given_back_whatever_of_it_is_deleted(cluster: RealCluster, what: str) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    cluster.command("delete", what, "--wait=false")
    cluster.wait_until_no_pods()
    cluster.assert_as_before(reloads=2)
    cluster.delete()
    cluster.assert_undisturbed()


def test_a_node_that_is_not_wanted_any_more_is_given_back_and_the_others_are_left_alone(cluster: RealCluster) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    first, second, *others = cluster.nodes
    cluster.command("taint", "node", first, f"{TAINT}=now:NoExecute")
    cluster.wait_until_no_pods([first])
    cluster.assert_as_before(first, reloads=2)
    cluster.assert_configured(second, *others, reloads=1)
    cluster.command("taint", "node", first, f"{TAINT}-")
    cluster.wait_until_ready()
    cluster.assert_configured(first, reloads=3)

    cluster.command("label", "node", first, *others, f"{LABEL}=yes")
    selector = json.dumps({"spec": {"template": {"spec": {"nodeSelector": {LABEL: "yes"}}}}})
    cluster.command("patch", DAEMON_SET, "--patch", selector)
    cluster.wait_until_no_pods([second])
    cluster.wait_until_ready([first, *others])
    cluster.assert_as_before(second, reloads=2)
    cluster.assert_configured(first, reloads=3)
    cluster.assert_configured(*others, reloads=1)
    cluster.delete()
    cluster.command("label", "node", first, *others, f"{LABEL}-")
    cluster.assert_as_before()
    cluster.wait_until_running(BYSTANDER)


def test_pods_that_are_deleted_by_force_are_replaced_on_nodes_that_serve_and_the_last_are_gone_without_a_trace(
    cluster: RealCluster,
) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    cluster.command("delete", "pods", "--all", "--force", "--grace-period=0")
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=None)
    cluster.delete()
    cluster.assert_as_before()
    cluster.assert_undisturbed()


def test_a_drained_node_keeps_the_toolkit_and_its_workloads_come_back(cluster: RealCluster) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    first = next(iter(cluster.nodes))
    cluster.command("drain", first, "--ignore-daemonsets", "--timeout=60s")
    cluster.command("uncordon", first)
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=1)
    cluster.delete()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()
