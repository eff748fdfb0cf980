"""What a run reports to the cluster while the API server is slow or refuses; the page's reasons are the code's."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.support.api_server import DAEMON_SET, DAEMON_SET_PATH, NODE, NODE_PATH, Server, serving
from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.events import Event, EventKind, publish
from toolkit_installer.kubernetes.node_state import ConditionReason, NodeState
from toolkit_installer.node import machine, signals
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.reporting.cluster import EVENT_REASONS, NodeReport
from toolkit_installer.settings import ReportSettings, Taint

TAINT = Taint("nvidia.com/toolkit", "", "NoSchedule")
READY = NodeState(ConditionReason.SERVING, "docker nvidia")
DOWN = NodeState(ConditionReason.ENGINE_DOWN, "docker: it is not running")
INSTALLED = Receipt(State.INSTALLED, "1", "/usr/local/nvidia/toolkit", (), (), "/run/toolkit.pid", (), ())
LEFT = "The Node keeps what the cluster was told of it"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as serves:
        serves.cluster.objects[NODE_PATH]["spec"].pop("taints")
        pod = serves.cluster.objects[DAEMON_SET_PATH]["spec"]["template"]["spec"]
        pod["tolerations"] = [{"operator": "Exists"}]
        yield serves


def report(server: Server, *, stopping: bool, retaint: bool) -> NodeReport:
    node: Any = SimpleNamespace(services=SimpleNamespace(is_stopping=lambda: stopping))
    settings = ReportSettings(NODE, "127.0.0.1", server.port, str(server.account), DAEMON_SET, "x/Ready", TAINT)
    return NodeReport(msgspec.structs.replace(settings, retaint=retaint), node)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let no pause take any time: only what is rested for counts."""
    found: list[float] = []
    monkeypatch.setattr(signals, "sleep", found.append)
    monkeypatch.setattr(machine, "boot_seconds", lambda: 1000.0 + sum(found))
    return found


def all_of_it(told: NodeReport) -> NodeReport:
    """Have events and labels told as well."""
    told._settings = msgspec.structs.replace(told._settings, events=True, labels=True)
    told._api._settings = told._events._settings = told._settings
    return told


def happens(told: NodeReport, reason: str) -> None:
    """Pass it an event of the run that has this reason."""
    kind = next(kind for kind, (each, _) in EVENT_REASONS.items() if each == reason)
    told._events._add_event(Event(kind, "It has happened"))


def conditions(server: Server) -> list[str]:
    return [each["reason"] for each in server.cluster.objects[NODE_PATH]["status"]["conditions"]]


def taints(server: Server) -> list[str]:
    return [each["key"] for each in server.cluster.objects[NODE_PATH]["spec"].get("taints") or []]


def events(server: Server) -> list[str]:
    return [each["reason"] for path, each in server.cluster.objects.items() if "/events/" in path]


@pytest.mark.parametrize(
    "stopping, retaint, tainted", [(True, True, True), (False, True, False), (True, False, False)], ids=str
)
def test_a_node_that_goes_down_is_tainted_before_the_next_boot_and_no_other(
    server: Server, *, stopping: bool, retaint: bool, tainted: bool
) -> None:
    told = report(server, stopping=stopping, retaint=retaint)
    told.report_status(READY, None)
    assert not server.cluster.objects[NODE_PATH]["spec"].get("taints")
    told.prepare_shutdown()
    found = server.cluster.objects[NODE_PATH]["spec"].get("taints") or []
    assert [each["key"] for each in found] == ([TAINT.key] if tainted else [])
    reasons = [each["reason"] for each in server.cluster.objects[NODE_PATH]["status"]["conditions"]]
    assert reasons[-1] == ("Installing" if tainted else "Serving")


