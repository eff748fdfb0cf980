"""Whether a DaemonSet wants a node: the rules of Kubernetes, as a table."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.api_server import real
from toolkit_installer.kubernetes import verdicts
from toolkit_installer.kubernetes.verdicts import UnclearError, find_scheduling_obstacle

GPU = "nvidia.com/gpu.present"


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def asks(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


def both(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": [each for term in terms for each in term["matchExpressions"]]}


def judged(pod: dict[str, Any], node: dict[str, Any] | None = None, **labels: Any) -> str | None:
    """Return what the real DaemonSet, with a pod template that says also this, has against the real node."""
    daemon_set, machine = copy.deepcopy(real("daemonset")), copy.deepcopy(real("node"))
    machine["metadata"]["labels"].update(labels)
    daemon_set["spec"]["template"]["spec"].update(pod)
    machine["spec"].update(node or {})
    return find_scheduling_obstacle(daemon_set, machine)


def tainted(key: str, effect: str, value: str = "") -> dict[str, Any]:
    return {"taints": [{"key": key, "effect": effect, **({"value": value} if value else {})}]}


def tolerates(**toleration: str) -> dict[str, Any]:
    return {"tolerations": [toleration]}


WANTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("the pods that clusters have", {}, {}),
    ("no selector at all", {"nodeSelector": None}, {}),
    ("its own name", {"nodeName": "gpu-node-1"}, {}),
    ("In", affinity(asks("kubernetes.io/arch", "In", "arm64", "amd64")), {}),
    ("NotIn", affinity(asks("kubernetes.io/arch", "NotIn", "s390x")), {}),
    ("NotIn of a label that is not there", affinity(asks("zone", "NotIn", "a")), {}),
    ("Exists", affinity(asks(GPU, "Exists")), {}),
    ("DoesNotExist", affinity(asks("zone", "DoesNotExist")), {}),
    ("Gt", affinity(asks("nvidia.com/gpu.count", "Gt", "7")), {}),
    ("Lt", affinity(asks("nvidia.com/gpu.count", "Lt", "10")), {}),
    ("the node's name", affinity(named("In", "gpu-node-1")), {}),
    ("one of two terms", affinity(asks("zone", "Exists"), asks(GPU, "Exists")), {}),
    ("affinity that is only preferred", {"affinity": {"nodeAffinity": {"preferredDuringScheduling": [{}]}}}, {}),
    ("a taint that keeps new pods away", {}, tainted("maintenance", "NoSchedule")),
    ("a cordoned node", {}, {"unschedulable": True, **tainted("node.kubernetes.io/unschedulable", "NoSchedule")}),
    ("a node that is not ready", {}, tainted("node.kubernetes.io/not-ready", "NoExecute")),
    ("a node that is not reached", {}, tainted("node.kubernetes.io/unreachable", "NoExecute")),
    ("tolerated by key", tolerates(key="x", operator="Exists"), tainted("x", "NoExecute", "1")),
    ("tolerated by value", tolerates(key="x", value="1", effect="NoExecute"), tainted("x", "NoExecute", "1")),
    ("tolerated whatever it is", tolerates(operator="Exists"), tainted("x", "NoExecute", "1")),
    ("tolerated without a value", tolerates(key="x"), tainted("x", "NoExecute")),
]

UNWANTED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("another node's name", {"nodeName": "gpu-node-2"}, {}, "gpu-node-2"),
    ("a label that is not there", {"nodeSelector": {"zone": "a"}}, {}, "zone=a"),
    ("a label of another value", {"nodeSelector": {GPU: "false"}}, {}, f"{GPU}=false"),
    ("one label of two", {"nodeSelector": {GPU: "true", "zone": "a"}}, {}, "zone=a"),
    ("In", affinity(asks("kubernetes.io/arch", "In", "arm64")), {}, "affinity"),
    ("In of a label that is not there", affinity(asks("zone", "In", "a")), {}, "affinity"),
    ("NotIn", affinity(asks("kubernetes.io/arch", "NotIn", "amd64")), {}, "affinity"),
    ("Exists", affinity(asks("zone", "Exists")), {}, "affinity"),
    ("DoesNotExist", affinity(asks(GPU, "DoesNotExist")), {}, "affinity"),
    ("Gt of an equal number", affinity(asks("nvidia.com/gpu.count", "Gt", "8")), {}, "affinity"),
    ("Lt of an equal number", affinity(asks("nvidia.com/gpu.count", "Lt", "8")), {}, "affinity"),
    ("Gt, by number and not by letter", affinity(asks("nvidia.com/gpu.count", "Gt", "10")), {}, "affinity"),
    ("Gt of no number", affinity(asks("kubernetes.io/arch", "Gt", "1")), {}, "affinity"),
    ("Gt of a label that is not there", affinity(asks("zone", "Gt", "1")), {}, "affinity"),
    ("another name", affinity(named("In", "gpu-node-2")), {}, "affinity"),
    ("one requirement of two", affinity(both(asks(GPU, "Exists"), asks("zone", "Exists"))), {}, "affinity"),
    ("a term that asks for nothing", affinity({}), {}, "affinity"),
    ("no term at all", affinity(), {}, "affinity"),
    ("label right, name wrong", affinity({**asks(GPU, "Exists"), **named("NotIn", "gpu-node-1")}), {}, "affinity"),
    ("a taint that ends pods", {}, tainted("maintenance", "NoExecute"), "maintenance:NoExecute"),
    ("tolerated for another effect", tolerates(key="x", effect="NoSchedule"), tainted("x", "NoExecute"), "x:NoExec"),
    ("tolerated for another value", tolerates(key="x", value="2"), tainted("x", "NoExecute", "1"), "x:NoExecute"),
    ("tolerated for another key", tolerates(key="y", operator="Exists"), tainted("x", "NoExecute"), "x:NoExecute"),
]


@pytest.mark.parametrize("pod, node", [case[1:] for case in WANTED], ids=[case[0] for case in WANTED])
def test_a_node_is_wanted_with(pod: dict[str, Any], node: dict[str, Any]) -> None:
    assert judged(pod, node) is None


@pytest.mark.parametrize("pod, node, why", [case[1:] for case in UNWANTED], ids=[case[0] for case in UNWANTED])
def test_a_node_is_not_wanted_because_of(pod: dict[str, Any], node: dict[str, Any], why: str) -> None:
    assert why in (judged(pod, node) or "it is wanted")


@pytest.mark.parametrize(
    "pod",
    [
        affinity(asks(GPU, "Near", "x")),
        affinity({"matchExpressions": [{"operator": "Exists"}]}),
        affinity({"matchExpressions": "all"}),
        affinity({"matchExpressions": [{"key": GPU, "operator": "In", "values": "true"}]}),
        affinity({"matchFields": [{"key": "spec.x", "operator": "Exists"}]}),
        affinity(asks("nvidia.com/gpu.count", "Gt")),
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
        {"nodeSelector": ["zone"]},
        {"affinity": "none"},
        {"tolerations": [{"key": "x", "operator": "Resembles", "value": "1"}]},
    ],
    ids=str,
)
def test_from_what_is_not_understood_nothing_is_concluded(pod: dict[str, Any]) -> None:
    with pytest.raises(UnclearError):
        judged(pod, tainted("x", "NoExecute", "1"))


@pytest.mark.parametrize("count", ["1_000", " 9", "\N{FULLWIDTH DIGIT NINE}", "9.5", "0x9", "", "9" * 30, "9" * 5000])
def test_a_number_that_kubernetes_does_not_read_as_one_is_neither_more_nor_less(count: str) -> None:
    for operator in ("Gt", "Lt"):
        assert "affinity" in (judged(affinity(asks("count", operator, "8")), count=count) or "it is wanted")
        assert "affinity" in (judged(affinity(asks("count", operator, count)), count="9") or "it is wanted")


@pytest.mark.parametrize("count", [float("inf"), float("nan"), 9, ["9"], True], ids=str)
def test_a_label_that_is_no_text_is_not_understood(count: Any) -> None:
    for pod in (affinity(asks("count", "Gt", "8")), affinity({"matchExpressions": [asks("count", "Gt", count)]})):
        with pytest.raises(UnclearError):
            judged(pod, count=count)


@pytest.mark.parametrize(
    "changed",
    [
        {"spec": None},
        {"spec": {}},
        {"spec": {"template": None}},
        {"spec": {"template": {}}},
        {"spec": {"template": {"spec": {}}}},
        {"spec": {"template": {"spec": {"containers": []}}}},
        {"spec": {"template": {"spec": []}}},
    ],
    ids=str,
)
def test_a_daemonset_without_pods_wants_no_node(changed: dict[str, Any]) -> None:
    with pytest.raises(UnclearError):
        find_scheduling_obstacle(real("daemonset") | changed, real("node"))
    with pytest.raises(UnclearError):
        verdicts.tolerates_taint(real("daemonset") | changed, {"key": "x", "effect": "NoSchedule"})


def test_an_object_without_its_name_is_not_understood() -> None:
    with pytest.raises(UnclearError, match="name"):
        find_scheduling_obstacle(real("daemonset"), {"kind": "Node"})


def test_neither_object_is_changed() -> None:
    daemon_set, node = real("daemonset"), real("node")
    find_scheduling_obstacle(daemon_set, node)
    assert (daemon_set, node) == (real("daemonset"), real("node"))
