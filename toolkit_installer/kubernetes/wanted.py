"""Queries whether the DaemonSet of this run's pod still wants the node: the basis of `--cleanup auto`.

Deleting the DaemonSet usually deletes its ServiceAccount, permissions and namespace at the same time, in no reliable
order. So the API server is queried at the start, before anything is changed, and again until it has said once that the
node is wanted; and it is queried when the run is told to stop. `verdicts` decides what follows from the responses.
"""

from __future__ import annotations

import http
import time
import urllib.parse
from collections.abc import Mapping

import msgspec

from toolkit_installer import log
from toolkit_installer.kubernetes import verdicts
from toolkit_installer.kubernetes.client import ApiResponse, ApiServer, UnreadableError
from toolkit_installer.kubernetes.verdicts import CleanupState, CleanupVerdict, ExplainedVerdict, QueriedObject
from toolkit_installer.node import signals
from toolkit_installer.settings import ClusterSettings

_START_SECONDS = 5.0
"""Limit of the queries at the start: the node is to be configured soon."""
_SETTLING_SECONDS = 11.0
"""Limit of the queries at the end, and how long a 401 has to last before it counts as final.

An API server goes on accepting a token for 10 s after it was deleted (k8s.io/kubernetes/pkg/kubeapiserver/options,
TokenSuccessCacheTTL), and one of several may know for a moment less than the others. The rest of a pod's 30 s, its
default, is for the cleanup.
"""
_LEAVE_SECONDS = 30.0
"""Limit of all queries at the end: a late 401 has to last as well."""
_ONE_SECONDS = 5.0
_LEAST_SECONDS = 1.0
"""The least and the most seconds of a request."""
_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 4.0
_STAYS = "the node stays configured"
_REVERTED = "what this run installed is taken back"
_HINT = "the ServiceAccount needs get on this DaemonSet, on this namespace and on nodes"