def test_what_is_to_be_taken_back_is_tried_again_while_the_api_server_is_too_busy(
    server: Server, pauses: list[float], logged: io.StringIO
) -> None:
    told = report(server, stopping=False, retaint=True)
    told.report_status(DOWN, None)
    server.cluster.refused = [429, 503, 429]
    told.remove_reports()
    assert (taints(server), "EngineDown" in conditions(server)) == ([], False)
    assert pauses == [1.0, 1.0]  # as its answers asked for
    assert LEFT not in logged.getvalue()


def test_what_the_api_server_never_takes_back_is_said_after_half_a_minute(
    server: Server, pauses: list[float], logged: io.StringIO
) -> None:
    told = report(server, stopping=False, retaint=True)
    told.report_status(DOWN, None)
    server.cluster.refused = [500] * 1000
    told.remove_reports()
    assert sum(pauses) == pytest.approx(25)
    assert logged.getvalue().count(LEFT) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_what_may_not_be_taken_back_is_not_tried_twice(
    server: Server, pauses: list[float], logged: io.StringIO, code: int
) -> None:
    told = report(server, stopping=False, retaint=True)
    told.report_status(DOWN, None)
    server.cluster.refused = [code] * 1000
    told.remove_reports()
    assert pauses == []
    assert LEFT in logged.getvalue()


def test_an_event_of_a_deleted_daemon_set_delays_nothing_and_causes_no_warning(
    server: Server, pauses: list[float], logged: io.StringIO
) -> None:
    told = all_of_it(report(server, stopping=False, retaint=True))
    told.report_status(READY, None)
    happens(told, "EngineNotServing")
    happens(told, "Installed")
    del server.cluster.objects[DAEMON_SET_PATH]
    told.remove_reports()
    assert events(server) == ["EngineNotServing", "Installed"]
    assert not told.has_pending_report
    assert pauses == []
    said = logged.getvalue()
    assert LEFT not in said
    assert "The API server refuses an event for good" in said


def test_a_rollback_whose_log_line_is_suppressed_is_an_event(
    server: Server, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log._LoggedLines, "written_digests", {})
    monkeypatch.setattr(log._LoggedLines, "suppressed_digests", frozenset())
    publish(EventKind.ROLLBACK, "The change failed and is taken back", reason="the disk is full")
    log.suppress_known_lines(log.get_line_digests())
    told = all_of_it(report(server, stopping=False, retaint=False))
    publish(EventKind.ROLLBACK, "The change failed and is taken back", reason="the disk is full")
    told.report_status(READY, None)
    assert logged.getvalue().count("event=rollback") == 1
    assert events(server) == ["RolledBack"] * 2  # about the Node and about the DaemonSet


def test_where_events_may_not_be_written_in_one_namespace_those_of_the_other_are(server: Server) -> None:
    told = all_of_it(report(server, stopping=False, retaint=True))
    server.cluster.forbidden = {"/api/v1/namespaces/toolkit/events"}
    happens(told, "EngineNotServing")
    happens(told, "Installed")
    told.report_status(READY, None)
    assert events(server) == ["EngineNotServing", "Installed"]
    assert told.has_pending_report  # that of the DaemonSet
    server.cluster.forbidden.clear()
    told.report_status(READY, None)
    assert events(server) == ["EngineNotServing", "Installed", "EngineNotServing"]
    assert not told.has_pending_report


def test_an_event_whose_answer_was_lost_is_not_written_twice(server: Server) -> None:
    told = all_of_it(report(server, stopping=False, retaint=False))
    happens(told, "EngineReloaded")
    for _ in range(2):
        server.cluster.lost.append("POST")
        told.report_status(READY, None)
        assert told.has_pending_report
    told.report_status(READY, None)
    assert not told.has_pending_report
    assert events(server) == ["EngineReloaded"]
    assert 409 in server.cluster.codes


def test_a_conflict_of_another_kind_does_not_count_as_written(server: Server) -> None:
    told = all_of_it(report(server, stopping=False, retaint=False))
    told.report_status(READY, INSTALLED)
    happens(told, "EngineReloaded")
    server.cluster.refused = [409]
    told.report_status(READY, INSTALLED)
    assert told.has_pending_report
    assert events(server) == []


