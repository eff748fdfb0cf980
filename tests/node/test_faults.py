"""Killed, or failed by the disk, at calls where something special is at stake; every call is tried elsewhere."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.faults import Fault, Outcome, Plan, run
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DOCKER, STORE, TOOLKIT, FakeNode

CONTAINERD = b'version = 2\n# mine\n[debug]\nlevel = "info"\n'
ENGINES = pytest.mark.parametrize("engine, path", [("docker", DAEMON_JSON), ("containerd", CONFIG_TOML)])


class Bench:
    """Makes one node after the other, all alike, and runs the program on them."""

    def __init__(self, folder: Path, payload: Path) -> None:
        self.folder = folder
        self.payload = payload
        self.made = 0

    def fresh(self, _engine: str) -> FakeNode:
        self.made += 1
        root = self.folder / f"node-{self.made}"
        for path in ("etc/docker", "etc/containerd", "run", "usr/local"):
            (root / path).mkdir(parents=True)
        node = FakeNode(root, self.payload)
        node.write(DAEMON_JSON, DOCKER, 0o600)
        node.write(CONFIG_TOML, CONTAINERD)
        return node

    def installed(self, engine: str) -> FakeNode:
        node = self.fresh(engine)
        assert self.install(node, engine).code == 0
        return node

    def install(self, node: FakeNode, engine: str, plan: Plan | None = None) -> Outcome:
        return run(node, self.folder, "run", "--no-daemon", engine=engine, plan=plan)

    def uninstall(self, node: FakeNode, engine: str, plan: Plan | None = None) -> Outcome:
        return run(node, self.folder, "uninstall", engine=engine, plan=plan)


@pytest.fixture
def bench(tmp_path: Path, payload: Path) -> Bench:
    return Bench(tmp_path, payload)


def of_the_folder_after(path: str) -> Callable[[Outcome], int]:
    """Return which call is the fsync of the folder after `path`'s new version came to its place."""
    name = path.rpartition("/")[2]
    return lambda outcome: outcome.index(f"exchange .{name}.toolkit-installer.swap {name}") + 2


@ENGINES
def test_a_failing_fsync_of_the_engines_folder_leaves_no_handlers_without_a_toolkit(
    bench: Bench, engine: str, path: str
) -> None:
    at = of_the_folder_after(path)(bench.install(bench.fresh(engine), engine))
    node = bench.fresh(engine)
    failed = bench.install(node, engine, Plan(at, Fault.ONCE))
    assert failed.code != 0
    assert node.broken_runtimes() == []


@ENGINES
def test_uninstall_removes_the_temporary_file_of_a_run_killed_before_the_rename(
    bench: Bench, engine: str, path: str
) -> None:
    fsync = of_the_folder_after(path)(bench.install(bench.fresh(engine), engine))
    for at in (fsync - 3, fsync - 2, fsync - 1):
        node = bench.fresh(engine)
        before = node.snapshot()
        bench.install(node, engine, Plan(at))
        bench.uninstall(node, engine)
        assert node.snapshot() == before


@pytest.mark.parametrize(
    "call", ["rename .receipt.json.toolkit-installer.tmp receipt.json", "mkdir .originals.toolkit-installer.tmp"]
)
def test_uninstall_removes_the_copies_of_a_run_killed_before_the_receipt(bench: Bench, call: str) -> None:
    at = bench.install(bench.fresh("docker"), "docker").index(call)
    node = bench.fresh("docker")
    bench.install(node, "docker", Plan(at))
    bench.uninstall(node, "docker")
    assert not node.exists(STORE)


def test_killed_after_the_receipt_went_nothing_of_ours_is_left_by_the_next_cleanup(bench: Bench) -> None:
    at = bench.uninstall(bench.installed("docker"), "docker").index("unlink receipt.json") + 1
    node = bench.installed("docker")
    bench.uninstall(node, "docker", Plan(at))
    bench.uninstall(node, "docker")
    assert not node.exists(STORE)
    assert not node.exists(TOOLKIT)


def test_a_receipt_that_cannot_be_written_leaves_no_folders(bench: Bench) -> None:
    at = bench.install(bench.fresh("docker"), "docker").index("mkdir .originals.toolkit-installer.tmp") - 1
    node = bench.fresh("docker")
    before = node.snapshot()
    assert bench.install(node, "docker", Plan(at, Fault.ONCE, errno.ENOSPC)).code == 3
    assert node.snapshot() == before


def test_the_fault_of_a_plan_really_happens(bench: Bench) -> None:
    node = bench.fresh("docker")
    failed = bench.install(node, "docker", Plan(30, Fault.ONCE, errno.EIO))
    assert failed.code == 3
    assert "Input/output error" in failed.output
