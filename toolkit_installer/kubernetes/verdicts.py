"""Verdicts of a run with `--cleanup auto`: whether a DaemonSet wants its pod on a node, from API responses. Pure.

The rules are those by which the DaemonSet controller lets a running pod stay ("Taints and tolerations for daemon pods",
"How Daemon Pods are scheduled" in the Kubernetes documentation): the node's name, the pod template's nodeSelector and
required node affinity, and taints of effect NoExecute. NoSchedule keeps new pods away only.

The tables of docs/kubernetes.md, "Cleanup that asks first", are these functions; a test compares the two. A run
saves its state of the cleanup while it is asleep.
"""

from __future__ import annotations

import enum
import http
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:  # the saved state of every run has a value of this module, and most runs query no API server
    from toolkit_installer.kubernetes.client import ApiResponse

Object: TypeAlias = Mapping[str, Any]

_ADDED_TOLERATIONS: Sequence[Object] = (
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
)
"""The tolerations of effect NoExecute that the controller adds to all of its pods."""
_EVICTS = "NoExecute"
"""The effect of a taint that ends pods which do not tolerate it."""
_PREFERS = "PreferNoSchedule"
_NUMBERS = 1 << 63
"""Numbers are of 64 bits."""
_MOST_DIGITS = 63
"""Of a label."""


class UnclearError(ValueError):
    """An object has an unknown shape: nothing may be concluded from it."""


def find_scheduling_obstacle(daemon_set: Object, node: Object) -> str | None:
    """Return in words why the DaemonSet does not want this node; None if it does. Raises UnclearError."""
    pod = _get_pod_spec(daemon_set)
    metadata = _get_object(node, "metadata")
    name, labels = _get_text(metadata, "name"), _get_object(metadata, "labels")
    if pod.get("nodeName") and pod["nodeName"] != name:
        return f"its pods are for the node {pod['nodeName']}"
    for key, value in _get_object(pod, "nodeSelector").items():
        if labels.get(key) != value:
            return f"its nodeSelector asks for {key}={value}"
    affinity = _get_object(_get_object(pod, "affinity"), "nodeAffinity")
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not _matches_affinity(required, name, labels):
        return "its node affinity does not select the node"
    tolerations = [*_get_objects(pod, "tolerations"), *_ADDED_TOLERATIONS]
    for taint in _get_objects(_get_object(node, "spec"), "taints"):
        if taint.get("effect") == _EVICTS and not any(_tolerates(each, taint) for each in tolerations):
            return f"the node has the taint {_get_text(taint, 'key')}:NoExecute, which it does not tolerate"
    return None


def tolerates_taint(daemon_set: Object, taint: Object) -> bool:
    """Return whether the DaemonSet's pods may be started on a node with this taint, and stay there for good.

    A PreferNoSchedule taint stops neither: the pods of a DaemonSet have no other node. Raises UnclearError.
    """
    if taint.get("effect") == _PREFERS:
        return True
    pod = _get_pod_spec(daemon_set)
    for_good = (each for each in _get_objects(pod, "tolerations") if each.get("tolerationSeconds") is None)
    return any(_tolerates(each, taint) for each in for_good)


def _get_pod_spec(daemon_set: Object) -> Object:
    """Return a DaemonSet's pod spec. Raises UnclearError for one without containers, which no API server returns."""
    pod = _get_object(_get_object(_get_object(daemon_set, "spec"), "template"), "spec")
    if not _get_objects(pod, "containers"):
        raise UnclearError("its pods have no containers")
    return pod


def _matches_affinity(required: Any, name: str, labels: Object) -> bool:
    """Return whether a term selects the node: all requirements of the term are met."""
    if not isinstance(required, Mapping):
        raise UnclearError("its node affinity is no object")
    for term in _get_objects(required, "nodeSelectorTerms"):
        expressions, fields = _get_objects(term, "matchExpressions"), _get_objects(term, "matchFields")
        if any(_get_text(each, "key") != "metadata.name" for each in fields):
            raise UnclearError("its node affinity asks for a field other than metadata.name")
        wanted = [*((each, labels) for each in expressions), *((each, {"metadata.name": name}) for each in fields)]
        if wanted and all(_meets_requirement(each, values) for each, values in wanted):
            return True  # a term without requirements selects nothing
    return False


def _meets_requirement(requirement: Object, values: Object) -> bool:
    operator = _get_text(requirement, "operator")
    if operator not in _OPERATORS:
        raise UnclearError(f"its node affinity has the unknown operator {operator}")
    wanted = requirement.get("values") or []
    if not isinstance(wanted, list):
        raise UnclearError("its node affinity has values that are no list")
    return _OPERATORS[operator](values.get(_get_text(requirement, "key")), wanted)


