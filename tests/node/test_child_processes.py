"""A run and its child processes: no descriptor of the caller's, no core file, and no child outlives the run."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_node import CONFIG_TOML, DEADLINE, WAITING, FakeNode
from tests.support.warm_start import SCRIPTS
from tests.unit.nri.nri_engine import NriEngine

pytestmark = pytest.mark.real_start
NRI_SOCKET = "/run/nri/nri.sock"
MARKS = {"endpoint": b"metrics_server", "plugin": b"plugin_process:main"}


@pytest.fixture
def run(node: FakeNode) -> Iterator[subprocess.Popen[bytes]]:
    """A run with both child processes, whose caller left descriptors open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    node.write(CONFIG_TOML, "version = 2\n", 0o600)
    node.place("/var").mkdir()
    node.place("/var/run").symlink_to("/run")
    secret = node.root.parent / "secret"
    secret.write_text("of the caller")
    with (
        core_files_allowed(),
        NriEngine(node.place(NRI_SOCKET)),
        secret.open("rb") as left,
        socket.socket() as other,
    ):
        more = ("--enable-nri-plugin", "--nri-namespace", "gpu-operator", "--metrics-address", f"127.0.0.1:{port}")
        started = subprocess.Popen(
            [str(SCRIPTS / "toolkit-installer"), *node.arguments("run", *more, engine="containerd")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=secret.parent,
            pass_fds=(left.fileno(), other.fileno()),
            start_new_session=True,
        )
        with started:
            assert started.stdout is not None
            try:
                said = b""
                while WAITING.encode() not in said:
                    line = started.stdout.readline()
                    assert line, said.decode()
                    said += line
                yield started
            finally:
                started.kill()


@contextlib.contextmanager
def core_files_allowed() -> Iterator[None]:
    """Raise the limit for core files meanwhile as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def child(run: subprocess.Popen[bytes], mark: bytes) -> int:
    """Return the PID of a run's child whose command line has `mark`."""
    for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
        if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise AssertionError(mark)


def descriptors(pid: int) -> list[str]:
    return [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if int(each.name) > 2]


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, Path(f"/proc/{pid}/status").read_text()
        time.sleep(0.01)


def test_the_children_hold_nothing_that_the_caller_left_open(run: subprocess.Popen[bytes]) -> None:
    assert any(name.endswith("/secret") for name in descriptors(run.pid)), "the run itself has it"
    for mark, sockets in ((MARKS["endpoint"], 2), (MARKS["plugin"], 2)):
        pid = child(run, mark)
        log = os.readlink(f"/proc/{pid}/fd/2")  # which the plugin opens again, not to wait for its reader
        found = [name for name in descriptors(pid) if name != log]
        assert not [name for name in found if not name.startswith(("socket:", "anon_inode:"))]
        assert sum(name.startswith("socket:") for name in found) == sockets, found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_child_does_not_outlive_the_run(run: subprocess.Popen[bytes], number: signal.Signals) -> None:
    children = [child(run, mark) for mark in MARKS.values()]
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
        status = Path(f"/proc/{pid}/stat")
        while status.read_bytes().rpartition(b") ")[2][:1] != b"T":
            time.sleep(0.01)
    run.send_signal(number)
    run.wait(DEADLINE)
    for pid in children:
        wait_for_end(pid)


def limit(pid: int) -> list[str]:
    """Return a process's soft and hard limit for core files; another user's may be read, and not asked for."""
    limits = Path(f"/proc/{pid}/limits").read_text().split("\n")
    return next(line.split()[4:6] for line in limits if line.startswith("Max core file size"))


def test_no_process_of_a_run_may_leave_a_core_file(run: subprocess.Popen[bytes]) -> None:
    most = "1" if resource.getrlimit(resource.RLIMIT_CORE)[1] else "0"  # core_pattern's program runs under 0 still
    for pid in (run.pid, *(child(run, mark) for mark in MARKS.values())):
        assert limit(pid) == [most, most]


def test_a_waiting_run_that_crashes_leaves_no_core_file(run: subprocess.Popen[bytes], tmp_path: Path) -> None:
    run.send_signal(signal.SIGSEGV)
    _, status = os.waitpid(run.pid, 0)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert not os.WCOREDUMP(status)
    assert not list(tmp_path.glob("**/core*"))
