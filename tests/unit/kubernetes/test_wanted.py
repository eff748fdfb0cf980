"""Whether a node is configured and cleaned up: the truth tables of `--cleanup auto`, which the document has."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.api_server import real, status, token
from toolkit_installer.kubernetes import client, verdicts, wanted
from toolkit_installer.kubernetes.client import ApiResponse, Bearer
from toolkit_installer.kubernetes.verdicts import CleanupState, CleanupVerdict, QueriedObject, judge_responses
from toolkit_installer.kubernetes.wanted import DaemonSetQuery
from toolkit_installer.settings import ClusterSettings

DOCUMENT = (Path(__file__).parents[3] / "docs/kubernetes.md").read_text(encoding="utf-8")
DS, NS, NODE = QueriedObject.DAEMON_SET, QueriedObject.NAMESPACE, QueriedObject.NODE
MINE = Bearer("me")


def error(code: int, reason: str, bearer: Bearer | None = MINE) -> ApiResponse:
    return ApiResponse(code, status(code, reason, reason), reason, bearer)


MISSING, FORBIDDEN, UNKNOWN_TOKEN = error(404, "NotFound"), error(403, "Forbidden"), error(401, "Unauthorized")
TIMED_OUT = ApiResponse(None, words="ReadTimeout: it took too long")
FAILING = [
    TIMED_OUT,
    ApiResponse(None, words="ConnectionError: refused"),
    ApiResponse(None, words="SSLError: certificate verify failed"),
    ApiResponse(None, words="UnreadableError: cannot read token"),
    error(500, "InternalError"),
    error(503, "ServiceUnavailable"),
    error(504, "Timeout"),
    error(429, "TooManyRequests"),
    error(400, "BadRequest"),
    ApiResponse(301),
    ApiResponse(502, {}, "the answer is not JSON"),
    ApiResponse(404, {}, "the answer is not JSON"),  # a proxy's page
    ApiResponse(403, {"error": "no"}),
    ApiResponse(401, {"error": "no"}),
    ApiResponse(200, {}, "the answer is not JSON"),
    ApiResponse(200, {"kind": "Pod", "metadata": {}}),
]


def found(name: str, **metadata: Any) -> ApiResponse:
    body = real(name)
    body["metadata"].update(metadata)
    return ApiResponse(200, body, bearer=MINE)


THERE = {DS: found("daemonset"), NS: found("namespace"), NODE: found("node")}
GOING = {"deletionTimestamp": "2026-11-20T10:20:30Z"}
UNLABELLED = found("node", labels={"kubernetes.io/os": "linux"})

TABLE: list[tuple[str, dict[QueriedObject, ApiResponse], CleanupVerdict]] = [
    ("all is as it was", THERE, CleanupVerdict.WANTED),
    ("the DaemonSet is gone", {DS: MISSING}, CleanupVerdict.UNWANTED),
    ("the DaemonSet is being deleted", {**THERE, DS: found("daemonset", **GOING)}, CleanupVerdict.UNWANTED),
    ("the DaemonSet may not be looked at", {DS: FORBIDDEN}, CleanupVerdict.FORBIDDEN),
    ("the token is not accepted", {DS: UNKNOWN_TOKEN}, CleanupVerdict.UNAUTHORIZED),
    ("the namespace is being deleted", {**THERE, NS: found("namespace", **GOING)}, CleanupVerdict.UNWANTED),
    ("the namespace is gone", {**THERE, NS: MISSING}, CleanupVerdict.UNWANTED),
    ("the namespace may not be looked at", {**THERE, NS: FORBIDDEN}, CleanupVerdict.WANTED),
    ("the token was deleted meanwhile", {**THERE, NS: UNKNOWN_TOKEN}, CleanupVerdict.UNAUTHORIZED),
    ("the namespace does not answer", {**THERE, NS: TIMED_OUT}, CleanupVerdict.UNKNOWN),
    ("the node lost its label", {**THERE, NODE: UNLABELLED}, CleanupVerdict.UNWANTED),
    ("the node left the cluster", {**THERE, NODE: MISSING}, CleanupVerdict.UNWANTED),
    ("the node is leaving", {**THERE, NODE: found("node", **GOING)}, CleanupVerdict.WANTED),
    ("nodes may not be looked at", {**THERE, NODE: FORBIDDEN}, CleanupVerdict.FORBIDDEN),
    ("one is refused and another does not answer", {**THERE, NS: TIMED_OUT, NODE: FORBIDDEN}, CleanupVerdict.FORBIDDEN),
    ("the node does not answer", {**THERE, NODE: TIMED_OUT}, CleanupVerdict.UNKNOWN),
    ("nobody answers, but the node is gone", {**THERE, NS: TIMED_OUT, NODE: MISSING}, CleanupVerdict.UNWANTED),
    ("only the DaemonSet was asked for", {DS: THERE[DS]}, CleanupVerdict.UNKNOWN),
    ("nothing was asked for", {}, CleanupVerdict.UNKNOWN),
]


@pytest.mark.parametrize("answers, verdict", [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_the_answers_come_to(answers: dict[QueriedObject, ApiResponse], verdict: CleanupVerdict) -> None:
    finding = judge_responses(answers)
    assert finding.verdict is verdict, finding.why


@pytest.mark.parametrize("answer", FAILING, ids=lambda answer: f"{answer.status} {answer.kind} {answer.words}")
@pytest.mark.parametrize("asked", list(QueriedObject))
def test_an_api_server_that_fails_says_nothing(answer: ApiResponse, asked: QueriedObject) -> None:
    answers = {DS: answer} if asked is DS else {**THERE, asked: answer}
    finding = judge_responses(answers)
    assert finding.verdict is CleanupVerdict.UNKNOWN
    assert str(asked) in finding.why
    assert not verdicts.accepted_identities([answer]) or answer.kind == "Pod"


def test_a_namespace_that_may_not_be_looked_at_any_more_is_another_thing() -> None:
    """Kubernetes deletes a namespace's permissions between two questions, and its DaemonSet after that."""
    assert judge_responses({**THERE, NS: FORBIDDEN}, namespace=True).verdict is CleanupVerdict.FORBIDDEN
    deleted = then((0.5, THERE[DS]), (8, FORBIDDEN), (ALWAYS, UNKNOWN_TOKEN))
    script = Script(deleted, deleted)
    script.hidden = NS
    assert script.unwanted(msgspec.structs.replace(TOLD, namespace=True))


