"""daemonset/base on a real cluster whose nodes' drivers come late, go and move, or that have no GPU at all."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterator

import pytest

from tests.e2e.cluster import outages
from tests.e2e.cluster.nodes import Node
from tests.e2e.cluster.rollout import NAME, RealCluster, wait_until
from tests.e2e.hosts.machine import INSTALL_DIR
from tests.support import driver_roots

pytestmark = pytest.mark.cluster
SERVED = "the engines serve the handlers"
GONE = "No driver is usable now: the installed root stays"
UNANSWERED = "does not say whether the DaemonSet wants this node"


@pytest.fixture
def undriven(cluster: RealCluster) -> Iterator[RealCluster]:
    """Yield the cluster with no driver on any node, and no GPU on the first; all is noted so. They come back."""
    for number, node in enumerate(cluster.nodes.values()):
        node.remove_driver(gpu=number > 0)
    cluster.note()
    yield cluster
    for node in cluster.nodes.values():
        for command in ("umount", "rmdir"):
            node.host.run(command, driver_roots.CONTAINER, check=False)
        node.install_driver()


def wait_until_the_driver_is_waited_for(cluster: RealCluster, nodes: Collection[str]) -> None:
    """Wait until the pods of these nodes are in Init:0/1, their first container at work."""

    def waiting() -> bool:
        pods = cluster.pods()
        return all(
            "running" in status["state"]
            for name in nodes
            for pod in pods.get(name, [{"status": {}}])
            for status in pod["status"].get("initContainerStatuses", [{"state": {}}])
        )

    wait_until(waiting, f"the pods of {', '.join(nodes)} wait for the driver")


def wait_until_all(cluster: RealCluster, condition: Callable[[Node], bool], what: str) -> None:
    """Wait until it holds for every node."""
    wait_until(lambda: all(map(condition, cluster.nodes.values())), f"on every node {what}")


def driver_root(node: Node) -> str:
    """Return where the toolkit looks for the driver."""
    config = node.host.path(f"{INSTALL_DIR}/toolkit/.config/nvidia-container-runtime/config.toml")
    return str(tomllib.loads(config.read_text())["nvidia-container-cli"]["root"])


def test_pods_wait_for_the_driver_and_reload_nothing_when_it_goes_or_moves(
    undriven: RealCluster,
) -> None:
    cluster, (idle, *waiting) = undriven, undriven.nodes
    cluster.apply()
    cluster.wait_until_ready([idle])
    wait_until_the_driver_is_waited_for(cluster, waiting)
    cluster.assert_untouched()

    with outages.outage(cluster):
        for node in cluster.nodes.values():
            node.install_driver()
        wait_until_all(cluster, lambda node: SERVED in cluster.said(node.name), "the handlers are served")
        outages.last()
    cluster.wait_until_ready()
    cluster.assert_configured(reloads=1)
    for name in waiting:
        assert UNANSWERED in cluster.said(name)

    pods = cluster.workloads(NAME)
    for node in cluster.nodes.values():
        node.remove_driver(gpu=True)
    wait_until_all(cluster, lambda node: GONE in cluster.said(node.name), "the pods have seen that the driver is gone")
    cluster.assert_configured(reloads=1)
    for node in cluster.nodes.values():  # as a driver container shows its root to the node
        node.host.run("mkdir", "-p", driver_roots.CONTAINER)
        node.host.run("mount", "-t", "tmpfs", "tmpfs", driver_roots.CONTAINER)
        driver_roots.install(node.host.path(driver_roots.CONTAINER))
    wait_until_all(cluster, lambda node: driver_root(node) == driver_roots.CONTAINER, "the new root is followed")
    cluster.assert_configured(reloads=1)
    assert cluster.workloads(NAME) == pods

    for node in cluster.nodes.values():
        node.host.run("umount", driver_roots.CONTAINER)
        node.host.run("rmdir", driver_roots.CONTAINER)
    cluster.remove_installation()
    cluster.assert_as_before(reloads=2)
    cluster.assert_undisturbed()
