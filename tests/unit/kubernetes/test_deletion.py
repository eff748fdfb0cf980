"""A DaemonSet is deleted in the foreground, and waited for: what each answer of the API server comes to, and when."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

from tests.support.api_server import real, status
from toolkit_installer import log
from toolkit_installer.errors import ExitCode, NotDeletedError
from toolkit_installer.kubernetes import deletion
from toolkit_installer.kubernetes.client import ApiResponse, UnreadableError
from toolkit_installer.kubernetes.deletion import DaemonSetObservation, DaemonSetStatus, parse_status
from toolkit_installer.settings import DeletionSettings

UID = real("daemonset")["metadata"]["uid"]
PATH = "/apis/apps/v1/namespaces/toolkit/daemonsets/toolkit-installer"
ALWAYS = math.inf


def there(**metadata: Any) -> ApiResponse:
    body = real("daemonset")
    body["metadata"].update(metadata)
    return ApiResponse(200, body)


def error(code: int, reason: str) -> ApiResponse:
    return ApiResponse(code, status(code, reason, reason), reason)


THERE, GOING = there(), there(deletionTimestamp="2026-11-20T10:20:30Z")
MISSING, FORBIDDEN, STRANGER = error(404, "NotFound"), error(403, "Forbidden"), error(401, "Unauthorized")
AWAY = ApiResponse(None, words="ConnectionError: refused")


class Server:
    """An API server whose answers are a function of the time, and the clock, which only pauses and requests move."""

    def __init__(self, *steps: tuple[float, ApiResponse], slow: float = 0.0) -> None:
        self.steps, self.slow = steps, slow
        self.now = 0.0
        self.asked: list[str] = []

    def delete(self, seconds: float = 540.0) -> None:
        with (
            mock.patch.object(deletion, "ApiServer", return_value=self),
            mock.patch.object(deletion, "time", self),
            mock.patch.object(deletion, "signals", self),
        ):
            deletion.delete_daemon_set(DeletionSettings("toolkit-installer", "::1"), seconds)

    # --- what stands for the API server ---

    def namespace(self) -> str:
        return "toolkit"

    def get(self, path: str, seconds: float) -> ApiResponse:
        return self._answer("GET", path, seconds)

    def send(self, method: str, path: str, body: Mapping[str, Any], seconds: float) -> ApiResponse:
        assert body["propagationPolicy"] == "Foreground"
        return self._answer(method, path, seconds)

    def _answer(self, method: str, path: str, seconds: float) -> ApiResponse:
        assert path == PATH
        self.asked.append(method)
        self.now += min(self.slow, seconds)
        return next(answer for until, answer in self.steps if self.now < until)

    # --- what stands for the clock, and for pauses ---

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def failure(server: Server, seconds: float = 540.0) -> NotDeletedError:
    with pytest.raises(NotDeletedError) as caught:
        server.delete(seconds)
    assert caught.value.exit_code is ExitCode.NOT_DELETED
    return caught.value


# --- what an answer comes to ---


@pytest.mark.parametrize(
    "answer, uid, seen",
    [
        (MISSING, "", DaemonSetObservation(DaemonSetStatus.GONE)),
        (MISSING, UID, DaemonSetObservation(DaemonSetStatus.GONE, UID)),
        (GOING, "", DaemonSetObservation(DaemonSetStatus.GOING, UID)),
        (GOING, UID, DaemonSetObservation(DaemonSetStatus.GOING, UID)),
        (THERE, "", DaemonSetObservation(DaemonSetStatus.STAYING, UID)),
        (THERE, "another", DaemonSetObservation(DaemonSetStatus.ANOTHER, "another")),
        (GOING, "another", DaemonSetObservation(DaemonSetStatus.ANOTHER, "another")),
        (FORBIDDEN, UID, DaemonSetObservation(DaemonSetStatus.REFUSED, UID)),
        (STRANGER, UID, DaemonSetObservation(DaemonSetStatus.REFUSED, UID)),
        (AWAY, UID, DaemonSetObservation(DaemonSetStatus.UNKNOWN, UID)),
        (error(500, "InternalError"), UID, DaemonSetObservation(DaemonSetStatus.UNKNOWN, UID)),
        (error(409, "Conflict"), UID, DaemonSetObservation(DaemonSetStatus.UNKNOWN, UID)),
        (ApiResponse(200, {"kind": "Status", "metadata": {}}), UID, DaemonSetObservation(DaemonSetStatus.UNKNOWN, UID)),
        (ApiResponse(200, {"kind": "DaemonSet"}), UID, DaemonSetObservation(DaemonSetStatus.UNKNOWN, UID)),
        (
            ApiResponse(404, {}, "the answer is not JSON"),
            UID,
            DaemonSetObservation(DaemonSetStatus.UNKNOWN, UID),
        ),  # a proxy's page
        (ApiResponse(403, {"error": "no"}), UID, DaemonSetObservation(DaemonSetStatus.UNKNOWN, UID)),
    ],
)
def test_what_an_answer_says_of_the_daemon_set(answer: ApiResponse, uid: str, seen: DaemonSetObservation) -> None:
    assert parse_status(answer, uid) == seen


# --- how it goes on ---


def test_it_is_deleted_once_and_looked_at_until_its_pods_are_gone() -> None:
    server = Server((30, GOING), (ALWAYS, MISSING))
    server.delete()
    assert server.asked[0] == "DELETE"
    assert set(server.asked[1:]) == {"GET"}
    assert 30 <= server.now < 33


def test_one_that_is_not_there_is_no_failure() -> None:
    server = Server((ALWAYS, MISSING))
    server.delete()
    assert server.asked == ["DELETE"]


def test_who_is_not_answered_asks_for_the_deletion_again() -> None:
    server = Server((60, AWAY), (90, GOING), (ALWAYS, MISSING), slow=3.0)
    server.delete()
    going = server.asked.index("GET")
    assert going > 10
    assert set(server.asked[:going]) == {"DELETE"}


def test_an_api_server_that_goes_away_while_pods_end_is_waited_for() -> None:
    server = Server((20, GOING), (200, AWAY), (220, GOING), (ALWAYS, MISSING))
    server.delete()
    assert 220 <= server.now < 225


@pytest.mark.parametrize("refusal", [FORBIDDEN, STRANGER])
def test_a_permission_that_comes_a_moment_late_is_waited_for(refusal: ApiResponse) -> None:
    server = Server((10, refusal), (20, GOING), (ALWAYS, MISSING))
    server.delete()


@pytest.mark.parametrize("refusal, words", [(FORBIDDEN, "HTTP 403, Forbidden"), (STRANGER, "HTTP 401, Unauthorized")])
def test_a_refusal_that_lasts_is_the_end(refusal: ApiResponse, words: str) -> None:
    server = Server((ALWAYS, refusal))
    error = failure(server)
    assert "does not let this pod delete the DaemonSet toolkit/toolkit-installer" in error.reason
    assert words in error.reason
    assert "get and delete" in str(error.hint)
    assert 15 <= server.now < 20


def test_refusals_with_other_answers_between_them_do_not_add_up() -> None:
    steps = [(10, FORBIDDEN), (14, AWAY), (24, FORBIDDEN), (28, GOING), (38, FORBIDDEN), (ALWAYS, MISSING)]
    Server(*[(float(until), answer) for until, answer in steps]).delete()


def test_pods_that_do_not_end_are_told_from_an_api_server_that_does_not_answer() -> None:
    error = failure(Server((ALWAYS, GOING)), 60)
    assert "is being deleted, and is still there after 60 s" in error.reason
    assert "kubectl -n toolkit get pods -o wide" in str(error.hint)
    error = failure(Server((ALWAYS, AWAY)), 60)
    assert "after 60 s the API server has not said that" in error.reason
    assert "ConnectionError: refused" in error.reason


@pytest.mark.parametrize("slow", [0.0, 7.0, 60.0])
def test_the_time_is_kept_however_slow_the_answers_are(slow: float) -> None:
    server = Server((ALWAYS, AWAY), slow=slow)
    failure(server, 60)
    assert 60 <= server.now < 63.1


def test_one_that_was_made_anew_is_not_deleted_as_well() -> None:
    server = Server((10, GOING), (ALWAYS, there(uid="another")))
    error = failure(server)
    assert "another one by its name has come" in error.reason
    assert server.asked.count("DELETE") == 1


def test_outside_of_a_pod_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server((ALWAYS, MISSING))

    def unreadable() -> str:
        raise UnreadableError("cannot read /x/namespace: no such file")

    monkeypatch.setattr(server, "namespace", unreadable)
    assert "cannot read /x/namespace" in failure(server).reason
    assert server.asked == []


@pytest.mark.parametrize("found", [THERE, AWAY])
def test_what_keeps_it_from_being_deleted_is_said_once(found: ApiResponse, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Log:
        def warning(self, words: str, **about: object) -> None:
            assert about["key"] == "daemonset-staying"
            said.append(words)

        def info(self, words: str, **_: object) -> None:
            said.append(words)

    monkeypatch.setattr(log, "get", Log)
    Server((30, found), (60, GOING), (ALWAYS, MISSING)).delete()
    assert [words.partition(":")[0] for words in said] == [
        "The API server does not say that the DaemonSet is being deleted",
        "The DaemonSet is being deleted, and its pods give their nodes back",
        "The DaemonSet is gone, and so are its pods",
    ]