def test_an_object_that_is_not_understood_says_nothing() -> None:
    strange = found("daemonset")
    strange.body["spec"]["template"]["spec"]["affinity"] = "somewhere"
    assert judge_responses({**THERE, DS: strange}).verdict is CleanupVerdict.UNKNOWN


def test_whatever_is_answered_somebody_is_told_why() -> None:
    """Every combination of answers: a verdict, never an exception, and words."""
    pool = [found("daemonset"), found("namespace"), found("node"), MISSING, FORBIDDEN, UNKNOWN_TOKEN, *FAILING]
    for three in itertools.product(pool, repeat=3):
        assert judge_responses(dict(zip(QueriedObject, three, strict=True))).why


# --- the tables of docs/kubernetes.md are the functions ---


def table(head: str) -> list[dict[str, str]]:
    """Return the rows of the document's table whose first column has this head, each as its cells by their heads."""
    lines = iter(DOCUMENT.splitlines())
    first = next(line for line in lines if line.startswith(f"| {head} |"))
    heads = [cell.strip() for cell in first.strip("|").split("|")]
    next(lines)
    found = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [dict(zip(heads, (cell.strip() for cell in line.strip("|").split("|")), strict=True)) for line in found]


def test_the_document_names_each_thing_that_the_answers_may_come_to() -> None:
    assert [row["answer"] for row in table("answer")] == list(CleanupVerdict)
    assert [row["first answer"] for row in table("first answer")] == list(CleanupVerdict)


AT_START = {True: "nothing installed", False: "installed by an earlier run"}
CHANGED = {True: "is configured", False: "is brought up to date"}


@pytest.mark.parametrize("bare", AT_START, ids=AT_START.get)
@pytest.mark.parametrize("row", table("first answer"), ids=lambda row: row["first answer"])
def test_what_the_document_says_of_the_start_is_so(row: dict[str, str], *, bare: bool) -> None:
    holds = verdicts.must_hold(CleanupVerdict(row["first answer"]), bare=bare)
    assert row[AT_START[bare]] == ("is not changed" if holds else CHANGED[bare])


DELETION, NO_DELETION = f"{CleanupVerdict.UNAUTHORIZED} that is a deletion", f"{CleanupVerdict.UNAUTHORIZED} otherwise"
AT_END = {
    "installed by this run, never told that the node is wanted": [CleanupState(bare=True)],
    "installed by this run, told so once": [CleanupState(bare=True, wanted=True)],
    "installed by an earlier run": [
        CleanupState(wanted=told, held=held) for told, held in itertools.product((False, True), repeat=2)
    ],
}


