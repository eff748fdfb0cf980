"""The client of the one Node of this pod: what is read and changed of it, and which answers count as whose refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.api_server import DAEMON_SET, DAEMON_SET_PATH, NAMESPACE, NODE, NODE_PATH, Server, serving
from toolkit_installer.kubernetes import client, node_client, node_state
from toolkit_installer.kubernetes.node_client import NodeClient, RefusedEventError, ReportError
from toolkit_installer.kubernetes.node_state import EventContent, ReportedEvent
from toolkit_installer.settings import ReportSettings

NOW = "2026-01-01T00:00:00Z"
ABOUT_NODE = EventContent("Node", "EngineReloaded", "docker was reloaded", heard_at=255)
ABOUT_SET = msgspec.structs.replace(ABOUT_NODE, about="DaemonSet")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as serves:
        yield serves


@pytest.fixture
def nodes(server: Server) -> NodeClient:
    made = NodeClient(ReportSettings(NODE, "127.0.0.1", server.port, str(server.account), DAEMON_SET))
    made.begin(20.0)
    return made


def asked(server: Server) -> int:
    return server.cluster.asked.count(NODE_PATH)


def event(content: EventContent = ABOUT_NODE) -> ReportedEvent:
    return ReportedEvent(content, name="", count=0, first=1.0, last=1.0)


def events(server: Server) -> dict[str, dict[str, Any]]:
    return {path: each for path, each in server.cluster.objects.items() if "/events/" in path}


# --- the Node ---


def test_the_node_is_read_once_a_round_and_anew_after_a_change(server: Server, nodes: NodeClient) -> None:
    assert nodes.read()["metadata"]["name"] == NODE
    nodes.read()
    assert asked(server) == 1
    nodes.change({"metadata": {"labels": {"a": "b"}}}, "the label")
    assert nodes.read()["metadata"]["labels"]["a"] == "b"
    assert asked(server) == 1, "the answer to the change is the Node"
    nodes.begin(20.0)
    nodes.read()
    assert asked(server) == 2


def test_fields_of_ours_are_applied_by_our_name_over_those_of_others(server: Server, nodes: NodeClient) -> None:
    nodes.apply("/status", {"status": {"conditions": []}}, "the condition")
    (sent,) = server.cluster.written
    assert (sent.method, sent.path, sent.kind) == ("PATCH", f"{NODE_PATH}/status", client.APPLY)
    assert sent.query == f"fieldManager={node_state.MANAGER}&force=true"


def test_a_change_of_a_node_that_another_client_changed_meanwhile_is_not_made(
    server: Server, nodes: NodeClient
) -> None:
    version = nodes.read()["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}}
    assert nodes.change(patch, "the label")
    assert not nodes.change({"metadata": {"resourceVersion": version, "labels": {"a": "c"}}}, "the label")
    assert nodes.read()["metadata"]["labels"]["a"] == "b"
    assert asked(server) == 2, "what was read before it counts no longer"


@pytest.mark.parametrize(
    "code, is_final", [(401, True), (403, True), (404, True), (409, False), (500, False), (429, False)]
)
def test_a_refusal_tells_what_was_refused_and_whether_to_try_again(
    server: Server, nodes: NodeClient, code: int, *, is_final: bool
) -> None:
    server.cluster.sick = (code, "{}")
    with pytest.raises(ReportError, match=f"the label: HTTP {code}") as refused:
        nodes.apply("", {}, "the label")
    assert (refused.value.status, refused.value.is_final) == (code, is_final)
    assert refused.value.wait == (1.0 if code == 429 else 0.0)


def test_an_api_server_that_is_away_is_no_answer(nodes: NodeClient, server: Server, tmp_path: Path) -> None:
    (tmp_path / "serviceaccount/token").unlink()
    with pytest.raises(ReportError, match="the Node: no answer") as refused:
        nodes.read()
    assert (refused.value.status, refused.value.is_final) == (None, False)
    assert server.cluster.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        {"kind": "Pod"},
        {"spec": {"taints": [{"key": "a"}]}},
        {"status": {"conditions": [{"type": "a"}]}},
        {"metadata": {"name": NODE}},
    ],
    ids=["kind", "taint", "condition", "version"],
)
def test_what_is_no_node_is_not_believed(server: Server, nodes: NodeClient, answer: dict[str, Any]) -> None:
    server.cluster.objects[NODE_PATH] |= answer
    with pytest.raises(ReportError, match="the Node is not as Kubernetes has it"):
        nodes.read()


def test_an_answer_about_another_node_is_not_believed(server: Server, nodes: NodeClient) -> None:
    server.cluster.before_change = lambda _: server.cluster.objects[NODE_PATH]["metadata"].update(name="other")
    with pytest.raises(ReportError, match="the answer is about another one"):
        nodes.apply("", {"metadata": {"name": NODE}}, "the labels")


def test_what_a_question_needs_is_imported_before_its_time_begins(
    nodes: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(node_client, "monotonic", lambda: now[0])
    monkeypatch.setattr(client, "prepare", lambda: now.__setitem__(0, now[0] + 60.0))  # on a busy node
    nodes.begin(5.0)
    assert nodes._seconds() == 5.0


def test_all_requests_of_a_round_share_its_time_and_each_gets_some(
    nodes: NodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(node_client, "monotonic", lambda: now[0])
    nodes.begin(5.0)
    assert nodes._seconds() == 5.0
    now[0] = 3.0
    assert nodes._seconds() == 2.0
    now[0] = 100.0
    assert nodes._seconds() == 0.5
    nodes.begin(5.0)
    assert nodes._seconds() == 5.0, "a round begins with its first request"


# --- events ---


def test_an_event_lies_with_its_object_and_nodes_have_no_namespace(server: Server, nodes: NodeClient) -> None:
    for content in (ABOUT_NODE, ABOUT_SET):
        written = nodes.write(event(content), now=NOW)
        assert (written.count, written.first) == (1, 1.0)
    (about_node, about_set) = events(server).items()
    assert about_node[0] == f"/api/v1/namespaces/default/events/{NODE}.ff"
    assert about_set[0] == f"/api/v1/namespaces/{NAMESPACE}/events/{DAEMON_SET}.ff"
    assert about_node[1]["involvedObject"]["uid"] == NODE, "kubectl looks for the kubelet's by that"
    uid = server.cluster.objects[DAEMON_SET_PATH]["metadata"]["uid"]
    assert about_set[1]["involvedObject"]["uid"] == uid


def test_an_event_that_happens_again_is_counted_and_one_that_expired_written_anew(
    server: Server, nodes: NodeClient
) -> None:
    written = msgspec.structs.replace(nodes.write(event(), now=NOW), count=2)
    assert nodes.write(written, now=NOW) == written
    ((path, found),) = events(server).items()
    assert found["count"] == 2
    del server.cluster.objects[path]
    again = nodes.write(written, now=NOW)
    assert again.count == 1
    assert list(events(server)) == [path]


def test_an_event_that_was_written_though_its_answer_was_lost_counts_as_written(
    server: Server, nodes: NodeClient
) -> None:
    server.cluster.lost.append("POST")
    with pytest.raises(ReportError, match="an event: HTTP 504"):
        nodes.write(event(), now=NOW)
    assert nodes.write(event(), now=NOW).count == 1
    assert len(events(server)) == 1


@pytest.mark.parametrize(
    "code, error",
    [
        (400, RefusedEventError),
        (422, RefusedEventError),
        (404, RefusedEventError),
        (409, ReportError),
        (403, ReportError),
        (500, ReportError),
    ],
)
def test_an_event_that_is_never_accepted_is_told_from_one_to_try_again(
    server: Server, nodes: NodeClient, code: int, error: type[Exception]
) -> None:
    server.cluster.refused = [code]
    with pytest.raises(error, match=str(code)):
        nodes.write(event(), now=NOW)


def test_nobody_reads_events_of_a_daemonset_that_is_gone(server: Server, nodes: NodeClient) -> None:
    daemon_set = server.cluster.objects.pop(DAEMON_SET_PATH)
    with pytest.raises(RefusedEventError, match="the DaemonSet: HTTP 404"):
        nodes.write(event(ABOUT_SET), now=NOW)
    server.cluster.objects[DAEMON_SET_PATH] = daemon_set
    server.cluster.forbidden = {DAEMON_SET_PATH}
    with pytest.raises(ReportError, match="the DaemonSet: HTTP 403"):
        nodes.write(event(ABOUT_SET), now=NOW)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda server: (server.account / "namespace").unlink(), "namespace"),
        (
            lambda server: server.cluster.objects[DAEMON_SET_PATH].update(kind="Pod"),
            "the DaemonSet is not as Kubernetes",
        ),
    ],
    ids=["no namespace", "no DaemonSet"],
)
def test_a_daemonset_that_cannot_be_told_is_an_error_of_the_report(
    server: Server, nodes: NodeClient, spoil: Callable[[Server], object], words: str
) -> None:
    spoil(server)
    with pytest.raises(ReportError, match=words):
        nodes.daemon_set()