class DaemonSetQuery:
    """The query at the start, until it is answered, and at the end; `standing` is to be saved in between."""

    def __init__(self, cluster: ClusterSettings) -> None:
        self._cluster = cluster
        self._api = ApiServer(cluster.host, cluster.port, cluster.service_account)
        self.cleanup_state = CleanupState()

    def query_at_start(self, *, bare: bool) -> None:
        """Query whether the node may be changed, and log what a cleanup would do now. Raises Stopped.

        `bare`: nothing is installed on the node.
        """
        # until there is a response: a run that is told to stop meanwhile has changed nothing
        self.cleanup_state = msgspec.structs.replace(self.cleanup_state, bare=bare, held=True)
        answers, found = self._query_briefly()
        held = verdicts.must_hold(found.verdict, bare=bare)
        self.cleanup_state = msgspec.structs.replace(self.cleanup_state, held=held)
        self._log_verdict(answers, found)

    def query_again(self, *, loudly: bool = False) -> None:
        """Query again until a verdict was "wanted"; an unchanged result is logged only if `loudly`.

        Raises Stopped.
        """
        if self.cleanup_state.wanted:
            return
        answers, found = self._query_briefly()
        if (
            loudly
            or self.cleanup_state.wanted
            or (found.verdict is CleanupVerdict.UNWANTED and not self.cleanup_state.held)
        ):
            self._log_verdict(answers, found)
        else:
            log.get().debug("The API server still does not say that the DaemonSet wants this node", why=found.why)

    def _query_briefly(self) -> tuple[dict[QueriedObject, ApiResponse], ExplainedVerdict]:
        """Query for a short time, and save a verdict of wanted."""
        answers = self._query_objects(time.monotonic() + _START_SECONDS, patient=True)
        found = self._judge(answers)
        if found.verdict is CleanupVerdict.WANTED:
            self.cleanup_state = msgspec.structs.replace(self.cleanup_state, wanted=True, held=False)
        return answers, found

    def _log_verdict(self, answers: Mapping[QueriedObject, ApiResponse], found: ExplainedVerdict) -> None:
        about = {"daemonset": self._cluster.daemon_set, "node": self._cluster.node, "why": found.why}
        if found.verdict is CleanupVerdict.WANTED:
            log.get().info("The DaemonSet wants this node: it is cleaned up once that changes", key="wanted", **about)
        elif self.cleanup_state.held:
            log.get().warning(
                "Nothing is changed on this node: the API server does not say that the DaemonSet wants it, and is "
                "asked again",
                key="held",
                hint=_HINT,
                **about,
            )
        elif found.verdict is CleanupVerdict.UNWANTED:
            log.get().warning(
                "The node would be cleaned up, if this run were told to stop now", key="unwanted-at-start", **about
            )
        else:
            log.get().warning(
                "The API server does not say whether the DaemonSet wants this node: it is asked again, and if this run "
                f"is told to stop before it has said so, {_REVERTED if self.cleanup_state.bare else _STAYS}",
                key="wanted-unknown",
                hint=_HINT,
                **about,
            )
        if QueriedObject.NAMESPACE in answers and answers[QueriedObject.NAMESPACE].status == http.HTTPStatus.FORBIDDEN:
            log.get().warning(
                "The namespace cannot be looked at: when it is deleted as a whole, nodes may stay configured",
                key="namespace-unreadable",
                hint="the ServiceAccount needs get on this namespace",
            )

    def is_cleanup_due(self) -> bool:
        """Return whether the node is to be cleaned up, and log why."""
        found, deleted = self._query_until_settled()
        about = {"daemonset": self._cluster.daemon_set, "node": self._cluster.node, "why": found.why}
        back = verdicts.must_revert(found.verdict, self.cleanup_state, deleted=deleted)
        if found.verdict is CleanupVerdict.WANTED:
            log.get().info(f"The DaemonSet still wants this node: {_STAYS}", key="still-wanted", **about)
        elif found.verdict is CleanupVerdict.UNWANTED:
            log.get().info("The DaemonSet does not want this node any more", key="unwanted", **about)
        elif deleted:
            log.get().info("The pod's identity was deleted, and the DaemonSet with it", key="identity-deleted", **about)
        elif back:
            log.get().warning(
                f"The API server never said to this run that the DaemonSet wants this node: {_REVERTED}",
                key="never-wanted",
                **about,
            )
        else:
            log.get().warning(
                f"The API server does not say whether the DaemonSet still wants this node: {_STAYS}",
                key="still-wanted-unknown",
                hint="toolkit-installer uninstall takes everything back",
                **about,
            )
        return back

    def _query_until_settled(self) -> tuple[ExplainedVerdict, bool]:
        """Query until the verdict is certain or has lasted; return it, and whether a 401 means a deletion."""
        began = time.monotonic()
        since: float | None = None
        """The start of an unbroken series of 401s without a doubt, None outside of a series."""
        pause = _PAUSE_SECONDS
        while True:
            enough = began + (_SETTLING_SECONDS if since is None else _LEAVE_SECONDS)
            answers = self._query_objects(max(enough, time.monotonic() + _LEAST_SECONDS), patient=False)
            found = self._judge(answers)
            now = time.monotonic()
            if verdicts.accepted_identities(answers.values()):
                since = None  # also in a round that another response leaves without a verdict
            if found.verdict is CleanupVerdict.UNAUTHORIZED:
                refused = next(
                    each for each in answers.values() if verdicts.is_refused(each, http.HTTPStatus.UNAUTHORIZED)
                )
                review = self._api.review(_ONE_SECONDS)  # for whom does the API server take this pod?
                self._save_identities(review)
                doubt = verdicts.find_doubt(refused, review, self.cleanup_state.accepted, time.time())
                found = msgspec.structs.replace(found, why=f"{found.why}; {doubt}" if doubt else found.why)
                since = None if doubt else since or now
            elif found.verdict is not CleanupVerdict.UNKNOWN:  # no response for a while reverts nothing
                since = None
            if found.verdict in (CleanupVerdict.WANTED, CleanupVerdict.UNWANTED):
                return found, False
            if found.verdict is CleanupVerdict.UNAUTHORIZED and since is not None and now >= since + _SETTLING_SECONDS:
                return found, True
            if now >= began + (_SETTLING_SECONDS if since is None else _LEAVE_SECONDS):
                return found, False
            log.get().debug("Asking the API server again", said=found.why)
            signals.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _query_objects(self, deadline: float, *, patient: bool) -> dict[QueriedObject, ApiResponse]:
        """Return the responses of one round.

        With `patient`, a query without a definite response is repeated until the deadline. The DaemonSet comes first:
        if it is gone or the server is silent, the other objects are not queried.
        """
        answers: dict[QueriedObject, ApiResponse] = {}
        for asked in QueriedObject:
            answer = self._query_object(asked, deadline, patient=patient)
            answers[asked] = answer
            self._save_identities(answer)
            if asked is QueriedObject.DAEMON_SET and not verdicts.is_queried_object(asked, answer):
                break
        return answers

    def _judge(self, answers: Mapping[QueriedObject, ApiResponse]) -> ExplainedVerdict:
        """Return the verdict of the responses, and save whether the namespace could be read."""
        found = verdicts.judge_responses(answers, namespace=self.cleanup_state.namespace)
        if QueriedObject.NAMESPACE in answers and verdicts.is_queried_object(
            QueriedObject.NAMESPACE, answers[QueriedObject.NAMESPACE]
        ):
            self.cleanup_state = msgspec.structs.replace(self.cleanup_state, namespace=True)
        return found

    def _save_identities(self, answer: ApiResponse) -> None:
        known = frozenset(self.cleanup_state.accepted) | verdicts.accepted_identities([answer])
        self.cleanup_state = msgspec.structs.replace(self.cleanup_state, accepted=tuple(sorted(known)))

    def _query_object(self, asked: QueriedObject, deadline: float, *, patient: bool) -> ApiResponse:
        while True:
            remaining = max(0.1, deadline - time.monotonic())
            try:
                answer = self._api.get(self._path(asked), min(_ONE_SECONDS, remaining))
            except UnreadableError as error:
                answer = ApiResponse(None, words=str(error))
            late = time.monotonic() + _PAUSE_SECONDS >= deadline
            if answer.status in verdicts.DEFINITE or not patient or late:
                return answer
            log.get().debug("Asking the API server again", about=asked, said=verdicts.describe_response(answer))
            signals.sleep(_PAUSE_SECONDS)

    def _path(self, asked: QueriedObject) -> str:
        """Return the object's path on the API server. Raises UnreadableError."""
        if asked is QueriedObject.NODE:
            return f"/api/v1/nodes/{urllib.parse.quote(self._cluster.node, safe='')}"
        namespace = urllib.parse.quote(self._api.namespace(), safe="")
        if asked is QueriedObject.NAMESPACE:
            return f"/api/v1/namespaces/{namespace}"
        name = urllib.parse.quote(self._cluster.daemon_set, safe="")
        return f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
