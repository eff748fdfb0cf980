"""What the cluster is told of the node: its condition, taint, labels and events, whatever the API server does."""

from __future__ import annotations

import os
import queue
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node import zones
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import quickly
from tests.support.api_server import (
    DAEMON_SET,
    DAEMON_SET_PATH,
    NAMESPACE,
    NODE,
    NODE_PATH,
    Server,
    Written,
    serving,
)
from tests.support.fake_node import DAEMON_JSON, DEADLINE, DOCKER, WAITING, FakeNode, Run
from toolkit_installer import __version__

pytestmark = pytest.mark.usefixtures("configured")
CONDITION = "nvidia.com/ContainerToolkitReady"
TAINT = "nvidia.com/toolkit=missing:NoSchedule"
TOLERATION = {"key": "nvidia.com/toolkit", "operator": "Exists", "effect": "NoSchedule"}
UNTOLD = "The cluster could not be told how the node stands"
ALL = ("--node-condition", "true", "--startup-taint", TAINT, "--retaint", "--node-labels", "--node-events")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as serves:
        pod = serves.cluster.objects[DAEMON_SET_PATH]["spec"]["template"]["spec"]
        pod.setdefault("tolerations", []).append(TOLERATION)
        serves.cluster.objects[NODE_PATH]["spec"].pop("taints")
        yield serves


def waiting(node: FakeNode, server: Server, *more: str) -> Run:
    run = quickly(node, "run", *server.flags, "--socket", SOCKET, *more)
    run.wait_for(WAITING)
    return run


def condition(server: Server) -> dict[str, str]:
    found = server.cluster.objects[NODE_PATH]["status"]["conditions"]
    return next((each for each in found if each["type"] == CONDITION), {})


def taints(server: Server) -> list[dict[str, str]]:
    found: list[dict[str, str]] = server.cluster.objects[NODE_PATH]["spec"].get("taints", [])
    return found


def labels(server: Server) -> dict[str, str]:
    found = server.cluster.objects[NODE_PATH]["metadata"]["labels"]
    return {key: value for key, value in found.items() if key.startswith("toolkit-installer/")}


def events(server: Server, about: str = "Node") -> list[dict[str, Any]]:
    found = (each for path, each in server.cluster.objects.items() if "/events/" in path)
    return [each for each in found if each["involvedObject"]["kind"] == about]


def bare(server: Server) -> dict[str, Any]:
    """Return the Node without what changes with each version of it."""
    found = dict(server.cluster.objects[NODE_PATH])
    metadata = {key: value for key, value in found["metadata"].items() if key != "resourceVersion"}
    return {**found, "metadata": {**metadata, "annotations": metadata.get("annotations") or {}}}


def steps(server: Server) -> list[str]:
    """Return in words what was changed of the Node, in its order."""
    found = []
    for each in server.cluster.written:
        if each.path.endswith("/status"):
            found += [f"{one['status']} {one['reason']}" for one in each.body["status"].get("conditions", [])] or [
                "none"
            ]
        elif each.path == NODE_PATH and "spec" in each.body:
            found.append("taint" if each.body["spec"]["taints"] else "no taint")
    return found


@pytest.mark.usefixtures("dockerd")
def test_a_node_is_tainted_then_ready_then_untainted_and_at_the_end_as_it_was(node: FakeNode, server: Server) -> None:
    before = bare(server)
    run = waiting(node, server, *ALL)
    assert steps(server) == ["False Installing", "taint", "True Serving", "no taint"]
    assert condition(server)["message"] == "docker nvidia nvidia-cdi nvidia-legacy"
    assert labels(server)["toolkit-installer/version"] == __version__
    assert labels(server)["toolkit-installer/engine"] == "docker"
    messages = {each["reason"]: each["message"] for each in events(server)}
    assert messages.keys() == {"Installed", "EngineReloaded"}
    assert re.search(r"\(engine: docker; away: \d+\.\d s\)$", messages["EngineReloaded"])
    del server.cluster.objects[DAEMON_SET_PATH]
    assert run.stop() == 0, run.output
    assert (condition(server), taints(server), labels(server)) == ({}, [], {})
    assert bare(server) == before
    assert node.read(DAEMON_JSON) == DOCKER


