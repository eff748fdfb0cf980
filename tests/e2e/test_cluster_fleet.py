"""What daemonset/base costs a real API server, alone and among hundreds of made-up nodes: its audit log is counted.

What a pod asks is about its own DaemonSet, namespace and node. So it has to be the same in a cluster of any size, and
nothing may be listed or watched: a watch by each of a thousand pods is what a large API server dies of.
"""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import control_plane, fleet, kinds
from tests.e2e.cluster.audit import AuditLog, Request, counted
from tests.e2e.cluster.control_plane import ControlPlane
from tests.e2e.cluster.kinds import Kind
from tests.e2e.cluster.rollout import DAEMON_SET, NAME, NAMESPACE, RealCluster, wait_until
from tests.support.built import go_tools
from tests.support.built.go_tools import Tool
from tests.support.manifests import FOLDER

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("fleet")]
MADE_UP = int(os.environ.get("E2E_FLEET", "300"))
"""How many nodes are made up; E2E_FLEET=1000 is for a machine with more processors."""
_REAL = 2
_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"
_ONCE = collections.Counter({("get", "daemonsets"): 1, ("get", "namespaces"): 1, ("get", "nodes"): 1})
"""What a pod asks at its start, and what it asks when it is told to stop and its node is still wanted."""
_REVIEW = ("create", "selfsubjectreviews")
_ROUNDS = 11
"""How often may be asked in the 30 seconds of a deletion: after 0.5, 1, 2, and then every 4 seconds."""
_SHOWN = 30
"""How many lines of what a phase cost are logged: the last ones are what is asked once, whatever the size."""
_SECONDS = 600.0
_AT_ONCE = '[{"op": "replace", "path": "/spec/updateStrategy/rollingUpdate/maxUnavailable", "value": "100%"}]'
"""A tenth of the nodes at a time takes eleven times ten seconds, whatever is asked meanwhile."""


@pytest.fixture(scope="module")
def audited(
    tmp_path_factory: pytest.TempPathFactory,
    kubernetes: Path,
    join: Callable[[contextlib.ExitStack, ControlPlane, Iterable[Kind]], RealCluster],
) -> Iterator[tuple[RealCluster, AuditLog]]:
    """Yield a cluster of its own with a few real nodes, and the log of what its API server is asked."""
    folder = tmp_path_factory.mktemp("k")
    audit = AuditLog(folder)
    with contextlib.ExitStack() as stack:
        flags = fleet.FLAGS | {"apiserver": (*fleet.FLAGS["apiserver"], *audit.flags)}
        plane = stack.enter_context(ControlPlane(folder / "control", kubernetes, flags))
        yield join(stack, plane, kinds.KINDS[:_REAL]), audit


def course(cluster: RealCluster, audit: AuditLog, made_up: list[str]) -> dict[str, list[Request]]:
    """Apply daemonset/base, restart its rollout and delete it; return what was asked in each of these phases."""
    names = [*cluster.nodes, *made_up]
    audit.take()
    cluster.apply()
    cluster.command("patch", DAEMON_SET, "--type=json", f"--patch={_AT_ONCE}")
    _wait_until_ready(cluster, names)
    asked = {"start": audit.take()}
    cluster.command("rollout", "restart", DAEMON_SET)
    _wait_until_ready(cluster, names)
    asked["rollout"] = audit.take()
    cluster.plane.kubectl("delete", f"--kustomize={FOLDER / 'base'}", "--wait=false")
    # to list hundreds of them five times a second would keep half a processor busy
    one = f"/api/v1/namespaces/{NAMESPACE}/pods?limit=1"
    wait_until(lambda: not cluster.plane.get(one), "no pods are left", _SECONDS)
    cluster.wait_until_no_pods(names)
    cluster.wait_until_no_namespace()
    asked["deletion"] = audit.take()
    for phase, requests in asked.items():
        _tell(phase, len(names), requests)
    return asked


def _wait_until_ready(cluster: RealCluster, names: list[str]) -> None:
    """Wait until each of these nodes has a ready pod of the last state; all pods are looked at only once they are."""

    def settled() -> bool:
        (daemon_set,) = cluster.plane.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}")
        status = daemon_set["status"]
        numbers = [status.get(key) for key in ("desiredNumberScheduled", "updatedNumberScheduled", "numberReady")]
        seen = status.get("observedGeneration") == daemon_set["metadata"]["generation"]
        return seen and numbers == [len(names)] * len(numbers)

    wait_until(settled, f"the DaemonSet has {len(names)} ready pods of the last state", _SECONDS)
    cluster.wait_until_ready(names)


