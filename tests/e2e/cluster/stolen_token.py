"""What the token of a pod on one node can do in the wrong hands: the rows of the table in docs/security.md.

Each row has the page's own words, the answer, and requests that all get it. The pod is on the node `OWN`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.e2e.cluster.node_states import KEY
from tests.support.api_server import real
from tests.support.manifests import Object
from toolkit_installer.kubernetes import node_state
from toolkit_installer.kubernetes.client import APPLY, JSON, MERGE, REVIEW_PATH
from toolkit_installer.kubernetes.node_client import DAEMON_SET, NODE
from toolkit_installer.kubernetes.node_state import (
    MANAGER,
    READY_IN,
    ConditionReason,
    EventContent,
    NodeState,
    ReportedEvent,
)
from toolkit_installer.settings import CONDITION

OWN, OTHER = "node-a", "node-b"
NAMESPACE = ACCOUNT = "toolkit-installer"
DAEMON_SET_UID = "2f9f7c6a-9a55-4f0c-9a3c-6f1f6e0d7b11"
NOW = "2026-11-28T10:00:00Z"
JSON_PATCH, STRATEGIC = "application/json-patch+json", "application/strategic-merge-patch+json"


class Token(enum.StrEnum):
    """The tokens that are tried."""

    OF_POD = "bound to the pod on the own node"
    OF_ACCOUNT = "kubectl create token"
    OF_SECRET = "of a Secret"  # noqa: S105  # its name


class Answer(enum.StrEnum):
    """What the API server answers, as the table has it."""

    ALLOWED = "allowed"
    BY_POLICY = "refused by the policies"
    BY_RBAC = "refused by RBAC"


@dataclasses.dataclass(frozen=True)
class Request:
    """One request."""

    method: str
    path: str
    body: Any = None
    kind: str = JSON
    token: Token = Token.OF_POD
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.body} with the token {self.token} {self.headers or ''}".rstrip()


class Row(NamedTuple):
    """One row: the page's words, the answer, and the requests."""

    request: str
    answer: Answer
    tried: tuple[Request, ...]


# --- the nodes, and what the program writes of them ---


def node(name: str) -> Object:
    """Return a Node as the API server has it, without what only the API server fills in."""
    found = real("node")
    found["metadata"] = {
        "name": name,
        "labels": found["metadata"]["labels"] | {"kubernetes.io/hostname": name},
        "annotations": found["metadata"]["annotations"],
    }
    return found


def about(kind: str, name: str = OWN) -> dict[str, str]:
    """Return what an event of the program is about."""
    if kind == NODE:
        return {"apiVersion": "v1", "kind": NODE, "name": name, "uid": name}
    return {
        "apiVersion": "apps/v1",
        "kind": DAEMON_SET,
        "name": MANAGER,
        "namespace": NAMESPACE,
        "uid": DAEMON_SET_UID,
    }


def event(kind: str, name: str, node: str = OWN, **changed: Any) -> Object:
    """Return an event as the program writes it on a node, changed so; `name` is what follows that of its object."""
    involved = about(kind, node)
    message = "The engine does not answer" if kind == NODE else f"{node}: The engine does not answer"
    told = ReportedEvent(
        EventContent(kind, "EngineDown", message, warning=True), f"{involved['name']}.{name}", 1, 0.0, 0.0
    )
    return node_state.build_event_body(told, involved, node=node, now=NOW) | changed


def again(message: str) -> Object:
    """Return the change by which the program counts an event once more."""
    return node_state.repeat_event(ReportedEvent(EventContent(NODE, "EngineDown", message), "", 2, 0.0, 0.0), last=NOW)


def prepared() -> list[Object]:
    """Return the events that others, and this pod, wrote before."""
    kubelets = event(NODE, "kubelet") | {
        "source": {"component": "kubelet", "host": OWN},
        "reportingComponent": "kubelet",
        "reportingInstance": OWN,
    }
    return [
        kubelets,
        event(NODE, "ours"),
        event(NODE, "theirs", OTHER),
        event(DAEMON_SET, "ours"),
        event(DAEMON_SET, "theirs", OTHER),
    ]