def test_after_a_boot_an_api_server_that_is_away_for_a_while_is_asked_again(
    server: Server, pauses: list[float]
) -> None:
    answers = [(503, "{}"), (503, "{}"), (503, "{}"), None]
    server.cluster.before_each = lambda cluster: setattr(cluster, "sick", answers.pop(0) if answers else None)
    told = report(server, stopping=False, retaint=True)
    told.begin(INSTALLED)
    assert pauses == [0.5, 1.0, 2.0]
    assert taints(server) == [TAINT.key]
    assert conditions(server)[-1] == "Installing"


def test_after_a_boot_an_api_server_that_stays_away_keeps_nobody_waiting_for_long(
    server: Server, pauses: list[float]
) -> None:
    server.cluster.sick = (503, "{}")
    told = report(server, stopping=False, retaint=True)
    told.begin(INSTALLED)
    assert sum(pauses) == pytest.approx(15)
    assert told.has_pending_report


def test_a_taint_that_only_asks_to_prefer_other_nodes_needs_no_toleration(server: Server) -> None:
    pod = server.cluster.objects[DAEMON_SET_PATH]["spec"]["template"]["spec"]
    pod["tolerations"] = [{"operator": "Exists", "effect": "NoSchedule"}]
    told = report(server, stopping=False, retaint=True)
    told._settings = msgspec.structs.replace(told._settings, taint=Taint("a/b", "", "PreferNoSchedule"))
    told.report_status(DOWN, None)
    assert taints(server) == ["a/b"]


def test_secrets_are_masked_in_what_the_condition_says(server: Server) -> None:
    told = report(server, stopping=False, retaint=False)
    told.report_status(NodeState(ConditionReason.ENGINE_DOWN, 'docker: it said "password": "geheim"'), None)
    told.report_failure(ConfigurationError('line 3 is "token": "geheim"'), None)
    sent = [each["message"] for change in server.cluster.written for each in change.body["status"]["conditions"]]
    assert len(sent) == 2
    assert "geheim" not in "".join(sent)


def test_a_failure_is_told_with_how_the_node_stands_and_forgotten_once_it_serves(server: Server) -> None:
    told = report(server, stopping=False, retaint=True)
    told.report_status(READY, None)
    told.record_failure(ConfigurationError("the file is broken"))
    assert conditions(server)[-1] == "Serving"
    told.report_status(READY, None)
    assert conditions(server)[-1] == "Serving"
    told.record_failure(ConfigurationError("the file is broken"))
    told.report_status(NodeState(ConditionReason.INSTALLING), None)
    assert conditions(server)[-1] == "Refused"


@pytest.mark.parametrize(
    "ago, written",
    [(0.0, 0), (100_000.0, 1), (-100_000.0, 1), (None, 1)],
    ids=["just now", "a day ago", "in a day", "nobody says when"],
)
def test_a_condition_that_says_the_same_is_written_again_unless_it_was_told_lately(
    server: Server, ago: float | None, written: int
) -> None:
    report(server, stopping=False, retaint=False).report_status(READY, None)
    found = server.cluster.objects[NODE_PATH]["status"]["conditions"]
    (condition,) = [each for each in found if each["type"] == "x/Ready"]
    if ago is None:
        del condition["lastHeartbeatTime"]  # whoever else wrote it
    else:
        condition["lastHeartbeatTime"] = machine.text(machine.now() - ago)
    before = len(told_of_the_status(server))
    report(server, stopping=False, retaint=False).report_status(READY, None)
    assert len(told_of_the_status(server)) - before == written


def told_of_the_status(server: Server) -> list[str]:
    return [each.path for each in server.cluster.written if each.path.endswith("/status")]


