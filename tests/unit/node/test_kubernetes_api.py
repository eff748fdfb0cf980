"""One question to the API server, over real HTTPS: what comes back, whatever it does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.api_server import DAEMON_SET_PATH, NAMESPACE, NODE_PATH, TOKEN, Server, real, serving
from toolkit_installer.node.kubernetes_api import ApiServer, UnreadableError

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
    assert "timed out" in answer.words.lower()


@pytest.mark.parametrize(
    "body, words",
    [
        ("<html>Bad gateway</html>", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not an object"),
        ("x" * (17 * 1024 * 1024), "does not end"),
    ],
    ids=["a page", "nothing", "brackets", "a list", "too much"],
)
def test_an_answer_that_is_no_object_is_none(api: ApiServer, server: Server, body: str, words: str) -> None:
    server.cluster.sick = (200, body)
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