_NODE_EVENTS, _DAEMON_SET_EVENTS = "/api/v1/namespaces/default/events", f"/api/v1/namespaces/{NAMESPACE}/events"
_NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
_MANAGED = f"fieldManager={MANAGER}&force=true"


def _patch(node: str, body: Any, kind: str = MERGE) -> Request:
    return Request("PATCH", f"/api/v1/nodes/{node}", body, kind)


def _patch_status(node: str, body: Any, kind: str = MERGE) -> Request:
    return Request("PATCH", f"/api/v1/nodes/{node}/status", body, kind)


def _apply(node: str, body: Object, below: str = "", query: str = _MANAGED) -> Request:
    return Request("PATCH", f"/api/v1/nodes/{node}{below}?{query}", body, APPLY)


def _create(body: Object) -> Request:
    return Request("POST", f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body)


def _patch_event(name: str, body: Any, kind: str = MERGE, place: str = _NODE_EVENTS) -> Request:
    return Request("PATCH", f"{place}/{name}", body, kind)


def _condition(node: str) -> Request:
    state = NodeState(ConditionReason.SERVING, "docker serves nvidia")
    said = node_state.build_condition(CONDITION, state, now=NOW, since=NOW)
    return _apply(node, node_state.build_conditions_body(node, said), "/status")


def _labels(node: str) -> Request:
    found = node_state.build_labels(version="1", engines=("docker",), payload="1.18.0")
    return _apply(node, node_state.build_labels_body(node, found))


def _taint(node: str, **changed: str) -> Request:
    body = {"key": KEY, "value": "starting", "effect": "NoSchedule"} | changed
    return _patch(node, {"spec": {"taints": [*_OTHERS, body]}})


def _metadata(event: Object, **changed: Any) -> Object:
    return event | {"metadata": event["metadata"] | changed}


_OTHERS: list[Object] = node(OWN)["spec"]["taints"]
_OURS = {"key": KEY, "effect": "NoSchedule"}
_READY: Object = node(OWN)["status"]["conditions"][0]
_OWN_LABEL = {"metadata": {"labels": {"toolkit-installer/version": "x"}}}
_OWN_CONDITION = {"type": CONDITION, "status": "True", "reason": "Serving"}
_NAMELESS: Object = {
    "source": {"component": MANAGER},
    "reportingInstance": "",
    "involvedObject": {"apiVersion": "v1", "kind": NODE},
}
"""What an event would say to be of a token that names no node."""
_ELSEWHERE = about(DAEMON_SET) | {"namespace": "kube-system"}
_VOLUME = "kubernetes.io/csi/example.com^volume"

