"""Whether a DaemonSet wants its pod on a node, told from the two objects as the API server has them. Pure.

The rules are those by which the DaemonSet controller lets a pod go on that runs already ("Taints and tolerations for
daemon pods", "How Daemon Pods are scheduled" in the Kubernetes documentation): the node's name, the pod template's
nodeSelector and required node affinity, and taints of effect NoExecute. NoSchedule keeps new pods away only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Object: TypeAlias = Mapping[str, Any]

_ADDED_TOLERATIONS: Sequence[Object] = (
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
)
"""Those of effect NoExecute that the controller gives to all of its pods."""
_EVICTS = "NoExecute"
"""The effect of a taint that ends pods which do not tolerate it."""
_PREFERS = "PreferNoSchedule"
_NUMBERS = 1 << 63
"""Numbers are of 64 bits."""
_MOST_DIGITS = 63
"""Of a label."""


class UnclearError(ValueError):
    """An object that is not as this knows them: nothing may be concluded from it."""


def refusal(daemon_set: Object, node: Object) -> str | None:
    """Return in words why the DaemonSet does not want this node; None if it does. Raises UnclearError."""
    pod = _pod(daemon_set)
    metadata = _object(node, "metadata")
    name, labels = _text(metadata, "name"), _object(metadata, "labels")
    if pod.get("nodeName") and pod["nodeName"] != name:
        return f"its pods are for the node {pod['nodeName']}"
    for key, value in _object(pod, "nodeSelector").items():
        if labels.get(key) != value:
            return f"its nodeSelector asks for {key}={value}"
    affinity = _object(_object(pod, "affinity"), "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not _selected(required, name, labels):
        return "its node affinity does not select the node"
    tolerations = [*_objects(pod, "tolerations"), *_ADDED_TOLERATIONS]
    for taint in _objects(_object(node, "spec"), "taints"):
        if taint.get("effect") == _EVICTS and not any(_tolerates(each, taint) for each in tolerations):
            return f"the node has the taint {_text(taint, 'key')}:NoExecute, which it does not tolerate"
    return None


def tolerates(daemon_set: Object, taint: Object) -> bool:
    """Tell whether the DaemonSet's pods may be started on a node with this taint, and stay there for good.

    One that only asks the scheduler to prefer other nodes does neither: the pods of a DaemonSet have no other.
    Raises UnclearError.
    """
    if taint.get("effect") == _PREFERS:
        return True
    pod = _pod(daemon_set)
    for_good = (each for each in _objects(pod, "tolerations") if each.get("tolerationSeconds") is None)
    return any(_tolerates(each, taint) for each in for_good)


def _pod(daemon_set: Object) -> Object:
    """Return what a DaemonSet says of its pods. One that says nothing of them is no answer of the API server's."""
    pod = _object(_object(_object(daemon_set, "spec"), "template"), "spec")
    if not _objects(pod, "containers"):
        raise UnclearError("its pods have no containers")
    return pod


def _selected(required: Any, name: str, labels: Object) -> bool:
    """Tell whether one of the terms, of which each needs all of its requirements, selects the node."""
    if not isinstance(required, Mapping):
        raise UnclearError("its node affinity is no object")
    for term in _objects(required, "nodeSelectorTerms"):
        expressions, fields = _objects(term, "matchExpressions"), _objects(term, "matchFields")
        if any(_text(each, "key") != "metadata.name" for each in fields):
            raise UnclearError("its node affinity asks for a field other than metadata.name")
        wanted = [*((each, labels) for each in expressions), *((each, {"metadata.name": name}) for each in fields)]
        if wanted and all(_meets(each, values) for each, values in wanted):
            return True  # a term that asks for nothing selects nothing
    return False


def _meets(requirement: Object, values: Object) -> bool:
    operator = _text(requirement, "operator")
    if operator not in _OPERATORS:
        raise UnclearError(f"its node affinity has the unknown operator {operator}")
    wanted = requirement.get("values") or []
    if not isinstance(wanted, list):
        raise UnclearError("its node affinity has values that are no list")
    return _OPERATORS[operator](values.get(_text(requirement, "key")), wanted)


def _compares(better: Callable[[int, int], bool]) -> Callable[[Any, list[Any]], bool]:
    def compare(value: Any, wanted: list[Any]) -> bool:
        if not wanted or not isinstance(wanted[0], str) or not isinstance(value, str | None):
            raise UnclearError("its node affinity compares with no number")
        one, other = _number(value or ""), _number(wanted[0])
        return one is not None and other is not None and better(one, other)

    return compare


def _number(text: str) -> int | None:
    """Return the number that Kubernetes reads in a text (Go's strconv.ParseInt), None where it reads none."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return number if -_NUMBERS <= (number := int(text)) < _NUMBERS else None


_OPERATORS: Mapping[str, Callable[[Any, list[Any]], bool]] = {
    "In": lambda value, wanted: value is not None and value in wanted,
    "NotIn": lambda value, wanted: value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _compares(lambda value, wanted: value > wanted),
    "Lt": _compares(lambda value, wanted: value < wanted),
}


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Tell whether a toleration, for however long, covers a taint."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if key and key != taint.get("key"):
        return False
    if operator == "Exists":
        return True
    if operator == "Equal":
        return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")
    raise UnclearError(f"it has a toleration with the unknown operator {operator}")


def _object(parent: Object, key: str) -> Object:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UnclearError(f"{key} is no object")
    return value


def _objects(parent: Object, key: str) -> list[Object]:
    values = parent.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(each, Mapping) for each in values):
        raise UnclearError(f"{key} is no list of objects")
    return values


def _text(parent: Object, key: str) -> str:
    value = parent.get(key)
    if not isinstance(value, str) or not value:
        raise UnclearError(f"{key} is missing")
    return value