def _build_comparison(better: Callable[[int, int], bool]) -> Callable[[Any, list[Any]], bool]:
    def compare(value: Any, wanted: list[Any]) -> bool:
        if not wanted or not isinstance(wanted[0], str) or not isinstance(value, str | None):
            raise UnclearError("its node affinity compares with no number")
        one, other = _parse_number(value or ""), _parse_number(wanted[0])
        return one is not None and other is not None and better(one, other)

    return compare


def _parse_number(text: str) -> int | None:
    """Return the number that Kubernetes parses from a text (Go's strconv.ParseInt), None if it is no number."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return number if -_NUMBERS <= (number := int(text)) < _NUMBERS else None


_OPERATORS: Mapping[str, Callable[[Any, list[Any]], bool]] = {
    "In": lambda value, wanted: value is not None and value in wanted,
    "NotIn": lambda value, wanted: value not in wanted,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _build_comparison(lambda value, wanted: value > wanted),
    "Lt": _build_comparison(lambda value, wanted: value < wanted),
}


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Return whether a toleration, for however long, covers a taint."""
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


def _get_object(parent: Object, key: str) -> Object:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UnclearError(f"{key} is no object")
    return value


def _get_objects(parent: Object, key: str) -> list[Object]:
    values = parent.get(key)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(each, Mapping) for each in values):
        raise UnclearError(f"{key} is no list of objects")
    return values


def _get_text(parent: Object, key: str) -> str:
    value = parent.get(key)
    if not isinstance(value, str) or not value:
        raise UnclearError(f"{key} is missing")
    return value


class CleanupState(msgspec.Struct, frozen=True):
    """What a run knows of itself and of the DaemonSet; saved while the run is asleep."""

    bare: bool = False
    """Nothing was installed on the node when the run started: this run installed all that is there now."""
    held: bool = False
    """Nothing may be changed before the API server says that the DaemonSet wants the node."""
    wanted: bool = False
    """The API server has said so once, to this run."""
    namespace: bool = False
    """The API server has returned the namespace to this run: a 403 for it is a change."""
    accepted: tuple[str, ...] = ()
    """The identities (`Bearer.identity`) that the API server has accepted from this run."""


_REFUSALS = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
DEFINITE = (*_REFUSALS, http.HTTPStatus.OK, http.HTTPStatus.NOT_FOUND)
"""Statuses of a healthy API server; any other status is a failure that may pass."""
_ERROR_KIND = "Status"
"""The kind of the API server's own error responses; a response of a proxy before it proves nothing."""


class QueriedObject(enum.StrEnum):
    """The three objects that are queried."""

    DAEMON_SET = "DaemonSet"
    NAMESPACE = "Namespace"
    NODE = "Node"


class CleanupVerdict(enum.StrEnum):
    """The result of the responses."""

    WANTED = "wanted"
    UNWANTED = "not wanted"
    UNAUTHORIZED = "401"
    FORBIDDEN = "403"
    UNKNOWN = "no answer"


class ExplainedVerdict(msgspec.Struct, frozen=True):
    """The verdict, and why in words."""

    verdict: CleanupVerdict
    why: str


# --- the verdict of the responses ---


def judge_responses(answers: Mapping[QueriedObject, ApiResponse], *, namespace: bool = False) -> ExplainedVerdict:
    """Return the verdict of the responses. `namespace`: the namespace could be read before.

    Only a definite response of the API server counts as unwanted: a timeout, a failure, or a response that cannot be
    parsed is no reason to reload an engine.
    """
    for asked, answer in answers.items():
        if gone := _describe_deletion(asked, answer):
            return ExplainedVerdict(CleanupVerdict.UNWANTED, gone)
    for verdict in (CleanupVerdict.UNAUTHORIZED, CleanupVerdict.FORBIDDEN, CleanupVerdict.UNKNOWN):
        for asked, answer in answers.items():
            if _judge_response(asked, answer, namespace=namespace) is verdict:
                return ExplainedVerdict(verdict, f"the {asked}: {describe_response(answer)}")
    if not {QueriedObject.DAEMON_SET, QueriedObject.NODE} <= set(answers):
        return ExplainedVerdict(CleanupVerdict.UNKNOWN, "not all was asked for")
    try:
        refusal = find_scheduling_obstacle(answers[QueriedObject.DAEMON_SET].body, answers[QueriedObject.NODE].body)
    except UnclearError as error:
        return ExplainedVerdict(CleanupVerdict.UNKNOWN, f"the DaemonSet is not understood: {error}")
    if refusal is not None:
        return ExplainedVerdict(CleanupVerdict.UNWANTED, f"the DaemonSet does not want the node: {refusal}")
    return ExplainedVerdict(CleanupVerdict.WANTED, "the DaemonSet is there and wants the node")


