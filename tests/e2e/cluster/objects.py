"""Objects that the tests give a real cluster beside those of daemonset/, and what they read in its answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tests.support import manifests
from tests.support.engines import images
from tests.support.manifests import Object


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod is ready, and is not ending."""
    conditions = pod["status"].get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def all_at_once(name: str) -> list[Object]:
    """Return a kustomization of daemonset/ whose rollouts take all nodes at once, and wait at none of them."""
    found = manifests.rendered(name)
    spec = manifests.one(found, "DaemonSet")["spec"]
    spec["minReadySeconds"] = 0
    spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = "100%"
    return found


def workload(
    name: str, *, asks: bool = False, runtime_class: str | None = None, nodes: Collection[str] = ()
) -> dict[str, Any]:
    """Return a DaemonSet whose pods do nothing, on these nodes or all; `asks` says whether they ask for the GPU."""
    labels = {"app.kubernetes.io/name": name}
    container: dict[str, Any] = {"name": "main", "image": images.IMAGE, "command": images.COMMAND}
    spec: dict[str, Any] = {
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 5,
    }
    if asks:
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "nvidia.com/gpu=0"}]
    if runtime_class is not None:
        spec["runtimeClassName"] = runtime_class
    if nodes:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": sorted(nodes)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


def copy_of_base(namespace: str) -> list[Object]:
    """Return daemonset/base as it is when somebody applies it a second time, in another namespace."""
    found = []
    for each in manifests.rendered("base"):
        metadata = each["metadata"]
        if each["kind"] == "RuntimeClass":
            continue
        if each["kind"] == "Namespace" or each["kind"].startswith("Cluster"):
            metadata["name"] = namespace
        else:
            metadata["namespace"] = namespace
        for subject in each.get("subjects", []):
            subject["namespace"] = namespace
        if each["kind"] == "ClusterRoleBinding":
            each["roleRef"]["name"] = namespace
        found.append(each)
    return found
