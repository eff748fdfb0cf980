"""The commands' functions: what each is called with, which error leaves it, and its exit code."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit_installer.applying.reload_gate import ReloadBudget
from toolkit_installer.cli import actions, replay
from toolkit_installer.errors import (
    SIGNALLED,
    AlreadyRunningError,
    ConfigurationError,
    EngineDownError,
    ExitCode,
    InstallerError,
    PayloadError,
    UsageError,
)
from toolkit_installer.kubernetes import deletion
from toolkit_installer.node import locks
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import Stopped
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting.outcome import InspectionOutcome
from toolkit_installer.run import refresh
from toolkit_installer.settings import DeletionSettings, Settings, ToolkitSettings

INSTALL_DIR = "/usr/local/nvidia"
INSTALLED = Receipt(State.INSTALLED, "1", f"{INSTALL_DIR}/toolkit", (), (), "/run/toolkit.pid", (), ())


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Yield the settings of a command on an empty node; the signals that it lets through are blocked as before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield Settings(node_root=str(tmp_path), toolkit=ToolkitSettings(source_root=str(tmp_path / "no payload")))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def save(settings: Settings, receipt: Receipt) -> ReceiptStore:
    store = ReceiptStore(Node(str(settings.node_root)), INSTALL_DIR)
    store.prepare()
    store.save(receipt, {})
    if store.lock_fd is not None:
        os.close(store.lock_fd)
        store.lock_fd = None
    return store


def test_a_node_that_is_not_there_is_an_error_of_the_caller(settings: Settings) -> None:
    gone = msgspec.structs.replace(settings, node_root=f"{settings.node_root}/gone")
    with pytest.raises(UsageError, match="gone"):
        actions.detect(gone, as_json=True)


# --- plan and status ---


def test_a_plan_stops_at_a_running_installer_before_any_other_error(settings: Settings) -> None:
    with pytest.raises(PayloadError):
        actions.plan(settings, as_json=True)
    held = PidFile.acquire(Node(str(settings.node_root)).files, settings.pid_file)
    try:
        with pytest.raises(AlreadyRunningError):
            actions.plan(settings, as_json=True)
    finally:
        held.release()


def test_only_a_check_has_the_verdict_as_its_exit_code(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    for check, code in ((True, 1), (False, 0)):
        assert actions.status(settings, as_json=True, check=check) == code
        assert json.loads(capsys.readouterr().out)["verdict"] == "DEGRADED"


# --- locks ---


def test_a_run_that_cannot_begin_leaves_no_lock(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: ReloadBudget) -> None:
        raise ConfigurationError("the reloads cannot be read")

    node = Node(str(settings.node_root))
    monkeypatch.setattr(ReloadBudget, "tidy", fail)
    with pytest.raises(ConfigurationError, match="the reloads"):
        actions._lock_pid_files(settings, node)
    assert locks.find_instance(node.files, settings.pid_file) is None


# --- refresh ---


def refreshed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, outcome: InspectionOutcome, seconds: float | None = None
) -> tuple[list[str], float, bool]:
    """Refresh with this outcome; return the PID files, the time limit, and whether something is installed."""
    called: list[Any] = []

    def request(_node: Node, paths: tuple[str, ...], limit: float, *, installed: bool) -> InspectionOutcome:
        called.append((list(paths), limit, installed))
        return outcome

    monkeypatch.setattr(refresh, "refresh", request)
    assert actions.refresh(settings, seconds=seconds) == ExitCode.DONE
    (call,) = called
    paths, limit, installed = call
    return paths, limit, installed


@pytest.mark.parametrize(
    "seconds, timeout, limit", [(None, 10.0, 600.0), (None, 100.0, 800.0), (5.0, 100.0, 5.0), (0.0, 100.0, 0.0)]
)
def test_a_request_waits_longer_than_reloads_that_fail(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, seconds: float | None, timeout: float, limit: float
) -> None:
    slow = msgspec.structs.replace(settings, reload_timeout=timeout)
    assert refreshed(slow, monkeypatch, InspectionOutcome(1.0), seconds)[1:] == (limit, False)


def test_a_request_goes_to_the_run_that_the_receipt_names(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    save(settings, msgspec.structs.replace(INSTALLED, pid_file="/run/other/toolkit.pid"))
    paths, _, installed = refreshed(settings, monkeypatch, InspectionOutcome(1.0))
    assert paths[:2] == [settings.pid_file, "/run/other/toolkit.pid"]
    assert installed


def test_the_outcome_is_printed_and_its_error_raised(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refreshed(settings, monkeypatch, InspectionOutcome(1.0, lines=("a line",)))
    first, last = capsys.readouterr().out.splitlines()
    assert first == "a line"
    assert last.startswith("Done: ")
    failed = InspectionOutcome(1.0, ExitCode.ENGINE_DOWN, "down", lines=("a line",))
    with pytest.raises(InstallerError) as raised:
        refreshed(settings, monkeypatch, failed)
    assert raised.value.exit_code is ExitCode.ENGINE_DOWN
    assert capsys.readouterr().out == "a line\n"


# --- the driver ---


@pytest.mark.parametrize(
    "state, is_installed", [(State.INSTALLED, True), (State.APPLYING, False), (State.REVERTING, False)]
)
def test_the_toolkit_is_installed_once_a_run_has_finished(
    settings: Settings, state: State, *, is_installed: bool
) -> None:
    node = Node(str(settings.node_root))
    assert not actions._is_installed(settings, node)
    save(settings, msgspec.structs.replace(INSTALLED, state=state))
    assert actions._is_installed(settings, node) is is_installed


def test_a_receipt_that_cannot_be_read_is_no_installation(settings: Settings) -> None:
    store = save(settings, INSTALLED)
    Path(f"{settings.node_root}{store.folder}/receipt.json").write_text("no receipt")
    with pytest.raises(ConfigurationError):
        actions._is_installed(settings, Node(str(settings.node_root)))


def test_the_driver_is_not_waited_for_where_the_toolkit_is_installed(settings: Settings, logged: io.StringIO) -> None:
    save(settings, INSTALLED)
    assert actions.wait_driver(settings, seconds=None, unless_installed=True) == ExitCode.DONE
    assert "event=driver-not-awaited" in logged.getvalue()


# --- other commands ---


@pytest.mark.parametrize("failure, code", [(None, 0), (Stopped(signal.SIGTERM), SIGNALLED + signal.SIGTERM)])
def test_a_deletion_that_is_stopped_ends_as_a_shell_expects(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, failure: BaseException | None, code: int
) -> None:
    called: list[object] = []

    def delete(*arguments: object) -> None:
        called.append(arguments)
        if failure is not None:
            raise failure

    monkeypatch.setattr(deletion, "delete_daemon_set", delete)
    wanted = DeletionSettings("a", "::1")
    assert actions.delete_daemonset(settings, deletion=wanted, seconds=9.0) == code
    assert called == [(wanted, 9.0)]


def test_a_deletion_that_fails_is_its_own_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise EngineDownError("no answer")

    monkeypatch.setattr(deletion, "delete_daemon_set", fail)
    with pytest.raises(EngineDownError):
        actions.delete_daemonset(settings, deletion=DeletionSettings("a", "::1"), seconds=9.0)


def test_the_paths_of_a_replay_are_those_of_the_callers_folder(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[Any] = []

    def plan_for(archive: object, how: object) -> int:
        called.append((archive, how))
        return 3

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(replay, "replay", plan_for)
    code = actions.replay(
        settings,
        archive=("a",),
        given={},
        payload="toolkit",
        html=None,
        engine_versions=("docker=28.0", "containerd=2.1=x"),
        each=True,
        as_json=False,
    )
    ((archive, how),) = called
    assert (code, archive) == (3, ("a",))
    assert (how.payload, how.html) == (str(tmp_path / "toolkit"), None)
    assert how.versions == {"docker": "28.0", "containerd": "2.1=x"}
    assert how.each
