"""Changes the one Node of this pod, and writes events: the only module that writes reports to the API server."""

from __future__ import annotations

import http
import urllib.parse
from collections.abc import Mapping
from time import monotonic
from typing import Any, Literal, TypeVar

import msgspec

from toolkit_installer.kubernetes import client, node_state
from toolkit_installer.kubernetes.client import APPLY, JSON, MERGE, ApiResponse, ApiServer, UnreadableError
from toolkit_installer.kubernetes.node_state import ReportedEvent
from toolkit_installer.settings import ReportSettings

NODE, DAEMON_SET = "Node", "DaemonSet"
"""Kinds of objects that events may be about."""
_LEAST_SECONDS = 0.5
_SUCCESS_CLASS = 2
"""The first digit of a status of success."""
_FINAL_STATUSES = (http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.UNPROCESSABLE_ENTITY, http.HTTPStatus.NOT_FOUND)
"""Statuses for an event that is invalid, or whose namespace is gone: a retry would get them again."""


_ALREADY_EXISTS = "AlreadyExists"
"""The reason of a 409 for an object to be created (apimachinery, StatusReasonAlreadyExists)."""


# The parts of a Node and of a DaemonSet that are read, with their types (core/v1 and apps/v1). A response of another
# shape is not the API server's: a change computed from it could remove what others have written.


