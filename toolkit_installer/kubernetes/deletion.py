"""Deletes one DaemonSet, and waits until it and all of its pods are gone: the first step of an uninstallation.

Each of the pods reverts its node as it ends, and queries the API server before that. So the permissions for that query
have to stay until the last pod is gone. With foreground propagation the DaemonSet itself stays that long, with a
deletion timestamp: its pods see that it is not wanted any more, and waiting for it means waiting for them, without a
permission to read pods.
"""

from __future__ import annotations

import enum
import http
import time
import urllib.parse
from collections.abc import Mapping

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import NotDeletedError
from toolkit_installer.kubernetes import verdicts
from toolkit_installer.kubernetes.client import ApiResponse, ApiServer, UnreadableError
from toolkit_installer.node import signals
from toolkit_installer.settings import DeletionSettings

_OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
_KIND = "DaemonSet"
_ONE_SECONDS = 10.0
_LEAST_SECONDS = 1.0
"""The least and the most seconds of a request."""
_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_SETTLING_SECONDS = 15.0
"""How long a refusal has to last before it counts as final.

Often the permission or the token was granted in this very second, and one of several API servers may know of it later
than the others.
"""
_GOOD = (http.HTTPStatus.OK, http.HTTPStatus.ACCEPTED)
_REFUSALS = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)


class DaemonSetStatus(enum.Enum):
    """The DaemonSet's status by one response."""

    GONE = enum.auto()
    GOING = enum.auto()
    """It is being deleted: some of its pods exist."""
    STAYING = enum.auto()
    ANOTHER = enum.auto()
    """A DaemonSet with its name but another uid exists."""
    REFUSED = enum.auto()
    UNKNOWN = enum.auto()


class DaemonSetObservation(msgspec.Struct, frozen=True):
    """The DaemonSet's status, and its uid as far as a response has named it."""

    found: DaemonSetStatus
    uid: str = ""


def parse_status(answer: ApiResponse, uid: str) -> DaemonSetObservation:
    """Return the status of the DaemonSet with this uid by one response; an empty uid is unknown. Pure."""
    if verdicts.is_refused(answer, http.HTTPStatus.NOT_FOUND):
        return DaemonSetObservation(DaemonSetStatus.GONE, uid)
    if any(verdicts.is_refused(answer, each) for each in _REFUSALS):
        return DaemonSetObservation(DaemonSetStatus.REFUSED, uid)
    metadata = answer.body.get("metadata")
    if answer.kind != _KIND or answer.status not in _GOOD or not isinstance(metadata, Mapping):
        return DaemonSetObservation(DaemonSetStatus.UNKNOWN, uid)
    found = str(metadata.get("uid", ""))
    if uid not in ("", found):
        return DaemonSetObservation(DaemonSetStatus.ANOTHER, uid)
    return DaemonSetObservation(
        DaemonSetStatus.GOING if metadata.get("deletionTimestamp") is not None else DaemonSetStatus.STAYING, found
    )


def delete_daemon_set(settings: DeletionSettings, seconds: float) -> None:
    """Delete the DaemonSet, and return once it is gone or if it does not exist. Raises NotDeletedError, Stopped.

    `seconds` is the limit for all of it.
    """
    api = ApiServer(settings.host, settings.port, settings.service_account)
    try:
        namespace = api.namespace()
    except UnreadableError as error:
        raise NotDeletedError(str(error), hint="this is for a pod that is given its ServiceAccount's token") from error
    about = {"daemonset": settings.daemon_set, "namespace": namespace}
    path = f"/apis/apps/v1/namespaces/{_quoted(namespace)}/daemonsets/{_quoted(settings.daemon_set)}"
    deadline = time.monotonic() + seconds
    refused_since: float | None = None
    pause = _PAUSE_SECONDS
    seen = DaemonSetObservation(DaemonSetStatus.UNKNOWN)
    said: DaemonSetStatus | None = None
    while True:
        one = max(_LEAST_SECONDS, min(_ONE_SECONDS, deadline - time.monotonic()))
        # repeated until the deletion is confirmed: a request without a response may not have arrived
        going = seen.found is DaemonSetStatus.GOING
        answer = api.get(path, one) if going else api.send("DELETE", path, _OPTIONS, one)
        seen = parse_status(answer, seen.uid)
        now = time.monotonic()
        refused_since = (refused_since or now) if seen.found is DaemonSetStatus.REFUSED else None
        lasts = refused_since is not None and now >= refused_since + _SETTLING_SECONDS
        if seen.found is DaemonSetStatus.GONE:
            _log_gone(about, was_there=seen.uid != "")
            return
        if seen.found is DaemonSetStatus.ANOTHER or lasts or now >= deadline:
            raise _deletion_error(f"{namespace}/{settings.daemon_set}", seen.found, answer, seconds)
        if seen.found is not said:
            _log_status(about, seen.found, answer)
            said = seen.found
        signals.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _log_status(about: Mapping[str, str], found: DaemonSetStatus, answer: ApiResponse) -> None:
    if found is DaemonSetStatus.GOING:
        log.get().info(
            "The DaemonSet is being deleted, and its pods give their nodes back: they are waited for",
            key="daemonset-going",
            **about,
        )
    else:
        log.get().warning(
            "The API server does not say that the DaemonSet is being deleted: it is asked again",
            key="daemonset-staying",
            why=verdicts.describe_response(answer),
            **about,
        )


def _log_gone(about: Mapping[str, str], *, was_there: bool) -> None:
    if was_there:
        log.get().info("The DaemonSet is gone, and so are its pods", key="daemonset-gone", **about)
    else:
        log.get().info("No such DaemonSet exists: nothing is to be deleted", key="no-daemonset", **about)


def _deletion_error(place: str, found: DaemonSetStatus, answer: ApiResponse, seconds: float) -> NotDeletedError:
    """Return the error for a deletion that has failed or timed out. Pure."""
    if found is DaemonSetStatus.ANOTHER:
        return NotDeletedError(
            f"the DaemonSet {place} was deleted, and another one by its name has come",
            hint="whatever else manages it, such as a GitOps tool, has to leave it alone first",
        )
    if found is DaemonSetStatus.REFUSED:
        return NotDeletedError(
            f"the API server does not let this pod delete the DaemonSet {place}: {verdicts.describe_response(answer)}",
            hint="its ServiceAccount needs get and delete on this DaemonSet",
        )
    if found is DaemonSetStatus.GOING:
        namespace = place.partition("/")[0]
        return NotDeletedError(
            f"the DaemonSet {place} is being deleted, and is still there after {seconds:g} s",
            hint=f"kubectl -n {namespace} get pods -o wide shows the pods that it waits for; one whose node is away "
            "ends when the node is back, or once the Node is deleted",
        )
    return NotDeletedError(
        f"after {seconds:g} s the API server has not said that the DaemonSet {place} is gone: "
        f"{verdicts.describe_response(answer)}",
        hint="the DaemonSet may be there still; try again once the API server answers",
    )
