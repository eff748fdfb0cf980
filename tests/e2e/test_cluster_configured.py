"""daemonset/base on a real cluster whose nodes are configured: whatever happens then, no engine is reloaded.

All tests share one installation. However one of them ends, every node has to be as the installation made it, byte for
byte, with its engine not restarted and its workloads not disturbed; and the deletion at the end is byte-exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import account_tokens, outages, record, tidying
from tests.e2e.cluster.objects import copy_of_base
from tests.e2e.cluster.rollout import DAEMON_SET, NAME, RealCluster, wait_until
from tests.e2e.cluster.snapshot import changes
from tests.support import manifests

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("configured")]


WANTED = "The DaemonSet wants this node"


class Installation:
    """The installation that the tests share, made anew where one of them did not leave it as it was."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster
        self.sound = False

    def make(self) -> None:
        tidying.tidy(self.cluster)
        self.cluster.note()
        self.cluster.apply()
        self.cluster.wait_until_ready()
        # A busy API server may answer too late, and is asked again. A run that was never told takes back what it did.
        told = self.cluster.said
        wait_until(lambda: all(WANTED in told(name) for name in self.cluster.nodes), "every pod was told so")
        self.cluster.assert_configured(reloads=1)
        self._files = {name: node.differences() for name, node in self.cluster.nodes.items()}

    def check(self) -> None:
        self.cluster.wait_until_ready()
        self.cluster.assert_configured(reloads=1)
        for name, node in self.cluster.nodes.items():
            assert not (changed := changes(self._files[name], node.differences())), f"{name}: {changed}"
        self.cluster.assert_undisturbed()


@pytest.fixture(scope="module")
def installation(real_cluster: RealCluster) -> Iterator[Installation]:
    made = Installation(real_cluster)
    yield made
    if made.sound:
        real_cluster.delete()
        real_cluster.assert_as_before(reloads=2)
        real_cluster.assert_undisturbed()


@pytest.fixture
def configured(installation: Installation, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """Yield the cluster with the installation on every node, and assert that the test has left it so."""
    if not installation.sound:
        installation.make()
    installation.sound = False
    with record.recorded(request.node, installation.cluster):
        yield installation.cluster
    installation.check()
    installation.sound = True


@pytest.mark.parametrize(
    "program, seconds",
    [("apiserver", outages.SECONDS), ("etcd", outages.BEYOND_A_GRACE_PERIOD)],
    ids=["apiserver", "etcd"],
)
def test_all_pods_are_replaced_during_an_outage_of_the_control_plane(
    configured: RealCluster, program: str, seconds: float
) -> None:
    def restart() -> None:
        configured.command("rollout", "restart", DAEMON_SET)

    with outages.outage_before_pods_end(configured, restart, program):
        outages.last(seconds)
        configured.assert_configured(reloads=1)
    configured.wait_until_ready()
    assert any(outages.UNANSWERED in configured.said(name) for name in configured.nodes), "nobody noticed it"


def test_all_pods_are_replaced_at_once_and_a_variable_is_changed(configured: RealCluster) -> None:
    configured.command("rollout", "restart", DAEMON_SET)
    configured.wait_until_ready()
    configured.command("set", "env", DAEMON_SET, "RELOAD_TIMEOUT=61")
    configured.wait_until_ready()


def test_every_run_is_refreshed_by_kubectl_and_reloads_nothing(configured: RealCluster) -> None:
    for name, (pod,) in configured.pods().items():
        printed = configured.command("exec", pod["metadata"]["name"], "--", "toolkit-installer", "refresh")
        assert "Done: the run has looked at the node again, and nothing failed" in printed, name
    configured.assert_configured(reloads=1)


def test_a_node_is_drained(configured: RealCluster) -> None:
    first = next(iter(configured.nodes))
    configured.command("drain", first, "--ignore-daemonsets", "--timeout=60s")
    configured.command("uncordon", first)


def test_every_kubelet_is_restarted_and_no_pod_is_replaced(configured: RealCluster) -> None:
    def heartbeats() -> set[str]:
        nodes = configured.plane.get("/api/v1/nodes")
        conditions = [each for node in nodes for each in node["status"]["conditions"]]
        return {each["lastHeartbeatTime"] for each in conditions if each["type"] == "Ready"}

    pods, before = configured.workloads(NAME), heartbeats()
    for node in configured.nodes.values():
        node.host.run("systemctl", "restart", "kubelet")
    wait_until(lambda: not heartbeats() & before, "every kubelet says again that its node is ready")
    configured.wait_until_ready()
    assert configured.workloads(NAME) == pods


def test_somebody_applies_a_second_daemonset_by_mistake_in_another_namespace(configured: RealCluster) -> None:
    second = copy_of_base(namespace := "toolkit-installer-too")
    configured.give(*second)

    def all_refused() -> bool:
        pods = configured.plane.get(f"/api/v1/namespaces/{namespace}/pods")
        statuses = [each for pod in pods for each in pod["status"].get("containerStatuses", [])]
        return len(statuses) == len(configured.nodes) and all(each["restartCount"] for each in statuses)

    wait_until(all_refused, "the second DaemonSet's pods have ended on every node")
    configured.assert_configured(reloads=1)
    configured.plane.kubectl("delete", "namespace", namespace, "--wait=false")
    wait_until(lambda: not configured.plane.get(f"/api/v1/namespaces/{namespace}/pods"), "the second's pods are gone")
    configured.wait_until_no_namespace(namespace)


def test_all_pods_are_replaced_while_somebody_has_broken_their_permissions(configured: RealCluster) -> None:
    configured.command("delete", "rolebinding", NAME)
    # pods that were told once that their node is wanted end, and then those that never were
    for _ in range(2):
        configured.command("rollout", "restart", DAEMON_SET)
        configured.wait_until_ready()
    configured.give(manifests.one(manifests.rendered("base"), "RoleBinding"))


def test_all_pods_are_replaced_after_their_tokens_have_expired(configured: RealCluster) -> None:
    account_tokens.wait_until_refused(configured, account_tokens.let_expire(configured))
    configured.command("rollout", "restart", DAEMON_SET)
    configured.wait_until_ready()
    for name in configured.nodes:
        assert outages.UNANSWERED in configured.said(name), name


def test_etcd_is_away_for_a_moment_and_no_pod_notices(configured: RealCluster) -> None:
    pods = configured.workloads(NAME)
    with outages.outage(configured, "etcd"):
        configured.assert_configured(reloads=1)
    configured.wait_until_ready()
    assert configured.workloads(NAME) == pods
