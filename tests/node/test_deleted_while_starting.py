"""Applied and deleted again, or disturbed otherwise, at each moment of a run with `--cleanup auto`.

No node that is not wanted is left configured, and none that is wanted is unconfigured.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.faults import NEVER, Outcome, Plan, run
from tests.node.instants import quickly
from tests.node.stopping_run import Clock
from tests.support.api_server import (
    DAEMON_SET_PATH,
    NAMESPACE_PATH,
    NODE_PATH,
    Cluster,
    Server,
    cluster,
    token,
)
from tests.support.fake_node import DAEMON_JSON, DOCKER, STORE, TOOLKIT, WAITING, FakeNode, Run
from tests.support.quick import Few
from toolkit_installer.node import processes

pytestmark = pytest.mark.usefixtures("configured")
ROUNDS = int(os.environ.get("ROUNDS", "6"))
"""How many with random delays; more of them from the environment."""
SEED = os.environ.get("ROUNDS_SEED", "1")
FLAGS = ("--socket", SOCKET, "--reload-budget", "100/60")
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}


def is_untouched(node: FakeNode, dockerd: FakeDockerd) -> bool:
    served = {name for name, _ in dockerd.take().handlers}
    return (
        node.read(DAEMON_JSON) == DOCKER
        and not node.exists(TOOLKIT)
        and not node.exists(STORE)
        and not served & HANDLERS
    )


def is_configured(node: FakeNode, dockerd: FakeDockerd) -> bool:
    served = {name for name, _ in dockerd.take().handlers}
    return (
        set(node.docker().get("runtimes", {})) >= HANDLERS
        and served >= HANDLERS
        and node.exists(TOOLKIT)
        and not node.broken_runtimes()
    )


# --- what happens to the DaemonSet ---


def in_that_order(*steps: Callable[[Cluster], None]) -> Callable[[Cluster], None]:
    """Return a change of which each step is seen by one request more."""

    def begin(state: Cluster) -> None:
        steps[0](state)
        for number, step in enumerate(steps[1:], start=len(state.asked) + 1):
            state.after[number] = step

    return begin


def no_account(state: Cluster) -> None:
    state.tokens = set()


def no_permissions(state: Cluster) -> None:
    state.forbidden = state.forbidden | {DAEMON_SET_PATH, NAMESPACE_PATH}


def no_cluster_permissions(state: Cluster) -> None:
    state.forbidden = state.forbidden | {NODE_PATH}


def no_daemon_set(state: Cluster) -> None:
    state.objects.pop(DAEMON_SET_PATH, None)


def no_namespace(state: Cluster) -> None:
    state.delete(NAMESPACE_PATH)


DELETIONS = {
    "the account first": in_that_order(no_account, no_permissions, no_daemon_set),
    "the permissions first": in_that_order(no_permissions, no_cluster_permissions, no_account),
    "the cluster's permissions first": in_that_order(no_cluster_permissions, no_permissions, no_daemon_set, no_account),
    "the DaemonSet first": in_that_order(no_daemon_set, no_permissions, no_account),
    "the namespace first": in_that_order(no_namespace, no_account),
}


def away(state: Cluster) -> None:
    state.sick = (503, "{}")


def away_for_a_moment(state: Cluster) -> None:
    away(state)
    state.after[len(state.asked) + 2] = lambda later: setattr(later, "sick", None)


def unknown_for_a_moment(state: Cluster) -> None:
    no_account(state)
    state.after[len(state.asked) + 4] = lambda later: later.tokens.update({token()})


DISTURBANCES = {
    "broken permissions": no_permissions,
    "broken permissions of the cluster": no_cluster_permissions,
    "away": away,
    "away for a moment": away_for_a_moment,
    "one of several servers knows less": unknown_for_a_moment,
    "nothing": lambda _: None,
}


@dataclasses.dataclass
class Told(Plan):
    """At the call `change_at`, something happens to the DaemonSet; at `stop_at` the run is told to stop.

    The run is a fork: a file tells the API server of it.
    """

    change_at: int = 0
    marker: Path = Path()

    def meet(self, name: str, paths: list[str]) -> None:
        """Count a call; let it happen if it is its turn."""
        if len(self.happened) == self.change_at:
            self.marker.touch()
        super().meet(name, paths)

    def wait(self, *_: object, **__: object) -> None:
        """Stand for the idle process: what has not happened by now happens while it waits."""
        if len(self.happened) <= self.change_at:
            self.marker.touch()
        self.change_at = self.stop_at = NEVER
        os.kill(os.getpid(), signal.SIGTERM)


class Course:
    """Runs on one node whose DaemonSet meets something at a chosen call of the run."""

    def __init__(self, node: FakeNode, server: Server, dockerd: FakeDockerd, folder: Path) -> None:
        self.node, self.server, self.dockerd, self.folder = node, server, dockerd, folder
        self.flags = (*server.flags, *FLAGS)
        self.marker = folder / "marker"

    def until(self, at: int, change: Callable[[Cluster], None]) -> Outcome:
        """Run, until the change comes at this call, and the signal then, a few calls later, or once it waits."""
        lag = (0, 7, NEVER)[at % 3]
        fresh = cluster()
        self.server.cluster = fresh
        (self.server.account / "token").write_text(token())
        self.marker.unlink(missing_ok=True)

        def look(state: Cluster) -> None:
            if self.marker.exists():
                self.marker.unlink()
                change(state)

        fresh.before_each = look
        clock, plan = Clock(), Told(stop_at=at + lag, change_at=at, marker=self.marker)
        with (
            mock.patch("toolkit_installer.waiting.wait.wait", plan.wait),
            mock.patch("toolkit_installer.kubernetes.wanted.time", clock),
            mock.patch("toolkit_installer.kubernetes.wanted.signals", clock),
            self.dockerd.inside(),
        ):
            return run(self.node, self.folder, "run", *self.flags, plan=plan)

    def calls(self) -> int:
        """Return how many calls an installation on the node makes that is told to stop at its end."""
        whole = run(self.node, self.folder, "run", "--no-daemon", *FLAGS)
        assert whole.code == 0, whole.output
        self.uninstall()
        return len(whole.calls)

    def uninstall(self) -> None:
        """Give the node back."""
        done = run(self.node, self.folder, "uninstall", "--socket", SOCKET)
        assert done.code == 0, done.output
        assert is_untouched(self.node, self.dockerd)


@pytest.fixture
def course(
    node: FakeNode, server: Server, dockerd: FakeDockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Course:
    # containers of this machine are none of the made node's
    monkeypatch.setattr(processes, "list_pids", list)
    return Course(node, server, dockerd, tmp_path)


def instants(count: int, seed: str) -> list[int]:
    """Return some calls of a run, its first ones and last ones among them."""
    return sorted({0, 1, 2, *random.Random(seed).sample(range(count), 3), count - 1})  # noqa: S311  # nothing secret


@pytest.mark.parametrize("deletion", DELETIONS)
def test_deleted_at_any_call_of_a_first_run_the_node_is_as_it_was(course: Course, deletion: str, few: Few) -> None:
    for at in few(instants(course.calls(), deletion), 3):
        outcome = course.until(at, DELETIONS[deletion])
        assert outcome.code == 0, outcome.output
        assert is_untouched(course.node, course.dockerd), f"call {at}\n{outcome.output}"


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_disturbed_at_any_call_of_a_first_run_a_node_is_configured_or_untouched(
    course: Course, disturbance: str, few: Few
) -> None:
    """The run was told that the node is wanted before it changed anything: what it began it leaves configured."""
    configured = 0
    for at in few(instants(course.calls(), disturbance), 3):
        outcome = course.until(at, DISTURBANCES[disturbance])
        assert outcome.code == 0, outcome.output
        if "The DaemonSet wants this node" in outcome.output and "The node is configured" in outcome.output:
            configured += 1
            assert is_configured(course.node, course.dockerd), f"call {at}\n{outcome.output}"
            course.uninstall()
        else:
            assert is_untouched(course.node, course.dockerd), f"call {at}\n{outcome.output}"
    assert configured, "no round got as far"


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_disturbed_at_any_call_of_an_update_a_wanted_node_stays_configured(
    course: Course, disturbance: str, few: Few
) -> None:
    count = course.calls()
    done = run(course.node, course.folder, "run", "--no-daemon", *FLAGS)
    assert done.code == 0, done.output
    for at in few(instants(count // 4, disturbance), 3):
        outcome = course.until(at, DISTURBANCES[disturbance])
        assert outcome.code == 0, outcome.output
        assert is_configured(course.node, course.dockerd), f"call {at}\n{outcome.output}"


# --- with delays of any length ---


@dataclasses.dataclass(frozen=True)
class Round:
    """What happens after how many seconds, and how much later the run is told to stop; before: before it starts."""

    change: str
    after: float
    then: float


def rounds(changes: list[str], seed: str) -> list[Round]:
    dice = random.Random(f"{SEED} {seed}")  # noqa: S311  # nothing secret
    return [
        Round(dice.choice(changes), 0.0 if number % 2 == 0 else dice.uniform(0, 3), dice.uniform(0, 3))
        for number in range(ROUNDS)
    ]


def begun(node: FakeNode, server: Server, each: Round, change: Callable[[Cluster], None]) -> Run:
    """Start a run, let it happen, and return the run once it was told to stop and has ended."""
    server.cluster = cluster()
    if not each.after:
        change(server.cluster)
    running = quickly(node, "run", *server.flags, *FLAGS)
    time.sleep(each.after)
    if each.after:
        change(server.cluster)
    time.sleep(each.then)
    running.process.send_signal(signal.SIGTERM)
    # before it has begun anything, a signal ends it as any other program
    assert running.finish() in (0, -signal.SIGTERM), f"{each}\n{running.output}"
    return running


@pytest.mark.parametrize("each", rounds(list(DELETIONS), "deleted"), ids=str)
def test_applied_and_deleted_after_any_time_no_node_is_left_configured(
    node: FakeNode, server: Server, dockerd: FakeDockerd, each: Round
) -> None:
    running = begun(node, server, each, DELETIONS[each.change])
    assert is_untouched(node, dockerd), f"{each}\n{running.output}"


@pytest.mark.parametrize("each", rounds(list(DISTURBANCES), "disturbed"), ids=str)
def test_an_update_that_is_disturbed_after_any_time_leaves_the_node_configured(
    node: FakeNode, server: Server, dockerd: FakeDockerd, each: Round
) -> None:
    first = quickly(node, "run", *server.flags, *FLAGS)
    first.wait_for(WAITING)
    assert first.stop() == 0
    reloaded = dockerd.take()
    running = begun(node, server, each, DISTURBANCES[each.change])
    assert is_configured(node, dockerd), f"{each}\n{running.output}"
    assert dockerd.take() == reloaded
