"""Whether the DaemonSet that this run's pod is of still wants the node: what `--cleanup auto` depends on.

Whoever deletes the DaemonSet deletes its ServiceAccount, its permissions and its namespace in the same breath, in no
order that could be relied on. So the same question is asked once at the start: who may not ask any more, and could
then, is being deleted.
"""

from __future__ import annotations

import dataclasses
import enum
import http
import time
import urllib.parse
from collections.abc import Iterable, Mapping

from toolkit_installer import log, scheduling
from toolkit_installer.node import signals
from toolkit_installer.node.kubernetes_api import Answer, ApiServer, UnreadableError
from toolkit_installer.settings import ClusterSettings

_START_SECONDS = 5.0
_LEAVE_SECONDS = 10.0
"""How long may be asked. What is left of a pod's 30 s, if nobody gave it more, is for the cleanup."""
_ONE_SECONDS = 5.0
_PAUSE_SECONDS = 0.5
_FORBIDDEN = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
_ERROR = "Status"
"""The kind of what the API server itself says of an error; what a proxy before it says proves nothing."""
_STAYS = "the node stays configured"


class Asked(enum.StrEnum):
    """The three objects that are asked for."""

    DAEMON_SET = "DaemonSet"
    NAMESPACE = "Namespace"
    NODE = "Node"


