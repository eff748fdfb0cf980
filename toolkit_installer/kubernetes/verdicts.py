"""What a run with `--cleanup auto` has to remember while it is asleep.

What the API server's answers mean for a run with `--cleanup auto`, and what follows for the node. Pure.

The tables of docs/kubernetes.md, "Cleanup that asks first", are these functions; a test holds the two to each other.
"""

from __future__ import annotations

import enum
import http
from collections.abc import Collection, Mapping

import msgspec

from toolkit_installer.kubernetes import scheduling
from toolkit_installer.kubernetes.client import Answer


class Standing(msgspec.Struct, frozen=True):
    """What a run knows of itself and of the DaemonSet; kept while the run is asleep."""

    bare: bool = False
    """Nothing was installed on the node when the run started: whatever is installed now, this run installed."""
    held: bool = False
    """Nothing may be changed before the API server says that the DaemonSet wants the node."""
    wanted: bool = False
    """The API server has said so once, to this run."""
    namespace: bool = False
    """The API server has shown the namespace to this run: a 403 for it is a change."""
    accepted: tuple[str, ...] = ()
    """The identities (`Bearer.identity`) that the API server has accepted from this run."""


_REFUSALS = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
DEFINITE = (*_REFUSALS, http.HTTPStatus.OK, http.HTTPStatus.NOT_FOUND)
"""What an API server answers that is well; anything else is a failure that may pass."""
_ERROR = "Status"
"""The kind of what the API server itself says of an error; what a proxy before it says proves nothing."""


class Asked(enum.StrEnum):
    """The three objects that are asked for."""

    DAEMON_SET = "DaemonSet"
    NAMESPACE = "Namespace"
    NODE = "Node"


class Verdict(enum.StrEnum):
    """What the answers come to."""

    WANTED = "wanted"
    UNWANTED = "not wanted"
    STRANGER = "401"
    FORBIDDEN = "403"
    UNKNOWN = "no answer"


class Finding(msgspec.Struct, frozen=True):
    """The verdict, and why in words."""

    verdict: Verdict
    why: str


# --- what the answers come to ---


def judge(answers: Mapping[Asked, Answer], *, namespace: bool = False) -> Finding:
    """Return what the answers mean. `namespace`: it could be looked at before.

    Only what the API server says for certain counts as unwanted: what takes too long, fails, or is not understood, is
    no reason to reload an engine.
    """
    for asked, answer in answers.items():
        if gone := _gone(asked, answer):
            return Finding(Verdict.UNWANTED, gone)
    for verdict in (Verdict.STRANGER, Verdict.FORBIDDEN, Verdict.UNKNOWN):
        for asked, answer in answers.items():
            if _alone(asked, answer, namespace=namespace) is verdict:
                return Finding(verdict, f"the {asked}: {said(answer)}")
    if not {Asked.DAEMON_SET, Asked.NODE} <= set(answers):
        return Finding(Verdict.UNKNOWN, "not all was asked for")
    try:
        refusal = scheduling.refusal(answers[Asked.DAEMON_SET].body, answers[Asked.NODE].body)
    except scheduling.UnclearError as error:
        return Finding(Verdict.UNKNOWN, f"the DaemonSet is not understood: {error}")
    if refusal is not None:
        return Finding(Verdict.UNWANTED, f"the DaemonSet does not want the node: {refusal}")
    return Finding(Verdict.WANTED, "the DaemonSet is there and wants the node")


def _alone(asked: Asked, answer: Answer, *, namespace: bool) -> Verdict:
    """Return the verdict that follows from one answer alone, of those that do not say that the object is gone."""
    if is_told(asked, answer):
        return Verdict.WANTED
    if is_refused(answer, http.HTTPStatus.UNAUTHORIZED):
        return Verdict.STRANGER
    if not is_refused(answer, http.HTTPStatus.FORBIDDEN):
        return Verdict.UNKNOWN
    # many do not let the pod look at its namespace: the two others are enough. Where it could, the permission may have
    # been deleted since the DaemonSet was asked for, with all of the namespace.
    return Verdict.WANTED if asked is Asked.NAMESPACE and not namespace else Verdict.FORBIDDEN


def is_told(asked: Asked, answer: Answer) -> bool:
    """Tell whether the answer is the object that was asked for."""
    return answer.status == http.HTTPStatus.OK and answer.kind == asked


def is_refused(answer: Answer, status: http.HTTPStatus) -> bool:
    """Tell whether the API server itself refuses with this status."""
    return answer.status == status and answer.kind == _ERROR


def accepted(answers: Collection[Answer]) -> frozenset[str]:
    """Return the identities that the API server accepted: it said more of what was asked for than that it is 401."""
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


def _gone(asked: Asked, answer: Answer) -> str:
    """Return in words that the object was or is being deleted; an empty text where it was not, or nobody can tell."""
    metadata = answer.body.get("metadata")
    going = isinstance(metadata, Mapping) and metadata.get("deletionTimestamp") is not None
    if is_told(asked, answer) and going and asked is not Asked.NODE:
        return f"the {asked} is being deleted"
    return f"the {asked} does not exist" if is_refused(answer, http.HTTPStatus.NOT_FOUND) else ""


def said(answer: Answer) -> str:
    """Return an answer in words."""
    if answer.status is None:
        return f"no answer, {answer.words}"
    return f"HTTP {answer.status}{', ' if answer.words else ''}{answer.words}"


# --- what follows for the node ---


def must_hold(verdict: Verdict, *, bare: bool) -> bool:
    """Tell whether a run whose first answers come to this changes nothing, until it is told that the node is wanted.

    Who deletes the DaemonSet while its pod starts has often deleted what lets the pod ask before. An API server that
    says nothing is another thing: a node that boots may have no network yet.
    """
    return verdict is Verdict.UNWANTED or (bare and verdict in (Verdict.STRANGER, Verdict.FORBIDDEN))


def must_revert(verdict: Verdict, standing: Standing, *, deleted: bool) -> bool:
    """Tell whether a run that is told to stop reverts what is installed.

    `deleted`: with a verdict of 401, that this is known to be a deletion (`doubt`, and time).
    """
    if verdict in (Verdict.WANTED, Verdict.UNWANTED):
        return verdict is Verdict.UNWANTED
    if verdict is Verdict.STRANGER and deleted:
        return True
    return standing.bare and not standing.held and not standing.wanted  # this run installed it, and was told nothing


def doubt(refused: Answer, review: Answer, known: Collection[str], clock: float) -> str:
    """Return why a 401 does not mean a deletion; an empty text where it does mean one, if it lasts.

    `refused` is the answer of 401, `review` what the API server then said to the SelfSubjectReview; `known` are the
    identities that it accepted before, and `clock` is the node's time, in seconds since 1970. The server's own, from
    its answers, counts as well: a token that is over on either of the two is.
    """
    if not is_refused(review, http.HTTPStatus.UNAUTHORIZED):
        return f"asked for whom it takes this pod, the API server says: {said(review)}"
    for answer in (refused, review):
        if answer.bearer is None:
            return "the token does not say whose it is"
        if not answer.bearer.good(clock, clock if answer.date is None else answer.date):
            return "the token is not good by its own times"
        if answer.bearer.identity not in known:
            return "the API server has not accepted this identity since this run began"
    return ""