def _tell(phase: str, nodes: int, requests: list[Request]) -> None:
    """Log what a phase cost, for whoever writes it down: --log-cli-level=INFO shows it."""
    for whose, those in (("pods of ours", _all(of_pods(requests))), ("all", requests)):
        cost = collections.Counter((request.user or "(401)", request.verb, request.resource) for request in those)
        lines = [f"{number:7} {number / nodes:7.2f}  {' '.join(what)}" for what, number in cost.most_common(_SHOWN)]
        told = (phase, nodes, whose, "\n".join(lines))
        logging.getLogger(__name__).info("%s, %d nodes, %s: number, and by the number of nodes\n%s", *told)


def _all(by_node: dict[str, list[Request]]) -> list[Request]:
    return [request for each in by_node.values() for request in each]


def of_pods(requests: list[Request]) -> dict[str, list[Request]]:
    """Return what the pods asked, by the real node whose they are; nothing else runs in their networks."""
    networks = {f"node{number}": control_plane.pods_of(number) for number in range(1, _REAL + 1)}
    found: dict[str, list[Request]] = {name: [] for name in networks}
    for request in requests:
        for name, network in networks.items():
            if ipaddress.ip_address(request.address) in ipaddress.ip_network(network):
                found[name].append(request)
    return found


def test_a_pod_whose_daemonset_is_deleted_before_its_permissions_asks_once(
    audited: tuple[RealCluster, AuditLog],
) -> None:
    cluster, audit = audited
    cluster.note()
    cluster.apply()
    cluster.wait_until_ready()
    audit.take()
    cluster.command("delete", DAEMON_SET, "--wait=false")
    cluster.wait_until_no_pods()
    for name, requests in of_pods(audit.take()).items():
        assert counted(requests) == {("get", "daemonsets"): 1}, name
    cluster.delete()
    cluster.assert_as_before(reloads=2)


def test_each_pod_gets_three_objects_and_watches_nothing_whatever_the_cluster_size(
    audited: tuple[RealCluster, AuditLog], go_tool: Callable[[Tool], Path]
) -> None:
    cluster, audit = audited
    cluster.note()
    courses = [course(cluster, audit, [])]
    cluster.assert_as_before(reloads=2)
    made_up = fleet.make_up(cluster.plane, go_tool(go_tools.KWOK) / "kwok", MADE_UP)
    courses.append(course(cluster, audit, made_up))
    cluster.assert_as_before(reloads=4)

    for asked in courses:
        for phase, requests in asked.items():
            by_node = of_pods(requests)
            ours = _all(by_node)
            assert {request.user for request in ours} <= {_ACCOUNT, ""}, "somebody else is taken for the pods"
            assert {request.status for request in ours if not request.user} <= {401}
            assert [each for each in requests if each.user == _ACCOUNT and each not in ours] == []
            _assert_few(phase, by_node)
        assert any(each.verb == "watch" and each.user != _ACCOUNT for each in asked["start"]), "no watch is seen at all"


def _assert_few(phase: str, by_node: dict[str, list[Request]]) -> None:
    """Assert that each pod asked what docs/kubernetes.md says, under "Cleanup that asks first"."""
    for name, requests in by_node.items():
        asked = counted(requests)
        assert {each.name for each in requests if each.resource == "nodes"} <= {name}, "another node is looked at"
        if phase == "deletion":
            assert asked.keys() <= {*_ONCE, _REVIEW}, name
            assert 1 <= asked["get", "daemonsets"] <= _ROUNDS, f"{name}: {asked}"
            assert all(number <= asked["get", "daemonsets"] for number in asked.values()), f"{name}: {asked}"
            continue
        pods = {"start": 1, "rollout": 2}[phase]
        if _left_without_an_answer(requests):
            logging.getLogger(__name__).warning("%s, %s: the API server was too busy to answer: %s", phase, name, asked)
            assert asked.keys() <= _ONCE.keys(), name
            assert max(asked.values()) <= _ROUNDS * pods, f"{name}: {asked}"
        else:
            assert asked == dict.fromkeys(_ONCE, pods), f"{name}: each pod asks once"


def _left_without_an_answer(requests: list[Request]) -> bool:
    """Tell whether a pod got no answer in time to one of its questions, as it happens on a busy machine.

    It asks all three again then, from the first on. A question that comes too late is answered by 500; one that does
    not even come is not known; and where an answer comes too late, the questions after it are missing from that round.
    """
    pods = {request.address for request in requests}
    each_pod = [counted(request for request in requests if request.address == pod) for pod in pods]
    broken_off = any(len({asked[question] for question in _ONCE}) > 1 for asked in each_pod)
    return broken_off or any(request.status >= 500 for request in requests)
