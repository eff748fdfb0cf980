"""daemonset/overlays/startup-taint on a real cluster: what the API server is told of nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cluster import node_states
from tests.e2e.cluster.node_states import INSTALLING, SERVING, Watch, watching
from tests.e2e.cluster.objects import all_at_once, workload
from tests.e2e.cluster.rollout import GPU, NAME, NAMESPACE, RealCluster, wait_until
from tests.support import manifests
from tests.support.manifests import Object
from tests.support.prometheus import Prometheus
from toolkit_installer import __version__

pytestmark = pytest.mark.cluster
OVERLAY = "overlays/startup-taint"
PORT = 9479


def test_nodes_are_tainted_ready_and_untainted_in_order_and_restored_in_the_end(
    cluster: RealCluster, tmp_path: Path
) -> None:
    before = {name: node_states.of(cluster.plane, name) for name in cluster.nodes}
    with watching(cluster.plane) as watch:
        cluster.give(*_with_metrics(all_at_once(OVERLAY)))
        wait_until(
            lambda: all(INSTALLING in watch.of(name) for name in cluster.nodes), "every node is tainted", seen=watch
        )
        intolerant = workload(GPU, asks=True, runtime_class="nvidia")
        del intolerant["spec"]["template"]["spec"]["tolerations"]
        cluster.give(intolerant)
        cluster.wait_until_ready()
        cluster.wait_until_running(GPU)
        for name in cluster.nodes:
            watch.assert_tainted_until_ready(name)
    cluster.assert_configured(reloads=1)
    told = cluster.plane.get("/api/v1/namespaces/default/events")
    # cri-dockerd asks docker for its runtimes once a minute, and may not know of one that docker serves
    direct = {name for name, node in cluster.nodes.items() if node.kind.below is None}
    failed = [each for each in told if each["reason"] == "FailedCreatePodSandBox" and _is_of(each, GPU)]
    refused = [each["message"] for each in failed if each["source"].get("host") in direct]
    assert refused == [], "a pod started before the handlers served"
    for name in cluster.nodes:
        found = {each["reason"] for each in told if each["involvedObject"]["name"] == name}
        assert {"Installed", "EngineReloaded"} <= found, found
        labels = node_states.of(cluster.plane, name)["labels"]
        assert labels["toolkit-installer/version"] == __version__
        assert labels["toolkit-installer/engine"] == cluster.nodes[name].kind.name.partition("-")[0]
    cluster.remove(GPU)

    (name, node), (other, without_power), *_ = cluster.nodes.items()
    with watching(cluster.plane) as watch:
        old = cluster.workloads(NAME)
        node.begin_to_shut_down()
        wait_until(lambda: watch.of(name)[-1] == INSTALLING, "it is tainted before it is down", within=60, seen=watch)
        node.reboot()
        without_power.reboot()

        def back(node: str) -> bool:
            return cluster.workloads(NAME).get(node, old[node]) != old[node]

        wait_until(lambda: back(name) and back(other), "both run their pods again")
        cluster.wait_until_ready()
        wait_until(lambda: watch.of(name)[-1] == watch.of(other)[-1] == SERVING, "both are untainted again", seen=watch)
        assert INSTALLING in watch.of(other), watch.of(other)

        _stop_and_start_its_engine(cluster, name, watch, tmp_path)
    of_daemon_set = cluster.plane.get(f"/api/v1/namespaces/{NAMESPACE}/events")
    warnings = [each for each in of_daemon_set if each["reason"] == "EngineNotServing"]
    assert any(each["message"].startswith(f"{name}: ") for each in warnings)

    cluster.remove_installation()
    cluster.delete(OVERLAY)
    assert {name: node_states.of(cluster.plane, name) for name in cluster.nodes} == before
    cluster.assert_as_before()


def _stop_and_start_its_engine(cluster: RealCluster, name: str, watch: Watch, folder: Path) -> None:
    """Stop a node's engine, and start it again: its condition, taint and alerts come within a minute, and go."""
    node, (pod,) = cluster.nodes[name], cluster.pods()[name]
    address = f"{pod['status']['podIP']}:{PORT}"
    alerts = ("ToolkitEngineNotServing", "ToolkitNotReady")
    with Prometheus(folder / "prometheus", address, cluster.plane.hardware.enter) as prometheus:
        prometheus.wait_for("toolkit_installer_ready == 1")
        node.host.run("systemctl", "stop", node.kind.unit)
        wait_until(
            lambda: watch.of(name)[-1] == ("tainted", "EngineDown"), "the stopped engine is told", 60, seen=watch
        )
        prometheus.wait_until(*alerts, within=90)
        node.host.run("systemctl", "start", node.kind.unit)
        wait_until(lambda: watch.of(name)[-1] == SERVING, "the engine that was started again is told", 90, seen=watch)
        prometheus.wait_until(*alerts, fires=False, within=90)


def _with_metrics(objects: list[Object]) -> list[Object]:
    """Have the pods of these objects serve metrics, too."""
    (container,) = manifests.one(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": "METRICS_ADDRESS", "value": f":{PORT}"})
    return objects


def _is_of(event: dict[str, dict[str, str]], app: str) -> bool:
    return event["involvedObject"].get("name", "").startswith(f"{app}-")
