"""daemonset/overlays/startup-taint on a real cluster: what the API server is told of nodes, and lets be told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.cluster import account_tokens, node_states
from tests.e2e.cluster.control_plane import ADDRESS
from tests.e2e.cluster.node_states import INSTALLING, SERVING, Watch, watching
from tests.e2e.cluster.objects import all_at_once, workload
from tests.e2e.cluster.rollout import GPU, NAME, NAMESPACE, RealCluster, wait_until
from tests.support import manifests
from tests.support.manifests import Object
from tests.support.prometheus import Prometheus
from toolkit_installer import __version__
from toolkit_installer.kubernetes.taints import READY_IN

pytestmark = pytest.mark.cluster
OVERLAY = "overlays/startup-taint"
_PATCH = """
import ssl, sys, urllib.error, urllib.request
url, authority, token, change = sys.argv[1:]
headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
request = urllib.request.Request(url, change.encode(), headers, method="PATCH")
try:
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=authority)) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
"""What kubectl does not do: it gets an object before it patches its status, which the pods may not."""
PORT = 9479


def test_nodes_are_tainted_ready_and_untainted_in_that_order_and_as_they_were_in_the_end(
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

    _assert_a_token_is_good_for_its_own_node_alone(cluster)
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


def _taints(node: Object) -> list[Object]:
    """Return the node's taints without the installer's own."""
    return [each for each in node["spec"].get("taints", []) if each["key"] != node_states.KEY]


def _of_others(node: Object) -> list[Object]:
    """Return changes of a Node that are none of the installer's; the API server's own validation allows each."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    taint, own = ({"key": key, "effect": "NoSchedule"} for key in ("example.com/taint", node_states.KEY))
    theirs: dict[str, Object] = {
        "podCIDR": {"podCIDR": "192.0.2.0/24", "podCIDRs": ["192.0.2.0/24"]},
        "providerID": {"providerID": "example://node"},
    }
    return [
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
        {"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}}},
        {"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": None}}},
        {"metadata": {"ownerReferences": [owner]}},
        {"metadata": {"finalizers": ["example.com/stays"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [*_taints(node), taint]}},
        {"spec": {"taints": [*_taints(node), taint, own]}},
        # each can be set once, and is refused to everybody afterwards
        *({"spec": change} for field, change in theirs.items() if not node["spec"].get(field)),
    ]


def _of_the_kubelet(node: Object) -> list[Object]:
    """Return changes of a Node's status, which is the kubelet's but for one condition."""
    volume = "kubernetes.io/csi/example.com^volume"
    ready = {"type": "Ready", "status": "Unknown", "reason": "x", "message": "x"}
    return [
        {"conditions": []},
        {"conditions": [ready, *(each for each in node["status"]["conditions"] if each["type"] != "Ready")]},
        {
            "conditions": [
                *node["status"]["conditions"],
                {"type": "example.com/ContainerToolkitReady", "status": "True"},
            ]
        },
        {"capacity": {"nvidia.com/gpu": "8"}},
        {"allocatable": {"nvidia.com/gpu": "8"}},
        {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
        {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
        {"nodeInfo": {"kubeletVersion": "v0.0.0"}},
        {"images": [{"names": ["example.com/image:1"], "sizeBytes": 1}]},
        {"volumesInUse": [volume]},
        {"volumesAttached": [{"name": volume, "devicePath": ""}]},
        {"phase": "Terminated"},
        {"runtimeHandlers": [{"name": "x", "features": {"recursiveReadOnlyMounts": True}}]},
        {
            "features": {
                "supplementalGroupsPolicy": not node["status"].get("features", {}).get("supplementalGroupsPolicy")
            }
        },
    ]


def _is_of(event: dict[str, dict[str, str]], app: str) -> bool:
    return event["involvedObject"].get("name", "").startswith(f"{app}-")


def _assert_a_token_is_good_for_its_own_node_alone(cluster: RealCluster) -> None:
    one, other, *_ = sorted(cluster.nodes)
    token = account_tokens.of_pod_on(cluster, one)

    def said(node: str, change: Mapping[str, object], below: str = "") -> tuple[int, str]:
        url = f"https://{ADDRESS}:443/api/v1/nodes/{node}{below}"
        command = [sys.executable, "-c", _PATCH, url, str(cluster.plane.authority), token, json.dumps(change)]
        done = subprocess.run([*cluster.plane.hardware.enter, *command], capture_output=True, text=True, check=True)
        status, _, words = done.stdout.partition(" ")
        return int(status), words

    (found,) = cluster.plane.get(f"/api/v1/nodes/{one}")
    ours = {"metadata": {"labels": {"toolkit-installer/test": "x"}}}
    for allowed in (
        ours,
        {"metadata": {"labels": {"toolkit-installer/test": None}}},
        {"metadata": {"annotations": {READY_IN: "x"}}},
        {"metadata": {"annotations": {READY_IN: found["metadata"]["annotations"][READY_IN]}}},
        {"spec": {"taints": [*_taints(found), {"key": node_states.KEY, "effect": "NoSchedule"}]}},
        {"spec": {"taints": _taints(found)}},
    ):
        status, words = said(one, allowed)
        assert status == 200, f"{allowed}: {words}"
    refused: list[tuple[str, Object, str]] = [
        (other, ours, ""),
        (other, {"status": {"conditions": []}}, "/status"),
        *((one, change, "") for change in _of_others(found)),
        *((one, {"status": change}, "/status") for change in _of_the_kubelet(found)),
        (one, {"metadata": {"annotations": {"example.com/note": "x"}}}, "/status"),
    ]
    for node, change, below in refused:
        status, words = said(node, change, below)
        assert status == 403, f"{node} was changed by the token of {one}: {change}: {status} {words}"
        assert "toolkit-installer may change" in words, words
