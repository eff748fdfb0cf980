"""daemonset/base on a real cluster: however it is deleted, or ceases to want a node, the node is given back."""

from __future__ import annotations

import json

import pytest

from tests.e2e.cluster import account_tokens
from tests.e2e.cluster.rollout import BYSTANDER, DAEMON_SET, LABEL, NAME, NAMESPACE, TAINT, RealCluster
from tests.support import manifests

pytestmark = pytest.mark.cluster


def test_an_excluded_node_is_reverted_and_deleting_the_daemonset_reverts_the_others(
    cluster: RealCluster,
) -> None:
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
    cluster.command("delete", DAEMON_SET, "--wait=false")
    cluster.wait_until_no_pods()
    cluster.command("label", "node", first, *others, f"{LABEL}-")
    cluster.assert_as_before()
    cluster.delete()
    cluster.wait_until_running(BYSTANDER)


def test_force_deleted_pods_are_replaced_and_a_deleted_namespace_reverts_all_nodes(
    cluster: RealCluster,
) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    cluster.command("delete", "pods", "--all", "--force", "--grace-period=0")
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=None)
    cluster.command("delete", "namespace", NAMESPACE, "--wait=false")
    cluster.wait_until_no_pods()
    cluster.assert_as_before()
    cluster.delete()
    cluster.assert_undisturbed()


def test_nodes_are_configured_again_after_the_account_was_deleted_amid_a_rollout(
    cluster: RealCluster,
) -> None:
    cluster.apply()
    cluster.wait_until_ready()
    tokens = account_tokens.of_pods(cluster)
    cluster.command("delete", "serviceaccount", NAME)
    account_tokens.wait_until_refused(cluster, tokens)
    cluster.command("rollout", "restart", DAEMON_SET)
    cluster.wait_until_no_pods()
    cluster.assert_as_before(reloads=2)

    cluster.give(manifests.one(manifests.rendered("base"), "ServiceAccount"))
    # by itself the controller tries again after longer and longer waits; a change of the DaemonSet has it try at once
    cluster.command("rollout", "restart", DAEMON_SET)
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=3)
    cluster.remove_installation()
    cluster.assert_as_before(reloads=4)
    cluster.assert_undisturbed()