def _judge_response(asked: QueriedObject, answer: ApiResponse, *, namespace: bool) -> CleanupVerdict:
    """Return the verdict of one response alone, if it does not say that the object is gone."""
    if is_queried_object(asked, answer):
        return CleanupVerdict.WANTED
    if is_refused(answer, http.HTTPStatus.UNAUTHORIZED):
        return CleanupVerdict.UNAUTHORIZED
    if not is_refused(answer, http.HTTPStatus.FORBIDDEN):
        return CleanupVerdict.UNKNOWN
    # many ServiceAccounts may not read the namespace: the other two objects suffice. If it could be read before, the
    # permission may have been deleted since the query for the DaemonSet, together with the namespace.
    return CleanupVerdict.WANTED if asked is QueriedObject.NAMESPACE and not namespace else CleanupVerdict.FORBIDDEN


def is_queried_object(asked: QueriedObject, answer: ApiResponse) -> bool:
    """Return whether the response is the queried object."""
    return answer.status == http.HTTPStatus.OK and answer.kind == asked


def is_refused(answer: ApiResponse, status: http.HTTPStatus) -> bool:
    """Return whether the API server itself refuses with this status."""
    return answer.status == status and answer.kind == _ERROR_KIND


def accepted_identities(answers: Collection[ApiResponse]) -> frozenset[str]:
    """Return the identities that the API server accepted: those with a response of its own other than 401."""
    return frozenset(
        answer.bearer.identity
        for answer in answers
        if answer.bearer is not None
        and (
            answer.status in (http.HTTPStatus.OK, http.HTTPStatus.CREATED)
            or any(is_refused(answer, status) for status in (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND))
        )
        and answer.kind
    )


def _describe_deletion(asked: QueriedObject, answer: ApiResponse) -> str:
    """Return in words that the object is or is being deleted; an empty text if not, or if unknown."""
    metadata = answer.body.get("metadata")
    going = isinstance(metadata, Mapping) and metadata.get("deletionTimestamp") is not None
    if is_queried_object(asked, answer) and going and asked is not QueriedObject.NODE:
        return f"the {asked} is being deleted"
    return f"the {asked} does not exist" if is_refused(answer, http.HTTPStatus.NOT_FOUND) else ""


def describe_response(answer: ApiResponse) -> str:
    """Return a response in words."""
    if answer.status is None:
        return f"no answer, {answer.words}"
    return f"HTTP {answer.status}{', ' if answer.words else ''}{answer.words}"


# --- its consequences for the node ---


def must_hold(verdict: CleanupVerdict, *, bare: bool) -> bool:
    """Return whether a run with this first verdict changes nothing until the API server says that the node is wanted.

    An administrator who deletes the DaemonSet while its pod starts has often deleted the pod's permission to query
    before. An API server that does not answer is another case: a node that boots may have no network yet.
    """
    return verdict is CleanupVerdict.UNWANTED or (
        bare and verdict in (CleanupVerdict.UNAUTHORIZED, CleanupVerdict.FORBIDDEN)
    )


def must_revert(verdict: CleanupVerdict, standing: CleanupState, *, deleted: bool) -> bool:
    """Return whether a run that is told to stop reverts the installation.

    `deleted`: the verdict is 401, and that is known to mean a deletion (no doubt was found, and it has lasted).
    """
    if verdict in (CleanupVerdict.WANTED, CleanupVerdict.UNWANTED):
        return verdict is CleanupVerdict.UNWANTED
    if verdict is CleanupVerdict.UNAUTHORIZED and deleted:
        return True
    return standing.bare and not standing.held and not standing.wanted  # this run installed it, and was told nothing


def find_doubt(refused: ApiResponse, review: ApiResponse, known: Collection[str], clock: float) -> str:
    """Return why a 401 does not mean a deletion; an empty text if it means one, provided that it lasts.

    `refused` is the 401 response, `review` the API server's next response to the SelfSubjectReview; `known` are the
    identities that it accepted before, and `clock` is the node's time, in seconds since 1970. The server's time, from
    its responses, counts as well: a token that has expired on either clock is expired.
    """
    if not is_refused(review, http.HTTPStatus.UNAUTHORIZED):
        return f"asked for whom it takes this pod, the API server says: {describe_response(review)}"
    for answer in (refused, review):
        if answer.bearer is None:
            return "the token does not say whose it is"
        if not answer.bearer.good(clock, clock if answer.date is None else answer.date):
            return "the token is not good by its own times"
        if answer.bearer.identity not in known:
            return "the API server has not accepted this identity since this run began"
    return ""