def test_a_reload_that_is_pending_is_the_condition_and_an_event_until_it_is_made(
    node: FakeNode, server: Server, dockerd: FakeDockerd
) -> None:
    zones.shows(node, "12:00")
    run = waiting(node, server, *ALL, "--reload-when", "02:00-04:00")
    assert steps(server) == ["False Installing", "taint", "False ReloadPending"]
    assert condition(server)["message"].startswith("A reload of docker is pending: it is outside of 02:00-04:00 (")
    zones.shows(node, "12:30")  # the reason is another one, as the next window opens at another time
    run.wait_for("event=reload-still-pending")
    run.wait_for(WAITING)
    (event,) = events(server)
    assert (event["reason"], event["type"], event.get("count", 1)) == ("ReloadPending", "Normal", 1)
    assert "nvidia" not in dict(dockerd.take().handlers)
    zones.shows(node, "03:00")
    run.wait_for("event=configured")
    run.wait_for(WAITING)
    assert steps(server)[-2:] == ["True Serving", "no taint"]
    del server.cluster.objects[DAEMON_SET_PATH]
    assert run.stop() == 0, run.output
    assert node.read(DAEMON_JSON) == DOCKER


@pytest.mark.usefixtures("dockerd")
def test_a_new_pod_on_a_ready_node_reads_the_node_and_writes_nothing_but_what_is_new(
    node: FakeNode, server: Server
) -> None:
    run = waiting(node, server, *ALL)
    assert run.stop() == 0
    assert condition(server)["status"] == "True"  # nobody took the pod's place yet, and the node serves all the same
    server.cluster.written.clear()
    other = waiting(node, server, *ALL)
    assert steps(server) == []
    assert [each.path for each in server.cluster.written] == [NODE_PATH]  # the labels, which a new process applies once
    assert other.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_a_node_that_booted_since_it_was_ready_is_tainted_before_anything_else(node: FakeNode, server: Server) -> None:
    run = waiting(node, server, *ALL)
    assert run.stop() == 0
    server.cluster.objects[NODE_PATH]["metadata"]["annotations"]["toolkit-installer/ready-in-boot"] = "another"
    server.cluster.written.clear()
    other = waiting(node, server, *ALL)
    assert steps(server) == ["False Installing", "taint", "True Serving", "no taint"]
    assert other.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_without_being_asked_to_put_it_back_a_taint_is_taken_away_once_in_a_boot(
    node: FakeNode, server: Server
) -> None:
    theirs = {"key": "nvidia.com/toolkit", "value": "new", "effect": "NoSchedule"}
    other = {"key": "someone/else", "effect": "NoSchedule"}
    server.cluster.objects[NODE_PATH]["spec"]["taints"] = [theirs, other]
    run = waiting(node, server, "--startup-taint", TAINT)
    assert taints(server) == [other]
    assert run.stop() == 0
    server.cluster.objects[NODE_PATH]["spec"]["taints"] = [theirs, other]  # an operator wants it so
    again = waiting(node, server, "--startup-taint", TAINT)
    assert taints(server) == [theirs, other]
    assert again.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_a_taint_that_our_own_pods_do_not_tolerate_is_never_put_on_the_node(node: FakeNode, server: Server) -> None:
    for_a_while = {"key": "nvidia.com/toolkit", "operator": "Exists", "tolerationSeconds": 60}
    server.cluster.objects[DAEMON_SET_PATH]["spec"]["template"]["spec"]["tolerations"] = [for_a_while]
    for effect in ("NoSchedule", "NoExecute"):
        run = waiting(node, server, "--startup-taint", f"nvidia.com/toolkit:{effect}", "--retaint")
        assert "no toleration for it, or none that lasts" in run.output
        assert "taint" not in steps(server)
        server.cluster.objects[NODE_PATH]["metadata"].pop("annotations", None)
        assert run.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_somebody_elses_change_of_the_node_is_kept_when_both_write_at_once(node: FakeNode, server: Server) -> None:
    other = {"key": "someone/else", "effect": "NoSchedule"}

    def meddle(change: Written) -> None:
        if change.path == NODE_PATH and meddled:
            meddled.pop()
            found = server.cluster.objects[NODE_PATH]
            found["spec"]["taints"] = [*(each for each in found["spec"].get("taints") or [] if each != other), other]
            found["metadata"]["resourceVersion"] = str(int(found["metadata"].get("resourceVersion") or 0) + 1)

    meddled = [None] * 3
    server.cluster.before_change = meddle
    run = waiting(node, server, "--startup-taint", TAINT, "--retaint")
    assert server.cluster.codes == [409, 409, 409, 200, 200]  # it is put there, and taken away
    assert taints(server) == [other]
    assert run.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_a_look_that_fails_on_a_node_that_serves_leaves_what_the_cluster_was_told(
    node: FakeNode, server: Server
) -> None:
    run = waiting(node, server, *ALL)
    server.cluster.written.clear()
    node.write(DAEMON_JSON, b'{"runtimes": [}', 0o600)
    os.kill(run.pid, signal.SIGHUP)
    run.wait_for("Could not converge")
    run.wait_for(WAITING)
    assert steps(server) == []
    assert (condition(server)["reason"], taints(server)) == ("Serving", [])
    assert "Refused" in {each["reason"] for each in events(server)}
    assert run.stop() == 0


