"""Killed, or failed by the disk, at any call that changes the node: whatever a configuration names is there."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.faults import Fault, Outcome, Plan, run
from tests.support import payloads
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, STORE, TOOLKIT, Entry, FakeNode

DOCKER = b'{\n  "log-driver": "json-file"\n}\n'
CONTAINERD = b'version = 2\n# mine\n[debug]\nlevel = "info"\n'
ENGINES = pytest.mark.parametrize("engine, path", [("docker", DAEMON_JSON), ("containerd", CONFIG_TOML)])

EDGE = 26
"""Calls at the beginning and the end of a command: receipt and engine files, all of them tried."""
STRIDE = 9
"""Of those between, which copy or remove the toolkit's many files alike, every so many."""


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


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return payloads.build(tmp_path_factory.mktemp("newer"), version="1.20.0")


def instants(outcome: Outcome, every: int = 1) -> list[int]:
    """Return the numbers of the calls to be tried."""
    assert outcome.code == 0, outcome.output
    count = len(outcome.calls)
    chosen = [number for number in range(count) if not EDGE <= number < count - EDGE or number % STRIDE == 0]
    return chosen[::every]


def check_sound(node: FakeNode, engine: str, path: str, outcome: Outcome) -> None:
    """Fail unless the engine's file is whole and all that it names can run, and the next run completes the work."""
    assert node.broken_runtimes() == []
    assert outcome.code != 1, outcome.output
    assert "Traceback" not in outcome.output
    if engine == "docker":
        assert node.docker()["log-driver"] == "json-file"
    else:
        assert b"# mine" in node.read(path)


def check_gone(node: FakeNode, before: dict[str, Entry]) -> None:
    """Fail if anything is otherwise than before, but for empty folders that a power cut may leave.

    /run is no part of it: it does not survive a boot.
    """

    def counts(path: str, entry: Entry) -> bool:
        return entry.kind != "d" and not path.startswith("/run/")

    now = {path: entry for path, entry in node.snapshot().items() if path in before or counts(path, entry)}
    assert now == before


@ENGINES
def test_killed_anywhere_in_a_first_install_the_node_works_and_can_be_given_back(
    bench: Bench, engine: str, path: str
) -> None:
    for at in instants(bench.install(bench.fresh(engine), engine), every=3):
        node = bench.fresh(engine)
        before = node.snapshot()
        killed = bench.install(node, engine, Plan(at))
        assert killed.code == -9
        check_sound(node, engine, path, killed)
        assert bench.uninstall(node, engine).code == 0
        check_gone(node, before)


def test_killed_anywhere_in_a_first_install_the_next_run_finishes_it(bench: Bench) -> None:
    for at in instants(bench.install(bench.fresh("docker"), "docker"), every=7):
        node = bench.fresh("docker")
        bench.install(node, "docker", Plan(at))
        assert bench.install(node, "docker").code == 0
        assert node.docker()["default-runtime"] == "nvidia"
        assert node.broken_runtimes() == []
        assert bench.uninstall(node, "docker").code == 0
        assert node.read(DAEMON_JSON) == DOCKER


def test_killed_anywhere_in_an_upgrade_the_node_works_and_can_be_given_back(bench: Bench, newer: Path) -> None:
    node = bench.installed("docker")
    node.payload = newer
    for at in instants(bench.install(node, "docker"), every=6):
        node = bench.fresh("docker")
        before = node.snapshot()
        bench.install(node, "docker")
        node.payload = newer
        killed = bench.install(node, "docker", Plan(at))
        check_sound(node, "docker", DAEMON_JSON, killed)
        assert bench.uninstall(node, "docker").code == 0
        check_gone(node, before)


@ENGINES
def test_killed_anywhere_in_a_cleanup_the_node_works_and_the_next_one_finishes_it(
    bench: Bench, engine: str, path: str
) -> None:
    for at in instants(bench.uninstall(bench.installed(engine), engine), every=6):
        node = bench.fresh(engine)
        before = node.snapshot()
        bench.install(node, engine)
        killed = bench.uninstall(node, engine, Plan(at))
        check_sound(node, engine, path, killed)
        assert bench.uninstall(node, engine).code == 0
        check_gone(node, before)


def of_the_folder_after(path: str) -> Callable[[Outcome], int]:
    """Return which call is the fsync of the folder after `path`'s new version came to its place."""
    name = path.rpartition("/")[2]
    return lambda outcome: outcome.index(f"exchange .{name}.toolkit-installer.swap {name}") + 2


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_failed_anywhere_in_a_first_install_nothing_of_ours_stays_configured(bench: Bench, error: int) -> None:
    whole = bench.install(bench.fresh("docker"), "docker")
    settling = of_the_folder_after(DAEMON_JSON)(whole) + 1  # from here on only the record is to be settled
    for at in instants(whole, every=4):
        node = bench.fresh("docker")
        before = node.snapshot()
        failed = bench.install(node, "docker", Plan(at, Fault.ONCE, error))
        check_sound(node, "docker", DAEMON_JSON, failed)
        if failed.code != 0 and at < settling:
            check_gone(node, before)
        assert bench.uninstall(node, "docker").code == 0
        check_gone(node, before)


@ENGINES
def test_a_failing_fsync_of_the_engines_folder_does_not_leave_handlers_without_a_toolkit(
    bench: Bench, engine: str, path: str
) -> None:
    at = of_the_folder_after(path)(bench.install(bench.fresh(engine), engine))
    node = bench.fresh(engine)
    failed = bench.install(node, engine, Plan(at, Fault.ONCE))
    assert failed.code != 0
    assert node.broken_runtimes() == []


def test_a_disk_that_is_full_from_any_instant_on_breaks_nothing(bench: Bench) -> None:
    for at in instants(bench.install(bench.fresh("docker"), "docker"), every=7):
        node = bench.fresh("docker")
        before = node.snapshot()
        full = bench.install(node, "docker", Plan(at, Fault.FULL))
        check_sound(node, "docker", DAEMON_JSON, full)
        assert bench.uninstall(node, "docker").code == 0
        check_gone(node, before)


def test_a_cleanup_that_fails_anywhere_breaks_nothing_and_can_be_repeated(bench: Bench) -> None:
    for at in instants(bench.uninstall(bench.installed("docker"), "docker"), every=7):
        node = bench.fresh("docker")
        before = node.snapshot()
        bench.install(node, "docker")
        failed = bench.uninstall(node, "docker", Plan(at, Fault.ONCE))
        check_sound(node, "docker", DAEMON_JSON, failed)
        assert bench.uninstall(node, "docker").code == 0
        check_gone(node, before)


@ENGINES
def test_killed_before_the_engines_file_was_renamed_its_temporary_file_goes_with_uninstall(
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
def test_killed_before_the_receipt_stood_the_copies_of_the_originals_go_with_uninstall(bench: Bench, call: str) -> None:
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
