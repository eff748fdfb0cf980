"""`delete-daemonset`: the whole program against an API server, as the pod that `helm uninstall` starts runs it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.node.instants import begin
from tests.support.api_server import DAEMON_SET, DAEMON_SET_PATH, Cluster, Server
from tests.support.fake_node import FakeNode, Run
from toolkit_installer.errors import ExitCode

GOING = "The DaemonSet is being deleted, and its pods give their nodes back: they are waited for"
GONE = "The DaemonSet is gone, and so are its pods"


def deleting(node: FakeNode, server: Server, *more: str) -> Run:
    """Start it; it needs no more than a pod without a node has."""
    address = ("--kubernetes-service-host", "127.0.0.1", "--kubernetes-service-port", str(server.port))
    return begin(node, "delete-daemonset", DAEMON_SET, *address, "--service-account-dir", str(server.account), *more)


def pods_end_after(requests: int) -> dict[int, Callable[[Cluster], None]]:
    """Return what happens when the DaemonSet was looked at so often: the last of its pods is gone."""

    def gone(cluster: Cluster) -> None:
        del cluster.objects[DAEMON_SET_PATH]

    return {requests: gone}


def test_it_ends_well_once_the_last_pod_is_gone(node: FakeNode, server: Server) -> None:
    server.cluster.after.update(pods_end_after(3))
    run = deleting(node, server)
    assert run.finish() == 0, run.output
    assert run.output.index(GOING) < run.output.index(GONE)
    assert [each.method for each in server.cluster.written] == ["DELETE"]
    assert server.cluster.asked == [DAEMON_SET_PATH] * 4


def test_one_that_is_gone_already_is_no_failure(node: FakeNode, server: Server) -> None:
    del server.cluster.objects[DAEMON_SET_PATH]
    run = deleting(node, server)
    assert run.finish() == 0, run.output
    assert "No such DaemonSet exists: nothing is to be deleted" in run.output


def test_an_api_server_that_fails_for_a_while_is_asked_again(node: FakeNode, server: Server) -> None:
    server.cluster.refused = [500, 503]
    server.cluster.after.update(pods_end_after(1))
    run = deleting(node, server)
    assert run.finish() == 0, run.output
    assert run.output.count("The API server does not say that the DaemonSet is being deleted: it is asked again") == 1
    assert "HTTP 500" in run.output


def test_pods_that_do_not_end_in_time_are_told(node: FakeNode, server: Server) -> None:
    run = deleting(node, server, "--timeout", "0.5")
    assert run.finish() == ExitCode.NOT_DELETED, run.output
    assert f"the DaemonSet toolkit/{DAEMON_SET} is being deleted, and is still there after 0.5 s" in run.output
    assert "kubectl -n toolkit get pods -o wide shows the pods" in run.output


def test_it_can_be_stopped_and_what_it_began_goes_on(node: FakeNode, server: Server) -> None:
    run = deleting(node, server)
    run.wait_for(GOING)
    assert run.stop() == 128 + signal.SIGTERM, run.output
    assert "Stopped before the DaemonSet was gone" in run.output
    assert "deletionTimestamp" in server.cluster.objects[DAEMON_SET_PATH]["metadata"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("a", "--kubernetes-service-host", "127.0.0.1", "--service-account-dir", "/none"), "cannot read /none/namesp"),
        (("a",), "KUBERNETES_SERVICE_HOST is not set: this asks the Kubernetes API server as a pod does"),
        (("A B", "--kubernetes-service-host", "127.0.0.1"), "NAME: 'A B' is not allowed"),
        ((), "NAME"),
    ],
)
def test_what_it_cannot_do_without_is_named(node: FakeNode, arguments: tuple[str, ...], words: str) -> None:
    run = begin(node, "delete-daemonset", *arguments)
    assert run.finish() in (ExitCode.USAGE, ExitCode.NOT_DELETED), run.output
    assert words in run.output
