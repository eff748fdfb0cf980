"""Which process `refresh` signals, and which it leaves alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit_installer.errors import AlreadyRunningError
from toolkit_installer.node import machine
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.run import refresh
from toolkit_installer.run.refresh import NoWaitingRunError

PID_PATH, OTHER = "/run/toolkit.pid", "/run/other.pid"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(str(tmp_path))


@contextlib.contextmanager
def held(node: Node, path: str) -> Iterator[None]:
    pid_file = PidFile.acquire(node.files, path)
    try:
        yield
    finally:
        pid_file.release()


@contextlib.contextmanager
def child(code: str) -> Iterator[int]:
    """Start a Python that prints a line once it is ready; yield its PID."""
    command = [sys.executable, "-I", "-S", "-c", f"import signal, time\n{code}\nprint(flush=True)\ntime.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("installed, words", [(True, "no run waits here$"), (False, "and nothing is installed$")])
def test_without_a_run_the_reason_says_whether_anything_is_installed(
    node: Node, words: str, *, installed: bool
) -> None:
    with pytest.raises(NoWaitingRunError) as refused:
        refresh.refresh(node, [PID_PATH, OTHER], 1.0, installed=installed)
    assert refused.value.path == PID_PATH
    assert refused.value.reason.endswith(words.removesuffix("$"))
    assert refused.value.hint


def test_the_first_pid_file_that_is_held_names_the_run(node: Node) -> None:
    with held(node, OTHER):
        assert refresh._find_holder(node, [PID_PATH, OTHER, OTHER], installed=True) == (OTHER, os.getpid())
        with held(node, PID_PATH):
            assert refresh._find_holder(node, [PID_PATH, OTHER], installed=True) == (PID_PATH, os.getpid())


def test_a_holder_that_is_no_installer_is_not_signalled(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(node.calls, "signal", lambda _fd, number: sent.append(number))
    with held(node, PID_PATH), pytest.raises(AlreadyRunningError, match="it is not signalled") as refused:
        refresh.refresh(node, [PID_PATH], 5.0, installed=True)
    assert refused.value.path == PID_PATH
    assert sent == []


@pytest.mark.parametrize(
    "code, takes", [("", False), ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])", True)]
)
def test_only_a_process_that_blocks_the_signal_takes_it_as_a_request(code: str, *, takes: bool) -> None:
    with child(code) as pid:
        assert refresh._takes_signal(pid) is takes


def test_a_stopped_run_is_told_from_one_that_works() -> None:
    with child("") as pid:
        refresh._refuse_stopped(pid, PID_PATH)
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        with pytest.raises(AlreadyRunningError, match="is stopped") as refused:
            refresh._refuse_stopped(pid, PID_PATH)
        assert f"kill -CONT {pid}" in str(refused.value.hint)


def test_the_end_of_a_run_is_seen_by_its_descriptor() -> None:
    with child("") as pid:
        pidfd = os.pidfd_open(pid)
        assert not refresh._has_ended(pidfd)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while not refresh._has_ended(pidfd):
            assert time.monotonic() < deadline
    os.close(pidfd)


def test_a_run_has_until_the_deadline_and_no_longer() -> None:
    refresh._refuse_late(1, PID_PATH, machine.monotonic() + 60)
    with pytest.raises(AlreadyRunningError, match="in time"):
        refresh._refuse_late(1, PID_PATH, machine.monotonic() - 1)
