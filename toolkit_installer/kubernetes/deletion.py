"""Deletes one DaemonSet, and waits until it and all of its pods are gone: what an uninstallation begins with.

Each of the pods gives its node back as it ends, and asks the API server for that. So what lets it ask has to stay until
the last of them is gone. With foreground propagation the DaemonSet itself stays that long, with a time of deletion: to
its pods it is not wanted any more, and who waits for it waits for them, without a permission to look at pods.
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
from toolkit_installer.kubernetes.client import Answer, ApiServer, UnreadableError
from toolkit_installer.node import signals
from toolkit_installer.settings import DeletionSettings

_OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
_KIND = "DaemonSet"
_ONE_SECONDS = 10.0
_LEAST_SECONDS = 1.0
"""What a request may take at most and at least."""
_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_SETTLING_SECONDS = 15.0
"""How long a refusal has to last. Whoever asks has often been given the permission, or the token, in this very second,
and one of several API servers may know of it later than the others."""
_GOOD = (http.HTTPStatus.OK, http.HTTPStatus.ACCEPTED)
_REFUSALS = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)


class Found(enum.Enum):
    """What an answer says of the DaemonSet."""

    GONE = enum.auto()
    GOING = enum.auto()
    """It is being deleted: some of its pods are there."""
    STAYING = enum.auto()
    ANOTHER = enum.auto()
    """One is there by its name that is not the one which was to be deleted."""
    REFUSED = enum.auto()
    UNKNOWN = enum.auto()


class Seen(msgspec.Struct, frozen=True):
    """What an answer says, and the DaemonSet's uid as far as anybody has said it."""

    found: Found
    uid: str = ""


def judged(answer: Answer, uid: str) -> Seen:
    """Return what the API server says of the DaemonSet with this uid, which is empty if it is not known. Pure."""
    if verdicts.is_refused(answer, http.HTTPStatus.NOT_FOUND):
        return Seen(Found.GONE, uid)
    if any(verdicts.is_refused(answer, each) for each in _REFUSALS):
        return Seen(Found.REFUSED, uid)
    metadata = answer.body.get("metadata")
    if answer.kind != _KIND or answer.status not in _GOOD or not isinstance(metadata, Mapping):
        return Seen(Found.UNKNOWN, uid)
    found = str(metadata.get("uid", ""))
    if uid not in ("", found):
        return Seen(Found.ANOTHER, uid)
    return Seen(Found.GOING if metadata.get("deletionTimestamp") is not None else Found.STAYING, found)


def delete(settings: DeletionSettings, seconds: float) -> None:
    """Delete the DaemonSet, and return once it is gone, or was not there. Raises NotDeletedError, Stopped.

    All of it may take so many seconds.
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
    seen = Seen(Found.UNKNOWN)
    said: Found | None = None
    while True:
        one = max(_LEAST_SECONDS, min(_ONE_SECONDS, deadline - time.monotonic()))
        # until somebody says that it is being deleted: a request that got no answer may not have arrived
        going = seen.found is Found.GOING
        answer = api.get(path, one) if going else api.send("DELETE", path, _OPTIONS, one)
        seen = judged(answer, seen.uid)
        now = time.monotonic()
        refused_since = (refused_since or now) if seen.found is Found.REFUSED else None
        lasts = refused_since is not None and now >= refused_since + _SETTLING_SECONDS
        if seen.found is Found.GONE:
            _say_gone(about, was_there=seen.uid != "")
            return
        if seen.found is Found.ANOTHER or lasts or now >= deadline:
            raise _failure(f"{namespace}/{settings.daemon_set}", seen.found, answer, seconds)
        if seen.found is not said:
            _say(about, seen.found, answer)
            said = seen.found
        signals.rest(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _say(about: Mapping[str, str], found: Found, answer: Answer) -> None:
    if found is Found.GOING:
        log.get().info(
            "The DaemonSet is being deleted, and its pods give their nodes back: they are waited for",
            key="daemonset-going",
            **about,
        )
    else:
        log.get().warning(
            "The API server does not say that the DaemonSet is being deleted: it is asked again",
            key="daemonset-staying",
            why=verdicts.said(answer),
            **about,
        )


def _say_gone(about: Mapping[str, str], *, was_there: bool) -> None:
    if was_there:
        log.get().info("The DaemonSet is gone, and so are its pods", key="daemonset-gone", **about)
    else:
        log.get().info("No such DaemonSet exists: nothing is to be deleted", key="no-daemonset", **about)


def _failure(place: str, found: Found, answer: Answer, seconds: float) -> NotDeletedError:
    """Return what is wrong when it is given up, in words. Pure."""
    if found is Found.ANOTHER:
        return NotDeletedError(
            f"the DaemonSet {place} was deleted, and another one by its name has come",
            hint="whatever else manages it, such as a GitOps tool, has to leave it alone first",
        )
    if found is Found.REFUSED:
        return NotDeletedError(
            f"the API server does not let this pod delete the DaemonSet {place}: {verdicts.said(answer)}",
            hint="its ServiceAccount needs get and delete on this DaemonSet",
        )
    if found is Found.GOING:
        namespace = place.partition("/")[0]
        return NotDeletedError(
            f"the DaemonSet {place} is being deleted, and is still there after {seconds:g} s",
            hint=f"kubectl -n {namespace} get pods -o wide shows the pods that it waits for; one whose node is away "
            "ends when the node is back, or once the Node is deleted",
        )
    return NotDeletedError(
        f"after {seconds:g} s the API server has not said that the DaemonSet {place} is gone: {verdicts.said(answer)}",
        hint="the DaemonSet may be there still; try again once the API server answers",
    )