class _NodeMetadata(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str
    annotations: dict[str, str] | None = None


class _Taint(msgspec.Struct):
    key: str
    effect: str
    value: str | None = None


class _Spec(msgspec.Struct):
    taints: list[_Taint] | None = None


class _Condition(msgspec.Struct, rename="camel"):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None


class _Node(msgspec.Struct):
    kind: Literal["Node"]
    metadata: _NodeMetadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _DaemonSetMetadata(msgspec.Struct):
    name: str
    namespace: str
    uid: str


class _DaemonSet(msgspec.Struct):
    kind: Literal["DaemonSet"]
    metadata: _DaemonSetMetadata


_Parsed = TypeVar("_Parsed", _Node, _DaemonSet)


class ReportError(Exception):
    """The API server did not accept a report; the text says which, and why.

    `status`: the response's, None if there was none. `wait`: the seconds that the API server asked for.
    """

    def __init__(self, text: str, status: int | None = None, wait: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.wait = wait

    @property
    def is_final(self) -> bool:
        """Whether an early retry is useless: the pod lacks the permission, or the object is gone."""
        return self.status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND)


class RefusedEventError(Exception):
    """The API server will never accept this event; the text says why."""


class NodeClient:
    """The Node as read in this round, and changes of it. All methods raise ReportError and Stopped."""

    def __init__(self, settings: ReportSettings) -> None:
        self._settings = settings
        self._api = ApiServer(settings.host, settings.port, settings.service_account)
        self._path = f"/api/v1/nodes/{urllib.parse.quote(settings.node, safe='')}"
        self._round = 0.0
        self._deadline: float | None = None
        """The end of the round; None: no request has been sent in it."""
        self._found: Mapping[str, Any] | None = None

    def begin(self, seconds: float) -> None:
        """Begin a round: the Node is read anew, and all requests together may take `seconds` from the first one."""
        self._round, self._deadline = seconds, None
        self._found = None

    def read(self) -> Mapping[str, Any]:
        """Return the Node, which is read once a round."""
        if self._found is None:
            self._found = self._parse_node(self._api.get(self._path, self._seconds()), "the Node")
        return self._found

    def apply(self, below: str, body: Mapping[str, Any], what: str) -> None:
        """Apply our fields to the Node or to the subresource `below` it; `what` describes the fields in errors."""
        query = urllib.parse.urlencode({"fieldManager": node_state.MANAGER, "force": "true"})
        answer = self._api.send("PATCH", f"{self._path}{below}?{query}", body, self._seconds(), APPLY)
        self._found = self._parse_node(answer, what)

    def change(self, patch: Mapping[str, Any], what: str) -> bool:
        """Change the Node; return False if another client has changed it since it was read."""
        query = urllib.parse.urlencode({"fieldManager": node_state.MANAGER})
        answer = self._api.send("PATCH", f"{self._path}?{query}", patch, self._seconds(), MERGE)
        self._found = None
        if answer.status == http.HTTPStatus.CONFLICT:
            return False
        self._found = self._parse_node(answer, what)
        return True

    def daemon_set(self) -> Mapping[str, Any]:
        """Return the DaemonSet of this pod."""
        try:
            namespace = urllib.parse.quote(self._api.namespace(), safe="")
        except UnreadableError as error:
            raise ReportError(str(error)) from error
        name = urllib.parse.quote(self._settings.daemon_set or "", safe="")
        path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
        found = self._require_success(self._api.get(path, self._seconds()), "the DaemonSet").body
        _parse(found, _DaemonSet, "the DaemonSet")
        return found

    def write(self, event: ReportedEvent, *, now: str) -> ReportedEvent:
        """Create an event, or count it once more; an expired event is created anew.

        `now` is a time of RFC 3339. Returns the event as the API server has it. Raises RefusedEventError.
        """
        involved = self._find_object(event.happening.about)
        place = f"/api/v1/namespaces/{involved.get('namespace', node_state.NODES_NAMESPACE)}/events"
        if event.name:
            patch = node_state.repeat_event(event, last=now)
            answer = self._api.send("PATCH", f"{place}/{event.name}", patch, self._seconds(), MERGE)
            if answer.status != http.HTTPStatus.NOT_FOUND:
                return self._check_event_response(event, answer)
        name = event.happening.name_of(involved["name"])
        event = msgspec.structs.replace(event, name=name, count=1, first=event.last)
        body = node_state.build_event_body(event, involved, node=self._settings.node, now=now)
        return self._check_event_response(event, self._api.send("POST", place, body, self._seconds(), JSON))

    def _check_event_response(self, event: ReportedEvent, answer: ApiResponse) -> ReportedEvent:
        if answer.status == http.HTTPStatus.CONFLICT and answer.body.get("reason") == _ALREADY_EXISTS:
            return event  # it was written before, and the response was lost
        if answer.status in _FINAL_STATUSES:
            raise RefusedEventError(_describe(answer))
        self._require_success(answer, "an event")
        return event

    def _find_object(self, about: str) -> dict[str, str]:
        """Return the object that an event is about."""
        if about == NODE:  # the kubelet's own events have the node's name as its uid, and kubectl looks for that
            return {"apiVersion": "v1", "kind": NODE, "name": self._settings.node, "uid": self._settings.node}
        try:
            metadata = self.daemon_set()["metadata"]
        except ReportError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                raise RefusedEventError(str(error)) from error  # it is gone, and its events have no readers
            raise
        names = {key: metadata[key] for key in ("name", "namespace", "uid")}
        return {"apiVersion": "apps/v1", "kind": DAEMON_SET, **names}

    def _parse_node(self, answer: ApiResponse, what: str) -> Mapping[str, Any]:
        """Return the Node in a response to a read or a change."""
        found = self._require_success(answer, what).body
        if _parse(found, _Node, "the Node").metadata.name != self._settings.node:
            raise ReportError("the Node: the answer is about another one")
        return found

    def _require_success(self, answer: ApiResponse, what: str) -> ApiResponse:
        if answer.status is None or answer.status // 100 != _SUCCESS_CLASS:
            raise ReportError(f"{what}: {_describe(answer)}", answer.status, answer.wait)
        return answer

    def _seconds(self) -> float:
        """Return the time limit of the next request."""
        if self._deadline is None:
            client.prepare()  # a busy node takes seconds for it, which are not the API server's
            self._deadline = monotonic() + self._round
        return max(_LEAST_SECONDS, self._deadline - monotonic())


def _parse(body: Mapping[str, Any], kind: type[_Parsed], what: str) -> _Parsed:
    """Return the parts of an object that are read. Raises ReportError if they are not as Kubernetes defines them."""
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ReportError(f"{what} is not as Kubernetes has it: {error}") from error


def _describe(answer: ApiResponse) -> str:
    """Return the API server's response in words."""
    said = f"HTTP {answer.status}" if answer.status is not None else "no answer"
    return f"{said}: {answer.words}" if answer.words else said