HOSTILE: dict[str, Any] = {
    "no object of Kubernetes": {"kind": None},
    "another kind": {"kind": "Pod"},
    "no metadata": {"metadata": None},
    "no version": {"metadata": {"name": NODE}},
    "another name": {"metadata": {"name": "other", "resourceVersion": "1"}},
    "annotations": {"metadata": {"name": NODE, "resourceVersion": "1", "annotations": ["x"]}},
    "an annotation": {"metadata": {"name": NODE, "resourceVersion": "1", "annotations": {"x": 5}}},
    "no specification": {"spec": None},
    "a specification": {"spec": "x"},
    "taints": {"spec": {"taints": 5}},
    "a taint": {"spec": {"taints": [5]}},
    "a taint without a key": {"spec": {"taints": [{"effect": "NoSchedule"}]}},
    "no status": {"status": None},
    "conditions": {"status": {"conditions": {"type": "x/Ready"}}},
    "a condition": {"status": {"conditions": [None]}},
    "a condition of words": {"status": {"conditions": [{"type": "x/Ready", "status": ["True"]}]}},
}


@pytest.mark.parametrize("changed", HOSTILE.values(), ids=HOSTILE)
def test_a_node_that_is_not_as_kubernetes_has_it_is_neither_believed_nor_changed(
    server: Server, changed: dict[str, Any], pauses: list[float]
) -> None:
    server.cluster.objects[NODE_PATH] |= changed
    told = report(server, stopping=False, retaint=True)
    told.begin(None)
    told.report_status(DOWN, None)
    told.remove_reports()
    assert [each for each in server.cluster.written if each.kind.endswith("merge-patch+json")] == []
    assert "the Node" in told.saved.failure
    assert pauses, "it is tried again"


@pytest.mark.parametrize("changed", [{"kind": "Node"}, {"metadata": None}, {"metadata": {"name": DAEMON_SET}}], ids=str)
def test_a_daemonset_that_is_not_as_kubernetes_has_it_gets_no_event(server: Server, changed: dict[str, Any]) -> None:
    server.cluster.objects[DAEMON_SET_PATH] |= changed
    told = all_of_it(report(server, stopping=False, retaint=True))
    happens(told, "EngineNotServing")
    told.report_status(READY, None)
    assert events(server) == ["EngineNotServing"], "that about the Node is written"
    assert "the DaemonSet" in told.saved.failure


def test_an_answer_to_a_change_that_is_no_node_ends_no_run(server: Server) -> None:
    told = report(server, stopping=False, retaint=True)
    server.cluster.before_change = lambda _: server.cluster.objects[NODE_PATH].update(spec=None)
    told.report_status(DOWN, None)
    assert "the Node" in told.saved.failure


DOCS = Path(__file__).parents[3] / "docs"


def rows(column: str) -> dict[str, str]:
    """Return what the page says of each reason, in the table whose second column has values like these."""
    page = (DOCS / "node-status.md").read_text(encoding="utf-8")
    return dict(re.findall(rf"^\| `([A-Za-z]+)` \| ({column}) \|", page, re.MULTILINE))


def test_each_event_has_the_reason_and_the_type_that_the_page_gives_it() -> None:
    told = {reason: "Warning" if warning else "Normal" for reason, warning in EVENT_REASONS.values()}
    assert told == rows("Normal|Warning")
    assert len(set(EVENT_REASONS.values())) == len(told), "no reason is of both types"


def test_each_event_comes_of_a_line_of_the_log_that_there_is() -> None:
    lines = set(re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "logs.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert lines >= EVENT_REASONS.keys()


def test_each_reason_of_the_condition_has_the_status_that_the_page_gives_it() -> None:
    page = (DOCS / "node-status.md").read_text(encoding="utf-8")
    said: Mapping[str, str] = {
        reason: status for status, reason in re.findall(r"^\| `(True|False)` \| `([A-Za-z]+)` \|", page, re.MULTILINE)
    }
    assert said == {str(reason): str(NodeState(reason).ready) for reason in ConditionReason}