_STATUS_OF_OTHERS: tuple[Object, ...] = (
    {"conditions": []},
    {"conditions": [_READY | {"status": "Unknown"}]},
    {"conditions": [_READY | {"lastHeartbeatTime": NOW}, _OWN_CONDITION]},
    {"conditions": [_READY, {"type": "example.com/ContainerToolkitReady", "status": "True"}]},
    {"capacity": {"nvidia.com/gpu": "8"}},
    {"allocatable": {"nvidia.com/gpu": "8"}},
    {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
    {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    {"nodeInfo": {"kubeletVersion": "v0.0.0"}},
    {"images": [{"names": ["example.com/image:1"], "sizeBytes": 1}]},
    {"volumesInUse": [_VOLUME]},
    {"volumesAttached": [{"name": _VOLUME, "devicePath": ""}]},
    {"phase": "Terminated"},
    {"runtimeHandlers": [{"name": "x", "features": {"recursiveReadOnlyMounts": True}}]},
    {"features": {"supplementalGroupsPolicy": True}},
)
"""What the kubelet, or another program, writes of its Node."""

OWN_FIELDS = (
    _condition(OWN),
    _apply(OWN, node_state.build_conditions_body(OWN), "/status"),
    _labels(OWN),
    _apply(OWN, node_state.build_labels_body(OWN, {})),
    _patch(OWN, {"metadata": {"annotations": {READY_IN: "x"}}}),
    _patch(OWN, {"metadata": {"annotations": {READY_IN: None}}}),
    _taint(OWN),
    _patch(OWN, {"spec": {"taints": _OTHERS}}),
)
"""What a pod writes of its Node."""

OWN_EVENTS = (
    _create(event(NODE, "18a0")),
    _create(event(DAEMON_SET, "18a1")),
    _create(event(DAEMON_SET, "18a2", message=f"(combined from similar events): {OWN}: x")),
    _patch_event(f"{OWN}.ours", again("The engine still does not answer")),
    _patch_event(f"{MANAGER}.ours", again(f"{OWN}: x"), place=_DAEMON_SET_EVENTS),
)
"""The events that a pod writes, and those that it counts."""


def _without_node(request: Request) -> tuple[Request, ...]:
    """Return the request with the tokens that are bound to no pod."""
    return tuple(dataclasses.replace(request, token=each) for each in (Token.OF_ACCOUNT, Token.OF_SECRET))


# --- the table ---

TABLE = (
    Row("its own Node: the condition, labels, annotation and startup taint", Answer.ALLOWED, OWN_FIELDS),
    Row(
        "an event about its own Node, or about its DaemonSet with the node's name; counting one of these",
        Answer.ALLOWED,
        OWN_EVENTS,
    ),
    Row(
        "the same of another Node",
        Answer.BY_POLICY,
        (
            _condition(OTHER),
            _labels(OTHER),
            _patch(OTHER, {"metadata": {"annotations": {READY_IN: "x"}}}),
            _taint(OTHER),
            _patch_status(OTHER, {"status": {"conditions": []}}),
        ),
    ),
    Row(
        "the same with a token that is bound to no pod: of a Secret, or of `kubectl create token`",
        Answer.BY_POLICY,
        (
            *_without_node(_condition(OWN)),
            *_without_node(_labels(OWN)),
            *_without_node(_create(event(NODE, "18b0"))),
            *_without_node(_create(event(NODE, "18b1", **_NAMELESS))),
        ),
    ),
    Row(
        "its own Node: another condition, or any other field of `status`",
        Answer.BY_POLICY,
        (
            *(_patch_status(OWN, {"status": change}) for change in _STATUS_OF_OTHERS),
            _patch_status(OWN, {"status": {"conditions": [{"$patch": "delete", "type": "Ready"}]}}, STRATEGIC),
            _patch_status(OWN, [{"op": "remove", "path": "/status/conditions/0"}], JSON_PATCH),
            _apply(OWN, node_state.build_conditions_body(OWN, {"type": "Ready", "status": "False"}), "/status"),
        ),
    ),
    Row(
        "its own Node: another label or annotation, an owner, a finalizer",
        Answer.BY_POLICY,
        (
            *(
                _patch(OWN, {"metadata": change})
                for change in (
                    {"labels": {"node-role.kubernetes.io/control-plane": ""}},
                    {"labels": {"toolkit-installer.example.com/x": "x"}},
                    {"labels": {"nvidia.com/gpu.count": "9"}},
                    {"labels": {"kubernetes.io/hostname": None}},
                    {"labels": None},
                    {"annotations": {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}},
                    {"annotations": {"toolkit-installer/other": "x"}},
                    {"annotations": {"node.alpha.kubernetes.io/ttl": None}},
                    {"ownerReferences": [about(DAEMON_SET) | {"uid": DAEMON_SET_UID}]},
                    {"finalizers": ["example.com/stays"]},
                )
            ),
            _patch_status(OWN, {"metadata": {"labels": {"example.com/label": "x"}}}),
            _patch_status(OWN, {"metadata": {"annotations": {"example.com/note": "x"}}}),
            _apply(
                OWN,
                node_state.build_labels_body(OWN, {"kubernetes.io/os": "x"}),
                query="fieldManager=kubelet&force=true",
            ),
            _patch(OWN, [{"op": "remove", "path": "/metadata/labels"}], JSON_PATCH),
        ),
    ),
    Row(
        "its own Node: another taint, the startup taint's key with another effect, any other field of `spec`",
        Answer.BY_POLICY,
        (
            *(
                _patch(OWN, {"spec": change})
                for change in (
                    {"taints": None},
                    {"taints": [*_OTHERS, {"key": "example.com/taint", "effect": "NoSchedule"}]},
                    {"taints": [*_OTHERS, {"key": "example.com/taint", "effect": "NoSchedule"}, _OURS]},
                    {"taints": [*_OTHERS, {"key": KEY, "effect": "NoExecute"}]},
                    {"taints": [_OTHERS[0] | {"value": "other"}, _OURS]},
                    {"unschedulable": True},
                    {"providerID": "example://node"},
                )
            ),
            _patch(OWN, {"spec": {"taints": [_OURS]}}, STRATEGIC),
        ),
    ),
    Row(
        "an event about another Node, or about any other object",
        Answer.BY_POLICY,
        (
            _create(event(NODE, "18c0", involvedObject=about(NODE, OTHER))),
            _create(_metadata(event(NODE, "18c1", involvedObject=about(NODE, OTHER)), name=f"{OTHER}.18c1")),
            _create(event(NODE, "18c2", involvedObject=about(NODE) | {"uid": OTHER})),
            _create(event(NODE, "18c3", involvedObject=about(NODE) | {"kind": "Pod", "namespace": "default"})),
            _create(event(DAEMON_SET, "18c4", involvedObject=about(DAEMON_SET) | {"name": "other"})),
            _create(event(DAEMON_SET, "18c5", involvedObject=about(DAEMON_SET) | {"kind": "Deployment"})),
            _create(
                _metadata(
                    event(DAEMON_SET, "18c6", involvedObject=about(DAEMON_SET) | {"namespace": "default"}),
                    namespace="default",
                )
            ),
            _create(event(DAEMON_SET, "18c7", message=f"{OTHER}: The engine does not answer")),
            _create(event(DAEMON_SET, "18c8", message="The engine does not answer")),
            _create(event(NODE, "18c9", related=about(NODE, OTHER))),
        ),
    ),
    Row(
        "an event in the name of another node, of another component, or by the name of another object",
        Answer.BY_POLICY,
        (
            _create(event(NODE, "18d0", OTHER)),
            _create(event(DAEMON_SET, "18d1", OTHER)),
            _create(event(NODE, "18d2", source={"component": "kubelet", "host": OWN})),
            _create(event(NODE, "18d3", source={"component": MANAGER, "host": OTHER})),
            _create(event(NODE, "18d4", source={})),
            _create(event(NODE, "18d5", reportingComponent="kubelet")),
            _create(event(NODE, "18d6", reportingInstance=OTHER)),
            _create(_metadata(event(NODE, "18d7"), name=f"{OTHER}.18d7")),
            _create(_metadata(event(DAEMON_SET, "18d8"), name="other.18d8")),
            _create(_metadata(event(NODE, "18d9"), name=f"{OWN}x.18d9")),
        ),
    ),
    Row(
        "an event with fields that the program does not write, such as labels, owners, finalizers or a series",
        Answer.BY_POLICY,
        (
            _create(_metadata(event(NODE, "18e0"), labels={"example.com/label": "x"})),
            _create(_metadata(event(NODE, "18e1"), annotations={"example.com/note": "x"})),
            _create(_metadata(event(NODE, "18e2"), finalizers=["example.com/stays"])),
            _create(_metadata(event(NODE, "18e3"), ownerReferences=[about(DAEMON_SET) | {"uid": DAEMON_SET_UID}])),
            _create(event(NODE, "18e4", series={"count": 9, "lastObservedTime": "2026-11-28T10:00:00.000000Z"})),
            _create(event(NODE, "18e5", action="Evicted")),
        ),
    ),
    Row(
        "changing an event that another component, or another node's pod, has written",
        Answer.BY_POLICY,
        (
            _patch_event(f"{OWN}.kubelet", again("x")),
            _patch_event(f"{OTHER}.theirs", again("x")),
            _patch_event(f"{MANAGER}.theirs", again(f"{OWN}: x"), place=_DAEMON_SET_EVENTS),
            # making it one's own by the same change
            _patch_event(f"{OWN}.kubelet", event(NODE, "kubelet")),
            _patch_event(f"{MANAGER}.theirs", event(DAEMON_SET, "theirs"), place=_DAEMON_SET_EVENTS),
            Request("PATCH", f"{_NODE_EVENTS}/{OWN}.kubelet?{_MANAGED}", event(NODE, "kubelet"), APPLY),
        ),
    ),
    Row(
        "changing of its own events more than message, count and last time",
        Answer.BY_POLICY,
        (
            *(
                _patch_event(f"{OWN}.ours", change)
                for change in (
                    {"involvedObject": about(NODE, OTHER)},
                    {"involvedObject": about(NODE) | {"fieldPath": "spec"}},
                    {"source": {"host": OTHER}},
                    {"reportingInstance": OTHER},
                    {"reportingComponent": "kubelet"},
                    {"reason": "NodeNotReady"},
                    {"type": "Normal"},
                    {"firstTimestamp": "2020-01-01T00:00:00Z"},
                    {"related": about(NODE, OTHER)},
                    {"metadata": {"labels": {"example.com/label": "x"}}},
                    {"metadata": {"finalizers": ["example.com/stays"]}},
                )
            ),
            _patch_event(f"{OWN}.ours", [{"op": "replace", "path": "/source/host", "value": OTHER}], JSON_PATCH),
            _patch_event(f"{MANAGER}.ours", again(f"{OTHER}: x"), place=_DAEMON_SET_EVENTS),
        ),
    ),
    Row(
        "replacing, creating, deleting or listing Nodes; replacing, deleting or reading events; the API events.k8s.io",
        Answer.BY_RBAC,
        (
            Request("PUT", f"/api/v1/nodes/{OWN}", node(OWN)),
            Request("PUT", f"/api/v1/nodes/{OWN}/status", node(OWN)),
            Request("PUT", f"/api/v1/nodes/{OTHER}/status", node(OTHER)),
            Request("POST", "/api/v1/nodes", node("node-c")),
            _apply("node-c", node_state.build_labels_body("node-c", {"toolkit-installer/version": "x"})),
            Request("DELETE", f"/api/v1/nodes/{OWN}"),
            Request("DELETE", "/api/v1/nodes"),
            Request("GET", "/api/v1/nodes"),
            Request("GET", f"/api/v1/nodes/{OWN}/proxy/pods"),
            Request("PUT", f"{_NODE_EVENTS}/{OWN}.ours", event(NODE, "ours")),
            Request("DELETE", f"{_NODE_EVENTS}/{OWN}.ours"),
            Request("DELETE", _NODE_EVENTS),
            Request("GET", _NODE_EVENTS),
            Request(
                "POST", "/api/v1/namespaces/kube-system/events", _metadata(event(NODE, "x"), namespace="kube-system")
            ),
            Request("POST", _NEW_EVENTS, {}),
            _patch_event(f"{OWN}.ours", {"note": "x"}, place=_NEW_EVENTS),
        ),
    ),
    Row(
        "another user's rights, another token, Secrets, pods, the DaemonSet, the policies themselves",
        Answer.BY_RBAC,
        (
            Request("GET", f"/api/v1/nodes/{OWN}", headers={"Impersonate-User": "system:admin"}),
            Request(
                "PATCH",
                f"/api/v1/nodes/{OTHER}",
                _OWN_LABEL,
                MERGE,
                headers={
                    "Impersonate-User": f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}",
                    "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name": OTHER,
                },
            ),
            Request(
                "POST",
                f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}/token",
                {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
            ),
            Request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
            Request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods"),
            Request("PATCH", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{MANAGER}", {}, MERGE),
            Request("DELETE", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{MANAGER}"),
            *(
                Request("DELETE", f"/apis/admissionregistration.k8s.io/v1/{kind}/toolkit-installer-{name}")
                for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
                for name in ("own-node", "own-events")
            ),
        ),
    ),
    Row(
        "not held: reading any Node, its own DaemonSet and its namespace",
        Answer.ALLOWED,
        (
            Request("GET", f"/api/v1/nodes/{OTHER}"),
            Request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{MANAGER}"),
            Request("GET", f"/api/v1/namespaces/{NAMESPACE}"),
            Request("POST", REVIEW_PATH, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
        ),
    ),
    Row(
        "not held: false words about its own node, in the condition and in any number of events",
        Answer.ALLOWED,
        (
            _create(event(NODE, "18f0", reason="NodeNotReady", message="x", count=1000)),
            _create(event(NODE, "18f1", type="Normal", firstTimestamp="2020-01-01T00:00:00Z")),
            _create(event(DAEMON_SET, "18f2", involvedObject=about(DAEMON_SET) | {"uid": "x"})),
            _patch(OWN, {"metadata": {"labels": {"toolkit-installer/any": "x"}}}),
            _patch(OWN, {"metadata": {"labels": {"toolkit-installer/any": None}}}),
        ),
    ),
    Row(
        "not held: the record of who wrote which field of its own Node (`managedFields`)",
        Answer.ALLOWED,
        (_patch(OWN, {"metadata": {"managedFields": [{}]}}),),
    ),
)

WITH_MORE_RIGHTS = (
    Request("PUT", f"/api/v1/nodes/{OTHER}", node(OTHER)),
    Request("PUT", f"/api/v1/nodes/{OWN}", node(OWN) | {"spec": node(OWN)["spec"] | {"unschedulable": True}}),
    Request("PUT", f"/api/v1/nodes/{OTHER}/status", node(OTHER)),
    Request("POST", "/api/v1/nodes", node("node-c")),
    Request("PUT", f"{_NODE_EVENTS}/{OTHER}.theirs", event(NODE, "theirs", OTHER, message="x")),
    Request("PUT", f"{_NODE_EVENTS}/{OWN}.kubelet", event(NODE, "kubelet")),
    Request("PUT", f"{_NODE_EVENTS}/{OWN}.new", event(NODE, "new", reason="NodeNotReady", reportingInstance=OTHER)),
    _create(_metadata(event(DAEMON_SET, "x", involvedObject=_ELSEWHERE), namespace="kube-system")),
    _patch_event(f"{OTHER}.theirs", {"metadata": {"labels": {"example.com/label": "x"}}}, place=_NEW_EVENTS),
    Request(
        "POST",
        _NEW_EVENTS,
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{OWN}.18a9", "namespace": "default"},
            "regarding": about(NODE),
            "eventTime": "2026-11-28T10:00:00.000000Z",
            "type": "Warning",
            "reason": "EngineDown",
            "action": "x",
            "note": "x",
            "reportingController": MANAGER,
            "reportingInstance": OWN,
        },
    ),
)
"""What RBAC refuses above, and the policies refuse where somebody gave the account all rights on Nodes and events."""

PROBES = {
    "toolkit-installer-own-node": _patch(OTHER, _OWN_LABEL),
    "toolkit-installer-own-events": _create(event(NODE, "probe", OTHER)),
}
"""Of each policy a request that it refuses: it holds a moment after it was created."""