@pytest.mark.parametrize("column", AT_END)
@pytest.mark.parametrize("row", table("last answer"), ids=lambda row: row["last answer"])
def test_what_the_document_says_of_the_end_is_so(row: dict[str, str], column: str) -> None:
    said = row["last answer"]
    verdict = CleanupVerdict.UNAUTHORIZED if said in (DELETION, NO_DELETION) else CleanupVerdict(said)
    for standing in AT_END[column]:
        back = verdicts.must_revert(verdict, standing, deleted=said == DELETION)
        assert row[column] == ("is given back" if back else "stays configured")


def test_the_document_tells_the_end_of_each_answer() -> None:
    assert [row["last answer"] for row in table("last answer")] == [
        *(
            CleanupVerdict.WANTED,
            CleanupVerdict.UNWANTED,
            DELETION,
            NO_DELETION,
            CleanupVerdict.FORBIDDEN,
            CleanupVerdict.UNKNOWN,
        )
    ]


def test_a_half_finished_cleanup_that_a_held_run_found_is_not_that_runs_to_finish() -> None:
    standing = CleanupState(bare=True, held=True)
    assert not verdicts.must_revert(CleanupVerdict.FORBIDDEN, standing, deleted=False)
    assert verdicts.must_revert(CleanupVerdict.UNWANTED, standing, deleted=False)


NOW = 1_800_000_000.0
SEEN, TIMES, REVIEW, LASTS, IS = (
    "this run has seen the identity accepted",
    "the token, by its own times",
    "SelfSubjectReview says",
    "401 lasts for 11 seconds",
    "is a deletion",
)
BEARERS: dict[str, list[Bearer | None]] = {
    "good": [MINE, Bearer("me", NOW - 10, NOW + 100), Bearer("me", NOW + 30, None)],
    "not good, or not readable": [Bearer("me", ends=NOW), Bearer("me", NOW + 1000), Bearer("me", ends=math.nan), None],
}
REVIEWS = {
    "401": [UNKNOWN_TOKEN],
    "anything but 401, or nothing": [
        ApiResponse(201, {"kind": "SelfSubjectReview"}, bearer=MINE),
        *(FORBIDDEN, MISSING, *FAILING),
    ],
}


@pytest.mark.parametrize("seen", ["yes", "no"])
@pytest.mark.parametrize("times", BEARERS)
@pytest.mark.parametrize("review", REVIEWS)
@pytest.mark.parametrize("lasts", ["yes", "no"])
def test_a_401_is_a_deletion_where_the_document_says_so(seen: str, times: str, review: str, lasts: str) -> None:
    case = {SEEN: seen, TIMES: times, REVIEW: review, LASTS: lasts}
    row = next(row for row in table(SEEN) if all(row[head] in (value, "any") for head, value in case.items()))
    for bearer, answer in itertools.product(BEARERS[times], REVIEWS[review]):
        refused = error(401, "Unauthorized", bearer)
        reviewed = ApiResponse(answer.status, answer.body, answer.words, bearer)
        until = ALWAYS if lasts == "yes" else 10
        script = Script(then((until, refused), (ALWAYS, FORBIDDEN)), then((ALWAYS, reviewed)))
        known = ("another", "me") if seen == "yes" else ("another",)
        assert script.unwanted(CleanupState(wanted=True, accepted=known)) is (row[IS] == "yes"), (bearer, answer)


def test_how_long_it_lasts_is_what_the_document_says() -> None:
    assert wanted._SETTLING_SECONDS == 11
    assert "11 seconds" in DOCUMENT
    assert f"the question ({wanted._LEAVE_SECONDS:.0f} s)" in DOCUMENT


# --- what is asked when it is told to stop ---


