"""Reloads count until what they were made for is taken back on purpose: by then it was no crash loop's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.sweeps.trees import RELOADS
from tests.support.api_server import DAEMON_SET_PATH, serving
from tests.support.fake_node import DAEMON_JSON, TOOLKIT, FakeNode

TWO = ("--socket", SOCKET, "--reload-budget", "2/600")
REFUSED = "the engine was reloaded 2 times for installing within 600 s"


@pytest.fixture(autouse=True)
def dockerd(node: FakeNode) -> Iterator[FakeDockerd]:
    node.write(DAEMON_JSON, "{}")
    with FakeDockerd(node) as engine:
        yield engine


def test_repeated_installs_and_uninstalls_are_not_stopped_at_the_first_limit(node: FakeNode) -> None:
    for _ in range(3):
        assert node.do("run", "--no-daemon", *TWO).process.returncode == 0
        assert node.do("uninstall").process.returncode == 0
    assert not node.exists(TOOLKIT)
    counted = json.loads(node.read(RELOADS))
    assert (len(counted["reloads"]), len(counted["taken_back"])) == (0, 3)


def test_a_waiting_run_that_uninstall_asks_to_leave_is_forgiven_as_well(node: FakeNode) -> None:
    for _ in range(3):
        run = node.waiting(*TWO)
        assert node.do("uninstall", "--socket", SOCKET).process.returncode == 0
        assert run.finish() == 0, run.output


def test_a_repeatedly_deleted_daemonset_is_not_stopped_at_the_first_limit(node: FakeNode, tmp_path: Path) -> None:
    for count in range(3):
        (tmp_path / str(count)).mkdir()
        with serving(tmp_path / str(count)) as server:
            run = node.waiting(*TWO, *server.flags)
            server.cluster.delete(DAEMON_SET_PATH)
            assert run.stop() == 0, run.output
            assert not node.exists(TOOLKIT)


def test_a_run_that_is_told_to_stop_by_whoever_counts_as_the_reload_may_be_why(node: FakeNode) -> None:
    for _ in range(2):
        assert node.waiting(*TWO).stop() == 0
    run = node.do("run", *TWO)
    assert run.process.returncode == 3
    assert REFUSED in run.output


def test_a_node_that_is_wanted_and_not_wanted_in_turn_is_stopped_in_the_end(node: FakeNode) -> None:
    """As by a label that comes and goes: each of these installs was taken back on purpose."""
    one = ("--socket", SOCKET, "--reload-budget", "1/600")
    for _ in range(4):
        assert node.do("run", "--no-daemon", *one).process.returncode == 0
        assert node.do("uninstall").process.returncode == 0
    run = node.do("run", "--no-daemon", *one)
    assert run.process.returncode == 3
    assert "reloaded 4 times for installing within 600 s, and what was installed was taken back each time" in run.output


def test_an_uninstall_that_finds_nothing_installed_forgives_nothing(node: FakeNode) -> None:
    assert node.waiting(*TWO).stop() == 0  # a cleanup that nobody asked for by name
    before = node.read(RELOADS)
    assert node.do("uninstall").process.returncode == 0
    assert node.read(RELOADS) == before
