"""Whether a node is cleaned up: the truth table of `--cleanup auto`, and what is asked when."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest

from tests.support.api_server import real, status
from toolkit_installer.node.kubernetes_api import Answer
from toolkit_installer.wanted import Asked, Verdict, judge

DS, NS, NODE = Asked.DAEMON_SET, Asked.NAMESPACE, Asked.NODE
ALL = frozenset(Asked)
NOBODY: frozenset[Asked] = frozenset()


def error(code: int, reason: str) -> Answer:
    return Answer(code, status(code, reason, reason), reason)


MISSING, FORBIDDEN, UNKNOWN_TOKEN = error(404, "NotFound"), error(403, "Forbidden"), error(401, "Unauthorized")
TIMED_OUT = Answer(None, words="ReadTimeout: it took too long")
FAILING = [
    TIMED_OUT,
    Answer(None, words="ConnectionError: refused"),
    Answer(None, words="SSLError: certificate verify failed"),
    Answer(None, words="UnreadableError: cannot read token"),
    error(500, "InternalError"),
    error(503, "ServiceUnavailable"),
    error(504, "Timeout"),
    error(429, "TooManyRequests"),
    error(400, "BadRequest"),
    Answer(301),
    Answer(502, {}, "the answer is not JSON"),
    Answer(404, {}, "the answer is not JSON"),  # a proxy's page
    Answer(403, {"error": "no"}),
    Answer(200, {}, "the answer is not JSON"),
    Answer(200, {"kind": "Pod", "metadata": {}}),
]


def found(name: str, **metadata: Any) -> Answer:
    body = real(name)
    body["metadata"].update(metadata)
    return Answer(200, body)


THERE = {DS: found("daemonset"), NS: found("namespace"), NODE: found("node")}
GOING = {"deletionTimestamp": "2026-11-20T10:20:30Z"}
UNLABELLED = found("node", labels={"kubernetes.io/os": "linux"})

TABLE: list[tuple[str, dict[Asked, Answer], frozenset[Asked], Verdict]] = [
    ("all is as it was", THERE, ALL, Verdict.WANTED),
    ("all is well, and nobody answered at the start", THERE, NOBODY, Verdict.WANTED),
    ("the DaemonSet is gone", {DS: MISSING}, ALL, Verdict.UNWANTED),
    ("the DaemonSet is gone, and nobody answered at the start", {DS: MISSING}, NOBODY, Verdict.UNWANTED),
    ("the DaemonSet is being deleted", {**THERE, DS: found("daemonset", **GOING)}, ALL, Verdict.UNWANTED),
    ("the permissions went with the DaemonSet", {DS: FORBIDDEN}, ALL, Verdict.UNWANTED),
    ("the ServiceAccount went with the DaemonSet", {DS: UNKNOWN_TOKEN}, ALL, Verdict.UNWANTED),
    ("there never were permissions", {DS: FORBIDDEN}, NOBODY, Verdict.UNKNOWN),
    ("there never was a good token", {DS: UNKNOWN_TOKEN}, NOBODY, Verdict.UNKNOWN),
    ("the namespace is being deleted", {**THERE, NS: found("namespace", **GOING)}, ALL, Verdict.UNWANTED),
    ("the namespace is gone", {**THERE, NS: MISSING}, ALL, Verdict.UNWANTED),
    ("the namespace may not be looked at any more", {**THERE, NS: FORBIDDEN}, ALL, Verdict.UNWANTED),
    ("the namespace could never be looked at", {**THERE, NS: FORBIDDEN}, frozenset({DS, NODE}), Verdict.WANTED),
    ("the namespace does not answer", {**THERE, NS: TIMED_OUT}, ALL, Verdict.UNKNOWN),
    ("the node lost its label", {**THERE, NODE: UNLABELLED}, ALL, Verdict.UNWANTED),
    ("the node left the cluster", {**THERE, NODE: MISSING}, ALL, Verdict.UNWANTED),
    ("the node is leaving", {**THERE, NODE: found("node", **GOING)}, ALL, Verdict.WANTED),
    ("nodes may not be looked at any more", {**THERE, NODE: FORBIDDEN}, ALL, Verdict.UNWANTED),
    ("nodes could never be looked at", {**THERE, NODE: FORBIDDEN}, frozenset({DS}), Verdict.UNKNOWN),
    ("the node does not answer", {**THERE, NODE: TIMED_OUT}, ALL, Verdict.UNKNOWN),
    ("nobody answers, but the node is gone", {**THERE, NS: TIMED_OUT, NODE: MISSING}, ALL, Verdict.UNWANTED),
    ("only the DaemonSet was asked for", {DS: THERE[DS]}, ALL, Verdict.UNKNOWN),
    ("nothing was asked for", {}, ALL, Verdict.UNKNOWN),
]


@pytest.mark.parametrize("answers, answered, verdict", [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_follows_when(answers: dict[Asked, Answer], answered: frozenset[Asked], verdict: Verdict) -> None:
    finding = judge(answers, answered)
    assert finding.verdict is verdict, finding.why


@pytest.mark.parametrize("answer", FAILING, ids=lambda answer: f"{answer.status} {answer.kind} {answer.words}")
@pytest.mark.parametrize("asked", list(Asked))
@pytest.mark.parametrize("answered", [ALL, NOBODY], ids=["answered", "not answered"])
def test_an_api_server_that_fails_never_has_a_node_cleaned_up(
    answer: Answer, asked: Asked, answered: frozenset[Asked]
) -> None:
    answers = {DS: answer} if asked is DS else {**THERE, asked: answer}
    finding = judge(answers, answered)
    assert finding.verdict is Verdict.UNKNOWN
    assert str(asked) in finding.why


def test_an_object_that_is_not_understood_never_has_a_node_cleaned_up() -> None:
    strange = found("daemonset")
    strange.body["spec"]["template"]["spec"]["affinity"] = "somewhere"
    assert judge({**THERE, DS: strange}, ALL).verdict is Verdict.UNKNOWN


def test_whatever_is_answered_somebody_is_told_why() -> None:
    """Every combination of answers: a verdict, never an exception, and words for all but the best one."""
    pool = [found("daemonset"), found("namespace"), found("node"), MISSING, FORBIDDEN, *FAILING]
    for three in itertools.product(pool, repeat=3):
        for answered in (ALL, NOBODY):
            finding = judge(dict(zip(Asked, three, strict=True)), answered)
            assert finding.why


def test_requests_is_not_imported_by_a_run_that_asks_nobody() -> None:
    program = "import sys; from toolkit_installer import lifecycle; sys.exit('requests' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