class Script:
    """An API server whose answers are functions of the time, and the clock, which only pauses and requests move.

    A request takes `slow` seconds, or as many as it is given.
    """

    def __init__(
        self, objects: Callable[[float], ApiResponse], review: Callable[[float], ApiResponse], slow: float = 0.0
    ) -> None:
        self.objects, self.reviewed, self.slow = objects, review, slow
        self.now = 0.0
        self.heard: list[tuple[float, ApiResponse]] = []
        self.last = CleanupState()
        self.hidden: QueriedObject | None = None

    def unwanted(self, standing: CleanupState) -> bool:
        """Have a run of this standing ask whether it is to clean up."""
        question = DaemonSetQuery(ClusterSettings("toolkit-installer", "gpu-node-1", "::1"))
        with (
            mock.patch.object(question, "_api", self),
            mock.patch.object(wanted, "time", self),
            mock.patch.object(wanted, "signals", self),
        ):
            question.cleanup_state = standing
            back = question.is_cleanup_due()
        self.last = question.cleanup_state
        return back

    def starts(self) -> DaemonSetQuery:
        """Have a run ask at its start, and once more."""
        question = DaemonSetQuery(ClusterSettings("toolkit-installer", "gpu-node-1", "::1"))
        with (
            mock.patch.object(question, "_api", self),
            mock.patch.object(wanted, "time", self),
            mock.patch.object(wanted, "signals", self),
        ):
            question.query_at_start(bare=True)
            question.query_again()
        return question

    # --- what stands for the API server ---

    def namespace(self) -> str:
        return "toolkit"

    def get(self, path: str, seconds: float) -> ApiResponse:
        answer = self._after(self.objects, seconds)
        if answer.status != 200:
            return answer
        asked = DS if "/daemonsets/" in path else NODE if "/nodes/" in path else NS
        return FORBIDDEN if asked is self.hidden else THERE[asked]

    def review(self, seconds: float) -> ApiResponse:
        return self._after(self.reviewed, seconds)

    def _after(self, answers: Callable[[float], ApiResponse], seconds: float) -> ApiResponse:
        self.now += min(self.slow, seconds)
        answer = answers(self.now) if self.slow < seconds else TIMED_OUT
        self.heard.append((self.now, answer))
        return answer

    # --- what stands for the clock, and for pauses ---

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return NOW + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


TOLD = CleanupState(bare=True, wanted=True, accepted=("me",))


def then(*steps: tuple[float, ApiResponse]) -> Callable[[float], ApiResponse]:
    """Return answers that change: each counts until the time that it is given with."""
    return lambda at: next(answer for until, answer in steps if at < until)


ALWAYS = math.inf


def test_who_was_told_once_that_the_node_is_wanted_remembers_it_and_asks_no_more() -> None:
    script = Script(lambda _: ApiResponse(200), lambda _: ApiResponse(201))
    question = script.starts()
    assert (question.cleanup_state.wanted, question.cleanup_state.held) == (True, False)
    assert len(script.heard) == len(QueriedObject)


def test_a_deletion_whose_token_is_still_accepted_for_a_while_is_found() -> None:
    """The ServiceAccount, its permissions and the DaemonSet are gone; the server's cache knows the token for 10 s."""
    answers = then((10, FORBIDDEN), (ALWAYS, UNKNOWN_TOKEN))
    script = Script(answers, answers)
    assert script.unwanted(TOLD)
    assert script.now <= wanted._LEAVE_SECONDS


def test_permissions_that_somebody_broke_leave_the_node_configured() -> None:
    script = Script(lambda _: FORBIDDEN, lambda _: ApiResponse(201, {"kind": "SelfSubjectReview"}, bearer=MINE))
    assert not script.unwanted(TOLD)
    assert 10 < script.now <= 16
    assert len(script.heard) < 10


def test_an_api_server_that_knows_less_than_the_others_for_a_moment_says_nothing() -> None:
    for until in range(10):
        answers = then((until, UNKNOWN_TOKEN), (ALWAYS, THERE[DS]))
        assert not Script(answers, answers).unwanted(TOLD)


def test_a_401_that_is_interrupted_begins_anew() -> None:
    answers = then((7, UNKNOWN_TOKEN), (9, FORBIDDEN), (13, UNKNOWN_TOKEN), (ALWAYS, FORBIDDEN))
    assert not Script(answers, answers).unwanted(TOLD)


def test_a_401_between_silences_lasts() -> None:
    answers = then((5, UNKNOWN_TOKEN), (9, TIMED_OUT), (ALWAYS, UNKNOWN_TOKEN))
    assert Script(answers, answers).unwanted(TOLD)
    assert not Script(then((5, UNKNOWN_TOKEN), (ALWAYS, TIMED_OUT)), lambda _: UNKNOWN_TOKEN).unwanted(TOLD)