@pytest.mark.parametrize("code", [401, 403, 409, 429, 500, 503])
@pytest.mark.usefixtures("dockerd")
def test_a_failed_report_is_logged_once_and_sent_later_and_the_node_is_configured(
    node: FakeNode, server: Server, code: int
) -> None:
    server.cluster.refused = [code] * 40
    run = waiting(node, server, *ALL)
    assert node.docker()["default-runtime"] == "nvidia"
    assert run.output.count(UNTOLD) in (1, 2)  # what is installing, and what is installed, are two things to tell
    server.cluster.refused.clear()
    run.wait_for("The cluster was told how the node stands")
    assert condition(server)["reason"] == "Serving"
    assert "Installed" in {each["reason"] for each in events(server)}
    assert run.stop() == 0


def test_a_broken_engine_is_told_with_its_reason_and_of_the_daemon_set_too(node: FakeNode, server: Server) -> None:
    with FakeDockerd(node):
        run = waiting(node, server, *ALL)
    os.kill(run.pid, signal.SIGHUP)
    run.wait_for("Not ready: the engines do not serve the handlers")
    run.wait_for(WAITING)
    assert condition(server)["reason"] == "EngineDown"
    symptom, _, command = condition(server)["message"].partition("; on the node, ")
    assert symptom == f"docker: dockerd does not answer: Connection refused ({SOCKET}; look at what starts it)"
    assert command.startswith("`nsenter -t PID -m -p toolkit-installer status")
    assert [each["key"] for each in taints(server)] == ["nvidia.com/toolkit"]
    (found,) = events(server, "DaemonSet")
    assert found["type"] == "Warning"
    assert found["message"].startswith(f"{NODE}: ")
    assert found["involvedObject"]["name"] == DAEMON_SET
    assert found["metadata"]["namespace"] == NAMESPACE
    run.stop()


def test_an_engine_that_runs_and_answers_no_more_is_told_before_it_is_waited_for(
    node: FakeNode, server: Server
) -> None:
    with FakeDockerd(node) as engine:
        run = waiting(node, server, *ALL, "--reload-timeout", "600")
        told: queue.Queue[dict[str, str]] = queue.Queue()

        def listen(change: Written) -> None:
            for each in change.body.get("status", {}).get("conditions", []):
                told.put(each)

        server.cluster.before_change = listen
        os.kill(engine.pid, signal.SIGSTOP)  # its socket accepts whoever comes, and says nothing
        found = told.get(timeout=DEADLINE)
        assert found["reason"] == "EngineDown"
        assert found["message"].startswith("docker: dockerd does not answer: it did not answer in time (")
        os.kill(engine.pid, signal.SIGCONT)
        assert told.get(timeout=DEADLINE)["reason"] == "Serving"
        run.wait_for(WAITING)
        assert taints(server) == []
        assert run.stop() == 0


def test_why_a_node_is_refused_is_in_the_condition_before_the_run_ends(node: FakeNode, server: Server) -> None:
    node.write(DAEMON_JSON, b'{"runtimes": [}', 0o600)
    run = quickly(node, "run", *server.flags, *ALL)
    assert run.finish() == 3
    assert condition(server)["reason"] == "Refused"
    assert "daemon.json:1" in condition(server)["message"]
    assert taints(server)


@pytest.mark.usefixtures("dockerd")
def test_a_run_that_is_refused_on_a_node_that_serves_puts_no_taint_on_it(node: FakeNode, server: Server) -> None:
    run = waiting(node, server, *ALL)
    assert run.stop() == 0
    good = node.read(DAEMON_JSON)
    node.write(DAEMON_JSON, b'{"runtimes": [}', 0o600)
    refused = quickly(node, "run", *server.flags, *ALL)
    assert refused.finish() == 3
    assert (condition(server)["reason"], taints(server)) == ("Refused", [])
    node.write(DAEMON_JSON, good, 0o600)
    again = waiting(node, server, *ALL)
    assert (condition(server)["reason"], taints(server)) == ("Serving", [])
    assert again.stop() == 0


def test_nobody_is_told_anything_without_being_asked_to(node: FakeNode, server: Server) -> None:
    run = quickly(node, "run", *server.flags)
    run.wait_for(WAITING)
    assert run.stop() == 0
    assert server.cluster.written == []
