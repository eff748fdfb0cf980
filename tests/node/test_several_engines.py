"""Two engines in one run: both get the handlers, both are given back, and what fails for one fails for both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.node import faults
from tests.node.engines.live import FakeContainerd, FakeDockerd
from tests.node.engines.rules import Served
from tests.node.faults import Fault, Plan
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DOCKER, NOTHING_TO_DO, STORE, TOOLKIT, FakeNode
from tests.support.quick import Few
from toolkit_installer.node.programs import ProgramError
from toolkit_installer.node.services import Services

BOTH = "docker,containerd"
CONTAINERD = b"""\
version = 3
# the operator's
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
"""
OURS = {f"{TOOLKIT}/nvidia-container-runtime{ending}" for ending in ("", ".cdi", ".legacy")}


@pytest.fixture
def pair(node: FakeNode) -> FakeNode:
    (node.root / "var").mkdir()
    (node.root / "var" / "run").symlink_to("/run")
    node.write(DAEMON_JSON, DOCKER)
    node.write(CONFIG_TOML, CONTAINERD)
    return node


def served(engine: FakeDockerd | FakeContainerd) -> set[str]:
    return {path for _, path in engine.take().handlers} & OURS


def tree(node: FakeNode) -> dict[str, Any]:
    """Return all that cleanup gives back: sockets come and go with their engines, the reloads are remembered."""
    gone = ("/run", "/var/run")
    return {path: entry for path, entry in node.snapshot().items() if not path.startswith(gone)}


def test_both_have_the_handlers_and_both_are_given_back(pair: FakeNode) -> None:
    with FakeDockerd(pair) as docker:
        before = tree(pair)
        run = pair.waiting(engine=BOTH)
        assert set(pair.docker()["runtimes"]) == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
        assert pair.containerd("io.containerd.cri.v1.runtime")["default_runtime_name"] == "nvidia"
        assert pair.broken_runtimes() == []
        assert served(docker) == OURS
        status = pair.do("status", "--json", engine="auto")
        facts = json.loads(status.output)
        assert [each["name"] for each in facts["engines"]] == ["docker", "containerd"]
        assert run.stop() == 0
        assert tree(pair) == before
        assert served(docker) == set()


def test_a_second_run_changes_nothing_and_one_for_one_engine_retires_the_other(pair: FakeNode) -> None:
    with FakeDockerd(pair) as docker:
        before = tree(pair)
        assert pair.do("run", "--no-daemon", engine=BOTH).process.returncode == 0
        assert NOTHING_TO_DO in pair.do("run", "--no-daemon", engine=BOTH).output
        retired = pair.do("run", "--no-daemon", engine="containerd")
        assert retired.process.returncode == 0, retired.output
        assert pair.read(DAEMON_JSON) == DOCKER
        assert served(docker) == set()
        assert pair.containerd("io.containerd.cri.v1.runtime")["default_runtime_name"] == "nvidia"
        assert pair.do("uninstall", engine="auto").process.returncode == 0
        assert tree(pair) == before


def test_a_fault_in_the_second_engines_file_is_found_before_the_first_is_touched(pair: FakeNode) -> None:
    pair.write(CONFIG_TOML, "version = 3\n[plugins\n")
    with FakeDockerd(pair) as docker:
        before = tree(pair)
        run = pair.do("run", "--no-daemon", engine=BOTH)
        assert run.process.returncode == 3
        assert CONFIG_TOML in run.output
        assert tree(pair) == before
        assert served(docker) == set()


def test_a_second_engine_that_rejects_the_change_gives_the_first_its_files_back_too(
    pair: FakeNode, tmp_path: Path
) -> None:
    containerd = FakeContainerd(pair)
    real, failed = Services.restart, tmp_path / "failed"

    def restart(self: Services, unit: str, *, seconds: float) -> None:
        if not failed.exists():
            failed.write_text(unit)
            raise ProgramError("it did not start: the engine says why")
        real(self, unit, seconds=seconds)

    with FakeDockerd(pair) as docker:
        before = tree(pair)
        with containerd.inside(), mock.patch.object(Services, "restart", restart):
            done = faults.run(pair, tmp_path, "run", "--no-daemon", engine=BOTH)
        assert done.code == 5, done.output
        assert "the engine says why" in done.output
        assert failed.read_text() == "containerd.service"
        assert tree(pair) == before
        assert (served(docker), served(containerd)) == (set(), set())
        assert containerd.take().starts == 2  # for the old files
        assert not pair.exists(STORE)


def test_one_that_does_not_come_back_does_not_keep_the_other_from_its_old_files(pair: FakeNode, tmp_path: Path) -> None:
    containerd = FakeContainerd(pair)

    def restart(_: Services, unit: str, *, seconds: float) -> None:  # noqa: ARG001  # as the real one is called
        containerd.put(Served((), "", "is gone"))
        raise ProgramError(f"{unit} did not start")

    with FakeDockerd(pair) as docker:
        with containerd.inside(), mock.patch.object(Services, "restart", restart):
            done = faults.run(pair, tmp_path, "run", "--no-daemon", "--reload-timeout", "1", engine=BOTH)
        assert done.code == 6, done.output
        assert "containerd DOES NOT COME BACK" in done.output
        assert (pair.read(DAEMON_JSON), pair.read(CONFIG_TOML)) == (DOCKER, CONTAINERD)
        assert served(docker) == set()
        assert pair.broken_runtimes() == []


def test_one_that_fails_at_cleanup_does_not_keep_the_other_from_its_old_files(pair: FakeNode, tmp_path: Path) -> None:
    containerd = FakeContainerd(pair)
    failing = mock.patch.object(Services, "restart", side_effect=ProgramError("systemd does not answer"))
    with FakeDockerd(pair) as docker, containerd.inside():
        before = tree(pair)
        assert faults.run(pair, tmp_path, "run", "--no-daemon", engine=BOTH).code == 0
        with failing:
            done = faults.run(pair, tmp_path, "uninstall", "--reload-timeout", "1", engine="auto")
        assert done.code in (5, 6), done.output
        assert "systemd does not answer" in done.output
        assert (pair.read(DAEMON_JSON), served(docker)) == (DOCKER, set())
        assert pair.place(TOOLKIT).is_dir()
        assert faults.run(pair, tmp_path, "uninstall", engine="auto").code == 0
        assert tree(pair) == before
        assert served(containerd) == set()


def test_findings_about_an_engine_that_fails_at_cleanup_are_recorded(pair: FakeNode, tmp_path: Path) -> None:
    """Somebody had edited its file: a run that comes after this one has to find that version, and not the first."""
    containerd = FakeContainerd(pair)
    failing = mock.patch.object(Services, "restart", side_effect=ProgramError("systemd does not answer"))
    with FakeDockerd(pair) as docker, containerd.inside():
        assert faults.run(pair, tmp_path, "run", "--no-daemon", engine=BOTH).code == 0
        pair.write(CONFIG_TOML, b"oom_score = -999\n" + pair.read(CONFIG_TOML))
        with failing:
            done = faults.run(pair, tmp_path, "uninstall", "--reload-timeout", "1", engine="auto")
        assert done.code in (5, 6), done.output
        assert (pair.read(DAEMON_JSON), served(docker)) == (DOCKER, set())
        edited = pair.read(CONFIG_TOML)
        assert b"oom_score" in edited
        assert TOOLKIT.encode() not in edited
        receipt = json.loads(pair.read(f"{STORE}/receipt.json"))
        kept = {file["path"]: file["before"] for record in receipt["engines"] for file in record["files"]}
        digest = kept[CONFIG_TOML]["sha256"]
        assert pair.read(f"{STORE}/originals/{digest}") == edited


def test_an_engine_that_was_not_reached_is_not_reloaded_for_its_old_files(pair: FakeNode, tmp_path: Path) -> None:
    containerd = FakeContainerd(pair)
    with FakeDockerd(pair), containerd.inside():
        whole = faults.run(pair, tmp_path, "run", "--no-daemon", engine=BOTH)
        assert whole.code == 0, whole.output
        assert faults.run(pair, tmp_path, "uninstall", engine=BOTH).code == 0
        starts = containerd.take().starts
        at = next(number for number, call in enumerate(whole.calls) if "config.toml.toolkit" in call)
        done = faults.run(pair, tmp_path, "run", "--no-daemon", engine=BOTH, plan=Plan(at, Fault.ONCE))
        assert done.code == 3, done.output
        assert containerd.take().starts == starts
        assert (pair.read(DAEMON_JSON), pair.read(CONFIG_TOML)) == (DOCKER, CONTAINERD)


def test_killed_at_instants_of_an_installation_of_both_the_next_command_is_whole(
    pair: FakeNode, tmp_path: Path, few: Few
) -> None:
    with FakeDockerd(pair) as docker:
        before = tree(pair)
        budget = ("--reload-budget", "999/1")
        # the file that counts reloads outlives the cleanup: from the second time on, a run makes the same calls
        assert faults.run(pair, tmp_path, "run", "--no-daemon", *budget, engine=BOTH).code == 0
        assert faults.run(pair, tmp_path, "uninstall", engine="auto").code == 0
        for _ in range(2):  # the first time there is no file yet for the times of reloads: later ones make fewer calls
            whole = faults.run(pair, tmp_path, "run", "--no-daemon", *budget, engine=BOTH)
            assert whole.code == 0, whole.output
            installed = tree(pair)
            assert faults.run(pair, tmp_path, "uninstall", engine="auto").code == 0
        interesting = [at for at, call in enumerate(whole.calls) if "daemon.json" in call or "config.toml" in call]
        instants = sorted({*interesting, *(at + 1 for at in interesting), *range(0, len(whole.calls), 29)})
        assert len(instants) > 10
        for turn, at in enumerate(few([at for at in instants if at < len(whole.calls)])):
            killed = faults.run(pair, tmp_path, "run", "--no-daemon", *budget, engine=BOTH, plan=Plan(at))
            assert killed.code == -9, killed.output
            assert pair.broken_runtimes() == [], whole.calls[at]
            if turn % 2:
                again = faults.run(pair, tmp_path, "run", "--no-daemon", *budget, engine=BOTH)
                assert (again.code, served(docker)) == (0, OURS), again.output
                assert {path: each.content for path, each in tree(pair).items() if STORE not in path} == {
                    path: each.content for path, each in installed.items() if STORE not in path
                }
            done = faults.run(pair, tmp_path, "uninstall", engine="auto")
            assert done.code == 0, done.output
            assert tree(pair) == before, whole.calls[at]
            assert served(docker) == set()
