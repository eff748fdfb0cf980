"""`--cleanup auto`: a run in a DaemonSet's pod, told to stop, asks whether the DaemonSet still wants the node."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.instants import stopping
from tests.support.api_server import DAEMON_SET_PATH, NAMESPACE_PATH, NODE_PATH, Cluster, Server, serving
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, WAITING, FakeNode, Run

DOCKER = b'{\n  "log-driver": "json-file"\n}\n'
LEFT = "Leaving the node configured, as --cleanup auto says"
FLAGS = ("--cleanup", "auto", "--daemonset", "a", "--node-name", "b")


@pytest.fixture(autouse=True)
def configured(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as serves:
        yield serves


def assert_cleaned(node: FakeNode, run: Run) -> None:
    assert "The node is as it was" in run.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


def assert_left(node: FakeNode, run: Run) -> None:
    assert LEFT in run.output
    assert node.docker()["default-runtime"] == "nvidia"
    assert node.broken_runtimes() == []


# --- the DaemonSet stays ---


def test_a_rolling_update_changes_nothing_and_reloads_nothing(node: FakeNode, server: Server) -> None:
    old = node.waiting(*server.flags)
    assert "The DaemonSet wants this node" in old.output
    stamps = node.stamps()
    assert old.stop() == 0
    assert_left(node, old)
    assert node.stamps() == stamps
    new = node.waiting(*server.flags)
    assert NOTHING_TO_DO in new.output
    assert "Reloading" not in f"{old.output[old.output.index('Waiting for signal') :]}{new.output}"
    assert node.stamps() == stamps
    server.cluster.delete(DAEMON_SET_PATH)
    assert new.stop() == 0
    assert_cleaned(node, new)


def test_an_order_to_uninstall_asks_nobody(node: FakeNode, server: Server) -> None:
    run = node.waiting(*server.flags)
    asked = len(server.cluster.asked)
    done = node.do("uninstall")
    assert done.process.returncode == 0, done.output
    assert run.finish() == 0
    assert_cleaned(node, run)
    assert len(server.cluster.asked) == asked


# --- the DaemonSet goes ---


def without(path: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.objects.__delitem__(path)


def deleted_with_all_that_lets_it_ask(cluster: Cluster) -> None:
    """`kubectl delete -k`, when the ServiceAccount went first: nobody knows the token any more."""
    cluster.tokens = set()


def deleted_with_its_permissions(cluster: Cluster) -> None:
    cluster.forbidden = {DAEMON_SET_PATH, NAMESPACE_PATH, NODE_PATH}


def namespace_deleted(cluster: Cluster) -> None:
    """`kubectl delete namespace` deletes the pods first, and only then the DaemonSet."""
    cluster.delete(NAMESPACE_PATH)


def unlabelled(cluster: Cluster) -> None:
    del cluster.objects[NODE_PATH]["metadata"]["labels"]["nvidia.com/gpu.present"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(without(DAEMON_SET_PATH), id="gone"),
        pytest.param(lambda cluster: cluster.delete(DAEMON_SET_PATH), id="being deleted"),
        deleted_with_all_that_lets_it_ask,
        deleted_with_its_permissions,
        namespace_deleted,
        unlabelled,
    ],
)
def test_the_node_is_given_back_once_it_is_not_wanted(
    node: FakeNode, server: Server, change: Callable[[Cluster], None]
) -> None:
    run = node.waiting(*server.flags)
    change(server.cluster)
    assert run.stop() == 0
    assert_cleaned(node, run)


def test_the_question_comes_before_anything_else_is_done(node: FakeNode, server: Server) -> None:
    run = node.waiting(*server.flags)
    stamps = node.stamps()
    server.cluster.silent = threading.Event()
    before = len(server.cluster.asked)
    run.process.send_signal(signal.SIGTERM)
    while len(server.cluster.asked) == before:
        assert run.process.poll() is None, run.output
        time.sleep(0.01)
    assert node.stamps() == stamps
    del server.cluster.objects[DAEMON_SET_PATH]
    server.cluster.silent.set()
    assert run.finish() == 0
    assert_cleaned(node, run)


# --- nobody can say ---


@pytest.mark.parametrize("sick", [(503, "{}"), (404, "<html>no such page</html>")], ids=["failing", "a proxy"])
def test_an_api_server_that_fails_leaves_the_node_as_it_is_and_that_is_said(
    node: FakeNode, server: Server, sick: tuple[int, str]
) -> None:
    run = node.waiting(*server.flags)
    server.cluster.sick = sick
    assert run.stop() == 0
    assert_left(node, run)
    assert "The API server does not say whether the DaemonSet still wants this node" in run.output
    assert f"HTTP {sick[0]}" in run.output


def test_permissions_that_never_were_say_nothing_about_a_deletion(node: FakeNode, server: Server) -> None:
    server.cluster.forbidden = {DAEMON_SET_PATH}
    run = node.waiting(*server.flags)
    assert "needs get on this DaemonSet" in run.output
    assert run.stop() == 0
    assert_left(node, run)


def test_an_api_server_that_is_away_does_not_keep_the_node_from_being_configured(
    node: FakeNode, server: Server
) -> None:
    server.cluster.sick = (500, "{}")
    run = node.waiting(*server.flags)
    assert "The API server does not say" in run.output
    assert node.docker()["default-runtime"] == "nvidia"
    server.cluster.sick = None
    del server.cluster.objects[DAEMON_SET_PATH]
    assert run.stop() == 0  # 404 needs no earlier answer
    assert_cleaned(node, run)


def test_an_api_server_that_is_away_at_the_start_is_asked_until_it_answers_and_that_counts(
    node: FakeNode, server: Server
) -> None:
    """A node that boots has its pod before the pod has a network; months later the DaemonSet is deleted."""
    server.cluster.sick = (503, "{}")
    with stopping(node, "never", "run", *server.flags, woken=True) as run:
        run.wait_for("The API server does not say whether the DaemonSet wants this node: it is asked again")
        run.wait_for(WAITING)
        run.wait_for(WAITING)  # it was asked, in vain, and that is not said once more
        assert run.output.count("does not say") == 1
        server.cluster.sick = None
        run.wait_for("The DaemonSet wants this node")
        run.wait_for(WAITING)
        asked = len(server.cluster.asked)
        run.process.send_signal(signal.SIGHUP)
        run.wait_for(WAITING)
        assert len(server.cluster.asked) == asked, "it was asked again, though it has answered"
        server.cluster.tokens = set()
        assert run.stop() == 0, run.output
    assert "The node is as it was" in run.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


def test_what_was_answered_at_the_start_is_remembered_through_every_look_again(node: FakeNode, server: Server) -> None:
    run = node.waiting(*server.flags)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("Waiting for signal")
    server.cluster.tokens = set()
    assert run.stop() == 0
    assert_cleaned(node, run)


def test_a_daemonset_that_is_named_wrongly_is_told_at_the_start(node: FakeNode, server: Server) -> None:
    run = node.waiting(*server.flags, "--daemonset", "other")
    assert "The node would be cleaned up" in run.output
    assert run.stop() == 0
    assert_cleaned(node, run)


# --- outside a pod ---


@pytest.mark.parametrize(
    "flags, missing",
    [
        (("--cleanup", "auto", "--node-name", "b", "--kubernetes-service-host", "::1"), "DAEMONSET_NAME"),
        (("--cleanup", "auto", "--daemonset", "a", "--kubernetes-service-host", "::1"), "NODE_NAME"),
        (FLAGS, "KUBERNETES_SERVICE_HOST"),
    ],
)
def test_what_is_missing_for_the_question_is_said_before_anything_is_written(
    node: FakeNode, flags: tuple[str, ...], missing: str
) -> None:
    before = node.snapshot()
    done = node.do("run", *flags)
    assert done.process.returncode == 2
    assert f"{missing} is not set" in done.output
    assert node.snapshot() == before


def test_a_run_that_does_not_wait_asks_nobody(node: FakeNode) -> None:
    done = node.do("run", "--no-daemon", "--cleanup", "auto")
    assert done.process.returncode == 0, done.output


def test_uninstall_needs_no_cluster(node: FakeNode) -> None:
    node.do("run", "--no-daemon")
    done = node.do("uninstall", "--cleanup", "auto")
    assert done.process.returncode == 0, done.output
    assert_cleaned(node, done)