class Verdict(enum.StrEnum):
    """What follows."""

    WANTED = "wanted"
    UNWANTED = "unwanted"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The verdict, and why in words."""

    verdict: Verdict
    why: str


def judge(answers: Mapping[Asked, Answer], answered: Iterable[Asked]) -> Finding:
    """Return what the answers mean, when `answered` were answered at the start. Pure.

    Only what the API server says for certain counts as unwanted: what takes too long, fails, or is not understood, is
    no reason to reload an engine.
    """
    unclear = ""
    for asked in Asked:
        if asked not in answers:
            continue
        answer = answers[asked]
        gone = _gone(asked, answer, may_have_asked=asked in answered)
        if gone:
            return Finding(Verdict.UNWANTED, gone)
        never_allowed = asked is Asked.NAMESPACE and answer.status in _FORBIDDEN and answer.kind == _ERROR
        if not _is_told(asked, answer) and not never_allowed:
            unclear = unclear or f"the {asked}: {_said(answer)}"
    if unclear or not {Asked.DAEMON_SET, Asked.NODE} <= set(answers):
        return Finding(Verdict.UNKNOWN, unclear)
    try:
        refusal = scheduling.refusal(answers[Asked.DAEMON_SET].body, answers[Asked.NODE].body)
    except scheduling.UnclearError as error:
        return Finding(Verdict.UNKNOWN, f"the DaemonSet is not understood: {error}")
    if refusal is not None:
        return Finding(Verdict.UNWANTED, f"the DaemonSet does not want the node: {refusal}")
    return Finding(Verdict.WANTED, "the DaemonSet is there and wants the node")


def _is_told(asked: Asked, answer: Answer) -> bool:
    return answer.status == http.HTTPStatus.OK and answer.kind == asked


def _gone(asked: Asked, answer: Answer, *, may_have_asked: bool) -> str:
    """Return in words that the object is gone or going; nothing if it is not, or that cannot be told."""
    metadata = answer.body.get("metadata")
    going = isinstance(metadata, Mapping) and metadata.get("deletionTimestamp") is not None
    if _is_told(asked, answer) and going and asked is not Asked.NODE:
        return f"the {asked} is being deleted"
    if answer.kind != _ERROR:
        return ""
    if answer.status == http.HTTPStatus.NOT_FOUND:
        return f"the {asked} does not exist"
    if answer.status in _FORBIDDEN and may_have_asked:
        return f"this pod may not ask for the {asked} any more: {_said(answer)}"
    return ""


def _said(answer: Answer) -> str:
    if answer.status is None:
        return f"no answer, {answer.words}"
    return f"HTTP {answer.status}{', ' if answer.words else ''}{answer.words}"


class Question:
    """Asks at the start, until somebody has answered, and when it is told to stop.

    `answered` is what has to be remembered in between.
    """

    def __init__(self, cluster: ClusterSettings, answered: Iterable[Asked] = ()) -> None:
        self._cluster = cluster
        self._api = ApiServer(cluster.host, cluster.port, cluster.service_account)
        self.answered = frozenset(answered)

    @property
    def open(self) -> bool:
        """Whether the API server has yet to answer: until then, a refusal at the end proves no deletion."""
        return Asked.DAEMON_SET not in self.answered

    def ask_at_start(self) -> None:
        """Ask, remember who answered, and say what a cleanup would do now."""
        self._say(self._asked())

    def ask_again(self) -> None:
        """Ask once more where nobody answered so far; what is still unknown is not said over and over."""
        if not self.open:
            return
        answers = self._asked()
        if Asked.DAEMON_SET in self.answered:
            self._say(answers)
        else:
            log.get().debug("The API server still does not say", why=judge(answers, ()).why)

    def _asked(self) -> dict[Asked, Answer]:
        answers = self._ask(_START_SECONDS)
        self.answered = frozenset(asked for asked, answer in answers.items() if _is_told(asked, answer))
        return answers

    def _say(self, answers: Mapping[Asked, Answer]) -> None:
        found = judge(answers, ())
        about = {"daemonset": self._cluster.daemon_set, "node": self._cluster.node, "why": found.why}
        if found.verdict is Verdict.WANTED:
            log.get().info("The DaemonSet wants this node: it is cleaned up once that changes", **about)
        elif found.verdict is Verdict.UNWANTED:
            log.get().warning("The node would be cleaned up, if this run were told to stop now", **about)
        else:
            log.get().warning(
                "The API server does not say whether the DaemonSet wants this node: it is asked again, and as long as "
                f"it has not said so, {_STAYS} when this run is told to stop",
                hint="the ServiceAccount needs get on this DaemonSet, on this namespace and on nodes",
                **about,
            )
        if Asked.NAMESPACE in answers and answers[Asked.NAMESPACE].status in _FORBIDDEN:
            log.get().warning(
                "The namespace cannot be looked at: when it is deleted as a whole, nodes may stay configured",
                hint="the ServiceAccount needs get on this namespace",
            )

    def unwanted(self) -> bool:
        """Ask whether the node is to be cleaned up, and say what was found."""
        found = judge(self._ask(_LEAVE_SECONDS), self.answered)
        about = {"daemonset": self._cluster.daemon_set, "node": self._cluster.node, "why": found.why}
        if found.verdict is Verdict.WANTED:
            log.get().info(f"The DaemonSet still wants this node: {_STAYS}", **about)
        elif found.verdict is Verdict.UNWANTED:
            log.get().info("The DaemonSet does not want this node any more", **about)
        else:
            log.get().warning(
                f"The API server does not say whether the DaemonSet still wants this node: {_STAYS}",
                hint="toolkit-installer uninstall takes everything back",
                **about,
            )
        return found.verdict is Verdict.UNWANTED

    def _ask(self, seconds: float) -> dict[Asked, Answer]:
        """Return what was answered; who says nothing is asked again, until `seconds` are over.

        The DaemonSet comes first: where it is gone or nobody answers, the others are not asked for.
        """
        deadline = time.monotonic() + seconds
        answers: dict[Asked, Answer] = {}
        for asked in Asked:
            answer = self._one(asked, deadline)
            answers[asked] = answer
            if asked is Asked.DAEMON_SET and not _is_told(asked, answer):
                break
        return answers

    def _one(self, asked: Asked, deadline: float) -> Answer:
        while True:
            remaining = max(0.1, deadline - time.monotonic())
            try:
                answer = self._api.get(self._path(asked), min(_ONE_SECONDS, remaining))
            except UnreadableError as error:
                answer = Answer(None, words=str(error))
            if answer.status in (*_FORBIDDEN, http.HTTPStatus.OK, http.HTTPStatus.NOT_FOUND):
                return answer
            if time.monotonic() + _PAUSE_SECONDS >= deadline:
                return answer
            log.get().debug("Asking the API server again", about=asked, said=_said(answer))
            signals.rest(_PAUSE_SECONDS)

    def _path(self, asked: Asked) -> str:
        """Return where the API server has the object. Raises UnreadableError."""
        if asked is Asked.NODE:
            return f"/api/v1/nodes/{urllib.parse.quote(self._cluster.node, safe='')}"
        namespace = urllib.parse.quote(self._api.namespace(), safe="")
        if asked is Asked.NAMESPACE:
            return f"/api/v1/namespaces/{namespace}"
        name = urllib.parse.quote(self._cluster.daemon_set, safe="")
        return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
