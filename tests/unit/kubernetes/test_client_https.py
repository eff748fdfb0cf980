"""One question to the API server, over real HTTPS: what comes back, whatever it does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.api_server import (
    ACCOUNT,
    DAEMON_SET_PATH,
    NAMESPACE,
    NODE_PATH,
    REVIEW_PATH,
    TOKEN,
    Server,
    real,
    serving,
    token,
)
from toolkit_installer.kubernetes.client import ApiServer, Bearer, UnreadableError, _parse_date

SECONDS = 30.0
"""More than any answer takes: only what is silent for good meets it."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as serves:
        yield serves


@pytest.fixture
def api(server: Server) -> ApiServer:
    return ApiServer("127.0.0.1", server.port, str(server.account))


def test_an_object_comes_as_the_server_has_it(api: ApiServer, server: Server) -> None:
    answer = api.get(NODE_PATH, SECONDS)
    assert (answer.status, answer.kind) == (200, "Node")
    assert answer.body["metadata"] == real("node")["metadata"]
    assert api.namespace() == NAMESPACE
    assert server.cluster.asked == [NODE_PATH]


def test_what_the_server_says_of_an_error_comes_with_its_words(api: ApiServer, server: Server) -> None:
    answer = api.get(DAEMON_SET_PATH.replace("toolkit-installer", "other"), SECONDS)
    assert (answer.status, answer.kind) == (404, "Status")
    assert "not found" in answer.words
    server.cluster.forbidden.add(DAEMON_SET_PATH)
    forbidden = api.get(DAEMON_SET_PATH, SECONDS)
    assert (forbidden.status, forbidden.kind) == (403, "Status")
    assert "cannot get resource" in forbidden.words


def test_a_token_that_was_replaced_is_read_again(api: ApiServer, server: Server) -> None:
    assert api.get(NODE_PATH, SECONDS).status == 200
    server.cluster.tokens = {"new"}
    assert api.get(NODE_PATH, SECONDS).status == 401
    (server.account / "token").write_text("new\n")
    assert api.get(NODE_PATH, SECONDS).status == 200


def test_it_is_asked_for_whom_it_takes_the_pod(api: ApiServer, server: Server) -> None:
    answer = api.review(SECONDS)
    assert (answer.status, answer.kind) == (201, "SelfSubjectReview")
    assert answer.body["status"]["userInfo"]["username"] == ACCOUNT
    assert server.cluster.asked == [REVIEW_PATH]
    server.cluster.forbidden.add(REVIEW_PATH)
    assert (api.review(SECONDS).status, api.review(SECONDS).kind) == (403, "Status")
    server.cluster.tokens = set()
    assert (api.review(SECONDS).status, api.review(SECONDS).kind) == (401, "Status")


def test_an_answer_says_which_token_was_used_and_what_the_servers_clock_says(api: ApiServer, server: Server) -> None:
    now = time.time()
    answer = api.get(NODE_PATH, SECONDS)
    assert answer.date is not None
    assert now - 2 < answer.date < now + SECONDS
    assert answer.bearer == api.bearer()
    assert answer.bearer is not None
    assert answer.bearer.identity.startswith(ACCOUNT)
    (server.account / "token").write_text(token(exp=1))
    assert api.get(NODE_PATH, SECONDS).bearer == Bearer(answer.bearer.identity, ends=1)
    (server.account / "token").unlink()
    assert api.bearer() is None


@pytest.mark.parametrize("date", [None, "", "soon", "Fri, 99 Foo 2026 25:61:61 GMT", "Thu, 01 Jan 99999 00:00:00 GMT"])
def test_a_clock_that_tells_no_time_is_no_clock(date: str | None) -> None:
    assert _parse_date(date) is None


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_without_a_file_of_the_account_there_is_no_answer_but_its_name(
    api: ApiServer, server: Server, name: str
) -> None:
    (server.account / name).unlink()
    answer = api.get(NODE_PATH, SECONDS)
    assert answer.status is None
    assert str(server.account / name) in answer.words
    assert server.cluster.asked == []


@pytest.mark.parametrize("content", ["", "\n", "a\nb", "a b", "\N{SNOWMAN}"])
def test_a_token_that_is_none_is_not_sent(api: ApiServer, server: Server, content: str) -> None:
    (server.account / "token").write_text(content, encoding="utf-8")
    assert api.get(NODE_PATH, SECONDS).status is None
    assert server.cluster.asked == []


def test_without_a_namespace_the_file_is_named(api: ApiServer, server: Server) -> None:
    (server.account / "namespace").unlink()
    with pytest.raises(UnreadableError, match="namespace"):
        api.namespace()


def test_who_has_another_authority_is_told_nothing(api: ApiServer, server: Server) -> None:
    trustme.CA().cert_pem.write_to_path(str(server.account / "ca.crt"))
    answer = api.get(NODE_PATH, SECONDS)
    assert answer.status is None
    assert "certificate verify failed" in answer.words
    assert server.cluster.asked == []


def test_nobody_there_is_no_answer(server: Server) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        answer = ApiServer("127.0.0.1", free.getsockname()[1], str(server.account)).get(NODE_PATH, SECONDS)
    assert answer.status is None
    assert "refused" in answer.words


def test_who_takes_the_question_and_says_nothing_is_given_up(api: ApiServer, server: Server) -> None:
    server.cluster.silent = threading.Event()
    answer = api.get(NODE_PATH, 0.2)
    assert answer.status is None
    assert "within 0.2 s" in answer.words


@pytest.mark.parametrize(
    "piece, times, words",
    [
        ("<html>Bad gateway</html>", 1, "not JSON"),
        ("", 1, "not JSON"),
        ("[", 100_000, "not JSON"),
        ("[1]", 1, "not an object"),
        ("x", 5 << 20, "does not end"),
    ],
    ids=["a page", "nothing", "brackets", "a list", "too much"],
)
def test_an_answer_that_is_no_object_is_none(
    api: ApiServer, server: Server, piece: str, times: int, words: str
) -> None:
    server.cluster.sick = (200, piece * times)
    answer = api.get(NODE_PATH, SECONDS)
    assert (answer.status, answer.body, answer.kind) == (200, {}, "")
    assert words in answer.words


def test_an_answer_that_ends_too_early_is_none(api: ApiServer, server: Server) -> None:
    server.cluster.promised = 100
    answer = api.get(NODE_PATH, SECONDS)
    assert answer.status is None


def test_what_the_environment_says_of_proxies_and_passwords_is_not_for_us(
    api: ApiServer, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine 127.0.0.1 login other password other\n")
    (home / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    assert api.get(NODE_PATH, SECONDS).status == 200
    assert server.cluster.tokens == {TOKEN}


def test_nobody_is_sent_elsewhere_with_our_token(api: ApiServer, server: Server) -> None:
    server.cluster.sick = (302, "{}")
    assert api.get(NODE_PATH, SECONDS).status == 302
    assert server.cluster.asked == [NODE_PATH]


def test_the_token_is_in_no_words(api: ApiServer, server: Server) -> None:
    server.cluster.tokens = set()
    assert TOKEN not in repr(api.get(NODE_PATH, SECONDS))
    (server.account / "token").write_text("secret\nsecret")
    assert "secret" not in api.get(NODE_PATH, SECONDS).words