def test_a_401_does_not_last_where_the_token_was_accepted_in_between() -> None:
    """One of several API servers still knows the token: the DaemonSet is there, and its namespace gets a 401 again."""
    answers = then((10, UNKNOWN_TOKEN), (16, THERE[DS]), (ALWAYS, UNKNOWN_TOKEN))
    slow = Script(answers, answers, 4.9)
    assert not slow.unwanted(TOLD)
    assert [answer.status for _, answer in slow.heard[:6]] == [401, 401, 200, 401, 401, 401]


def test_a_token_that_ends_meanwhile_is_no_deletion() -> None:
    """The kubelet could not renew it, because the API server was away."""
    refused = error(401, "Unauthorized", Bearer("me", ends=NOW + 5))
    assert not Script(lambda _: refused, lambda _: refused).unwanted(TOLD)


@pytest.mark.parametrize("ahead", [3600.0, -7200.0])
def test_a_token_that_is_not_good_on_the_servers_clock_is_no_deletion(ahead: float) -> None:
    """The node's clock says that the token is good; on the server's it is over, or has not begun."""
    bearer = Bearer("me", NOW - 3600, NOW + 3000)
    refused = ApiResponse(401, status(401, "Unauthorized", ""), bearer=bearer, date=NOW + ahead)
    assert not Script(lambda _: refused, lambda _: refused).unwanted(TOLD)
    at_one = ApiResponse(401, status(401, "Unauthorized", ""), bearer=bearer, date=NOW + 1)
    assert Script(lambda _: at_one, lambda _: at_one).unwanted(TOLD)


def test_a_service_account_that_was_made_anew_is_another_identity() -> None:
    again = error(
        401, "Unauthorized", client.parse_bearer(token(**{"kubernetes.io": {"serviceaccount": {"uid": "9"}}}))
    )
    first = client.parse_bearer(token())
    assert first is not None
    assert not Script(lambda _: again, lambda _: again).unwanted(CleanupState(wanted=True, accepted=(first.identity,)))


kinds = st.sampled_from([UNKNOWN_TOKEN, FORBIDDEN, MISSING, TIMED_OUT, THERE[DS], error(503, "ServiceUnavailable")])
steps = st.lists(st.tuples(st.floats(0.01, 12), kinds), max_size=8)
standings = st.builds(
    CleanupState,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), ("me",), ("another",)]),
)


@given(steps, kinds, st.sampled_from([0.0, 0.1, 1.0, 4.9, 20.0]), standings)
def test_whatever_is_answered_it_ends_in_time_and_reverts_only_unwanted_nodes(
    changes: list[tuple[float, ApiResponse]], last: ApiResponse, slow: float, standing: CleanupState
) -> None:
    ends = list(itertools.accumulate(seconds for seconds, _ in changes))
    course = [*zip(ends, (answer for _, answer in changes), strict=True), (ALWAYS, last)]
    answers = then(*course)
    script = Script(answers, answers, slow)
    back = script.unwanted(standing)
    assert script.now <= wanted._LEAVE_SECONDS + 20, "more than what the grace period has to spare"
    assert len(script.heard) <= 60
    # who says nothing speaks neither for nor against a 401 before and after
    series = [
        [moment for moment, answer in each if answer is UNKNOWN_TOKEN]
        for spoken, each in itertools.groupby(script.heard, key=lambda heard: heard[1].status in (401, None, 503))
        if spoken
    ]
    refused_for = max((each[-1] - each[0] for each in series if each), default=0.0)
    deleted = "me" in script.last.accepted and refused_for >= wanted._SETTLING_SECONDS
    own = standing.bare and not standing.held and not standing.wanted
    gone = MISSING in [answer for _, answer in course] and slow < 5
    assert not back or deleted or own or gone
    if last is THERE[DS] and not changes and slow < 5:
        # the three answers together may come too late for one who never heard that the node is wanted
        in_time = len(QueriedObject) * slow <= wanted._SETTLING_SECONDS
        assert not back or (own and not in_time)


def test_a_slow_api_server_lets_a_run_that_never_learned_more_revert_unasked() -> None:
    """The DaemonSet's, the namespace's and the node's answers take longer than may be asked at the end."""
    slow = Script(lambda _: THERE[DS], lambda _: THERE[DS], 4.9)
    assert slow.unwanted(CleanupState(bare=True))
    assert not slow.unwanted(CleanupState(bare=True, wanted=True))
    assert not slow.unwanted(CleanupState(bare=False))


def test_requests_is_not_imported_by_a_run_that_asks_nobody() -> None:
    program = "import sys; from toolkit_installer.cli import actions; sys.exit('requests' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
