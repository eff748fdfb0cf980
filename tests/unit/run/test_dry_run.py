"""What a dry run finds: the plan, the error that would stop the run before a change, and a running installer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit_installer.applying.reload_gate import ReloadBudget
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError, InstallerError
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.planning import plan
from toolkit_installer.run import dry_run
from toolkit_installer.settings import PID_FILES, Settings, ToolkitSettings, WithoutGpu


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "sys/devices/pci0000:00").mkdir(parents=True)
    return Node(str(tmp_path))


@pytest.mark.parametrize(
    "own, held, is_found",
    [
        (PID_FILES[0], PID_FILES[0], True),
        (PID_FILES[0], PID_FILES[1], True),
        ("/run/own.pid", "/run/own.pid", True),
        ("/run/own.pid", PID_FILES[0], False),
    ],
)
def test_an_installer_that_holds_one_of_the_pid_files_stops_the_run(
    node: Node, own: str, held: str, *, is_found: bool
) -> None:
    settings = Settings(pid_file=own)
    assert dry_run.find_running_installer(settings, node) is None
    pid_file = PidFile.acquire(node.files, held)
    with contextlib.closing(SimpleNamespace(close=pid_file.release)):
        found = dry_run.find_running_installer(settings, node)
    assert isinstance(found, AlreadyRunningError) is is_found
    assert dry_run.find_running_installer(settings, node) is None


def test_a_node_without_a_gpu_that_is_left_alone_has_no_plan(node: Node) -> None:
    assert dry_run.simulate_run(Settings(without_gpu=WithoutGpu.IDLE), node) == dry_run.DryRun(None)


def test_an_error_that_prevents_a_plan_is_raised(node: Node, tmp_path: Path) -> None:
    settings = Settings(toolkit=ToolkitSettings(source_root=str(tmp_path / "gone")))
    with pytest.raises(InstallerError):
        dry_run.simulate_run(settings, node)


SEEN: Any = SimpleNamespace(
    target=None, facts=None, receipt=None, plan=SimpleNamespace(engines=(), empty=True, specifications=(), cdi=())
)


def stop() -> None:
    raise ConfigurationError("the node has no shell")


@pytest.mark.parametrize("preflight, is_stopped", [(stop, True), (lambda: None, False)])
def test_an_error_after_the_plan_is_part_of_the_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch, preflight: Callable[[], None], *, is_stopped: bool
) -> None:
    monkeypatch.setattr(dry_run, "prepare_unchecked", lambda *_: SEEN)
    monkeypatch.setattr(dry_run, "preflight", lambda *_: preflight())
    monkeypatch.setattr(dry_run, "require_recordable", lambda *_: None)
    found = dry_run.simulate_run(Settings(), node)
    assert found.seen is SEEN
    assert (found.stops is not None) is is_stopped


@pytest.mark.parametrize("reload_why, is_stopped", [("its configuration changes", True), ("", False)])
def test_only_a_run_that_reloads_is_held_to_the_budget(
    node: Node, monkeypatch: pytest.MonkeyPatch, reload_why: str, *, is_stopped: bool
) -> None:
    made = SimpleNamespace(engines=(SimpleNamespace(name="docker", reload_why=reload_why, changes=False),))
    seen = SimpleNamespace(target=None, facts=None, receipt=None, plan=made)
    monkeypatch.setattr(dry_run, "prepare_unchecked", lambda *_: seen)
    monkeypatch.setattr(dry_run, "preflight", lambda *_: None)
    monkeypatch.setattr(plan, "is_done", lambda *_: True)
    monkeypatch.setattr(ReloadBudget, "require_reload", lambda _: stop())
    assert (dry_run.simulate_run(Settings(), node).stops is not None) is is_stopped


def test_only_a_change_has_to_be_recordable(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "prepare_unchecked", lambda *_: SEEN)
    monkeypatch.setattr(dry_run, "preflight", lambda *_: None)
    monkeypatch.setattr(dry_run, "require_recordable", lambda *_: stop())
    for done in (True, False):
        monkeypatch.setattr(plan, "is_done", lambda *_, done=done: done)
        assert (dry_run.simulate_run(Settings(), node).stops is None) is done
