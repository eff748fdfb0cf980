"""`--cleanup auto`: a run in a DaemonSet's pod asks whether the DaemonSet wants the node, at its start and its end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.instants import quickly
from tests.support.api_server import (
    DAEMON_SET_PATH,
    NAMESPACE_PATH,
    NODE_PATH,
    REVIEW_PATH,
    Cluster,
    Server,
    cluster,
    token,
)
from tests.support.fake_node import DAEMON_JSON, DOCKER, NOTHING_TO_DO, STORE, TOOLKIT, WAITING, FakeNode, Run

pytestmark = pytest.mark.usefixtures("configured")
LEFT = "Leaving the node configured, as --cleanup auto says"
HELD = "Nothing is changed on this node"
WANTED = "The DaemonSet wants this node"
NEVER_TOLD = "The API server never said to this run that the DaemonSet wants this node"
FLAGS = ("--cleanup", "auto", "--daemonset", "a", "--node-name", "b")


def assert_cleaned(node: FakeNode, run: Run) -> None:
    assert "The node is as it was" in run.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


def waiting(node: FakeNode, server: Server, *more: str) -> Run:
    """Start a run that spends no time between its questions, and return it once it waits."""
    run = quickly(node, "run", *server.flags, *more)
    run.wait_for(WAITING)
    return run


def installed(node: FakeNode, server: Server) -> None:
    """Have an earlier run install, and leave it installed."""
    run = node.waiting(*server.flags)
    assert run.stop() == 0, run.output
    assert_left(node, run)


def assert_untouched(node: FakeNode, run: Run) -> None:
    assert "Nothing to clean up" in run.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)
    assert not node.exists(STORE)


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


def forbidden(cluster: Cluster) -> None:
    cluster.forbidden = {DAEMON_SET_PATH, NAMESPACE_PATH, NODE_PATH}


def deleted_while_the_token_is_known_for_a_while(cluster: Cluster) -> None:
    """`kubectl delete -k`, when a moment ago the token was good: the API server goes on accepting it for 10 s."""
    forbidden(cluster)
    cluster.after[len(cluster.asked) + 3] = deleted_with_all_that_lets_it_ask


def deleted_where_nobody_may_ask_who_he_is(cluster: Cluster) -> None:
    """The same in a cluster that took `system:basic-user` away."""
    cluster.forbidden = {REVIEW_PATH}
    deleted_with_all_that_lets_it_ask(cluster)


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
        deleted_while_the_token_is_known_for_a_while,
        deleted_where_nobody_may_ask_who_he_is,
        namespace_deleted,
        unlabelled,
    ],
)
def test_the_node_is_given_back_once_it_is_not_wanted(
    node: FakeNode, server: Server, change: Callable[[Cluster], None]
) -> None:
    run = waiting(node, server)
    change(server.cluster)
    assert run.stop() == 0
    assert_cleaned(node, run)


def expired(server: Server) -> None:
    """The API server was away, so that the kubelet could not renew the token."""
    (server.account / "token").write_text(token(exp=time.time() - 1))


def unknown_to_one_of_several(server: Server) -> None:
    server.cluster.tokens = set()
    server.cluster.after[len(server.cluster.asked) + 6] = lambda cluster: cluster.tokens.update({token()})


def of_somebody_else(server: Server) -> None:
    (server.account / "token").write_text(token(sub="system:serviceaccount:toolkit:another"))


def unreadable(server: Server) -> None:
    (server.account / "token").write_text("opaque")


@pytest.mark.parametrize("change", [expired, unknown_to_one_of_several, of_somebody_else, unreadable])
def test_a_401_that_is_no_deletion_leaves_the_node_configured(
    node: FakeNode, server: Server, change: Callable[[Server], None]
) -> None:
    run = waiting(node, server)
    change(server)
    assert run.stop() == 0
    assert_left(node, run)


@pytest.mark.parametrize("name", ["/", "/nodes"])
def test_permissions_that_somebody_broke_leave_every_node_configured(node: FakeNode, server: Server, name: str) -> None:
    """A RoleBinding is broken, and a rollout replaces all pods at once."""
    run = waiting(node, server)
    forbidden(server.cluster)
    server.cluster.forbidden = {path for path in server.cluster.forbidden if name in path}
    stamps = node.stamps()
    assert run.stop() == 0
    assert_left(node, run)
    again = waiting(node, server)
    assert NOTHING_TO_DO in again.output
    assert again.stop() == 0
    assert_left(node, again)
    assert node.stamps() == stamps


# --- deleted while it starts ---


def without_a_token(cluster: Cluster) -> None:
    cluster.tokens = set()


NO = [
    pytest.param(without_a_token, id="401"),
    pytest.param(forbidden, id="403"),
    pytest.param(without(DAEMON_SET_PATH), id="404"),
    pytest.param(lambda cluster: cluster.delete(DAEMON_SET_PATH), id="being deleted"),
    pytest.param(namespace_deleted, id="namespace"),
    pytest.param(unlabelled, id="not wanted"),
]


def asked_again(server: Server) -> None:
    """Wait until a run has asked once more by itself."""
    asked = len(server.cluster.asked)
    while len(server.cluster.asked) == asked:
        time.sleep(0.01)


@pytest.mark.parametrize("change", NO)
def test_a_first_answer_that_does_not_want_the_node_changes_nothing_on_it(
    node: FakeNode, server: Server, change: Callable[[Cluster], None], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    ready.write_text("of an earlier container")
    stamps = node.stamps()
    change(server.cluster)
    run = waiting(node, server, "--ready-file", str(ready))
    assert HELD in run.output
    asked_again(server)
    assert run.output.count(WAITING) == 1, "it looks again by itself, and says nothing of what it has said"
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(HELD)
    run.wait_for(WAITING)
    assert run.output.count(HELD) == 2, "once at the start, and once for the signal"
    assert node.stamps() == stamps
    assert not ready.exists()
    asked = len(server.cluster.asked)
    server.cluster.silent = threading.Event()  # to leave, nobody need be asked
    assert run.stop() == 0
    assert_untouched(node, run)
    assert len(server.cluster.asked) <= asked + 1


@pytest.mark.parametrize("change", NO)
@pytest.mark.parametrize("event", ["time", "HUP"])
def test_the_node_is_configured_once_it_is_wanted_after_all(
    node: FakeNode, server: Server, change: Callable[[Cluster], None], event: str
) -> None:
    """The permissions were applied after the DaemonSet, or mended."""
    change(server.cluster)
    run = waiting(node, server) if event == "time" else node.waiting(*server.flags)
    assert HELD in run.output
    fresh = cluster()
    server.cluster.objects, server.cluster.tokens, server.cluster.forbidden = fresh.objects, fresh.tokens, set()
    if event == "HUP":
        run.process.send_signal(signal.SIGHUP)
    run.wait_for(WANTED)
    run.wait_for(WAITING)
    assert node.docker()["default-runtime"] == "nvidia"
    assert run.stop() == 0
    assert_left(node, run)


@pytest.mark.parametrize("change", NO[:2])
def test_a_node_that_an_earlier_run_installed_is_brought_up_to_date_and_left(
    node: FakeNode, server: Server, change: Callable[[Cluster], None]
) -> None:
    """An update, while the permissions are broken or the token is not accepted."""
    installed(node, server)
    change(server.cluster)
    run = waiting(node, server, "--nvidia-runtime-name", "other")
    assert "other" in node.docker()["runtimes"]
    assert run.stop() == 0
    assert "does not say whether" in run.output
    assert LEFT in run.output
    assert "other" in node.docker()["runtimes"]


@pytest.mark.parametrize("change", NO[2:])
def test_a_node_that_is_not_wanted_any_more_is_not_brought_up_to_date_but_given_back(
    node: FakeNode, server: Server, change: Callable[[Cluster], None]
) -> None:
    installed(node, server)
    stamps = node.stamps()
    change(server.cluster)
    run = waiting(node, server, "--nvidia-runtime-name", "other")
    assert HELD in run.output
    assert node.stamps() == stamps
    assert run.stop() == 0
    assert_cleaned(node, run)


@pytest.mark.parametrize("last", [(503, "{}"), None], ids=["no answer", "401"])
@pytest.mark.parametrize("woken", ["", "woken"])
def test_a_run_that_never_learned_that_the_node_is_wanted_reverts_its_installation(
    node: FakeNode, server: Server, last: tuple[int, str] | None, woken: str
) -> None:
    """The API server was away at the start, and all is deleted meanwhile."""
    server.cluster.sick = (503, "{}")
    run = waiting(node, server)
    assert node.docker()["default-runtime"] == "nvidia"
    if woken:
        run.process.send_signal(signal.SIGHUP)
        run.wait_for(NOTHING_TO_DO)
        run.wait_for(WAITING)
    server.cluster.tokens = set()
    server.cluster.sick = last
    assert run.stop() == 0
    assert NEVER_TOLD in run.output
    assert_cleaned(node, run)


def test_what_an_earlier_run_installed_is_none_of_that(node: FakeNode, server: Server) -> None:
    """A node boots, and is shut down again, while the API server is away."""
    installed(node, server)
    server.cluster.sick = (503, "{}")
    run = waiting(node, server)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(NOTHING_TO_DO)
    run.wait_for(WAITING)
    assert run.stop() == 0
    assert_left(node, run)


def test_a_signal_ends_the_first_question_and_nothing_was_changed(node: FakeNode, server: Server) -> None:
    server.cluster.silent = threading.Event()
    run = node.start(*server.flags)
    while not server.cluster.asked:
        assert run.process.poll() is None, run.output
        time.sleep(0.01)
    assert run.stop() == 0
    assert_untouched(node, run)


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


def test_an_api_server_that_is_away_at_the_start_is_asked_until_it_answers(node: FakeNode, server: Server) -> None:
    """A node that boots has its pod before the pod has a network; months later the DaemonSet is deleted."""
    server.cluster.sick = (503, "{}")
    run = waiting(node, server)
    assert "The API server does not say whether the DaemonSet wants this node: it is asked again" in run.output
    asked_again(server)
    assert run.output.count("does not say") == 1  # in vain, and that is not said once more
    assert run.output.count(WAITING) == 1
    server.cluster.sick = None
    run.wait_for(WANTED)
    run.wait_for(WAITING)
    asked = len(server.cluster.asked)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    assert len(server.cluster.asked) == asked, "it was asked again, though it has answered"
    server.cluster.tokens = set()
    assert run.stop() == 0, run.output
    assert_cleaned(node, run)


def test_what_was_answered_at_the_start_is_remembered_through_every_look_again(node: FakeNode, server: Server) -> None:
    run = waiting(node, server)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    server.cluster.tokens = set()
    assert run.stop() == 0
    assert_cleaned(node, run)


def test_a_daemonset_that_is_named_wrongly_is_told_at_the_start(node: FakeNode, server: Server) -> None:
    run = node.waiting(*server.flags, "--daemonset", "other")
    assert HELD in run.output
    assert "does not exist" in run.output
    assert run.stop() == 0
    assert_untouched(node, run)


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
