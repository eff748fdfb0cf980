"""What hangs holds nobody: each program, socket and call of the engines' that never answers, and a TERM meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import driver_roots, fake_ctk, payloads
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, SCRIPTS, FakeNode, Run

DOCKER = "/run/docker.sock"
CONTAINERD = "/run/containerd/containerd.sock"
CRIO = "/run/crio/crio.sock"
PATIENCE = 15.0
"""Seconds. What hangs here hangs for much longer, and would be waited for much longer."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the node's programs are run in a chroot: run as root")
runs_programs = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)


@pytest.fixture
def bare(node: FakeNode) -> FakeNode:
    (node.root / "var").mkdir()
    (node.root / "var" / "run").symlink_to("/run")
    node.write(DAEMON_JSON, "{}\n")
    node.write(CONFIG_TOML, "version = 2\n")
    return node


@contextlib.contextmanager
def listening(place: Path, how: str) -> Iterator[None]:
    """Listen on a socket: `silent` takes calls and says nothing, `full` takes none, `drips` a byte now and then."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    name = f"/proc/self/fd/{folder}/{place.name}"
    ended = threading.Event()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(name)
        server.listen(0 if how == "full" else 64)
        if how == "full":
            for _ in range(2):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    client.connect(name)
        server.settimeout(0.1)

        def serve() -> None:
            calls: list[socket.socket] = []
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    calls.append(server.accept()[0])
                for call in calls if how == "drips" else ():
                    with contextlib.suppress(OSError):
                        call.sendall(b"H")
            for call in calls:
                call.close()

        thread = threading.Thread(target=serve)
        if how != "full":
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if how != "full":
                thread.join()
            os.close(folder)


def begun(node: FakeNode, command: str, *more: str) -> Run:
    source = ["--toolkit-source-root", str(node.payload)] if command in ("run", "plan") else []
    words = ["--node-root", str(node.root), "--log-format", "logfmt", "--debug", *source, *more]
    return node._started([str(SCRIPTS / "toolkit-installer"), command, *words])


def stopped(run: Run, after: float = 2.0) -> int:
    """Send TERM while the command hangs; return its exit code. Fails if it does not end soon."""
    time.sleep(after)
    assert run.process.poll() is None, f"it did not hang: {run.output}"
    began = time.monotonic()
    code = run.stop()
    assert time.monotonic() - began < PATIENCE, run.output
    assert "Traceback" not in run.output
    return code


@pytest.mark.parametrize("how", ["silent", "full", "drips"])
@pytest.mark.parametrize(
    "engine, path",
    [("docker", DOCKER), ("containerd", CONTAINERD), ("crio", CRIO)],
)
@pytest.mark.parametrize("command", ["run", "plan", "status", "detect", "diagnose", "uninstall"])
def test_an_engine_that_never_answers_holds_no_command_that_is_told_to_stop(  # all that is tried
    bare: FakeNode, command: str, engine: str, path: str, how: str
) -> None:
    if command in ("status", "uninstall"):
        assert bare.do("run", "--no-daemon", engine=engine).finish() == 0
    before = bare.snapshot()
    with listening(bare.place(path), how):
        # a cleanup that was begun comes to its end, which has one
        more = ("--reload-timeout", "5") if command in ("run", "uninstall") else ()
        run = begun(bare, command, *more, *(() if command in ("detect", "diagnose") else ("--runtime", engine)))
        time.sleep(2)
        if run.process.poll() is None:
            began = time.monotonic()
            run.process.send_signal(signal.SIGTERM)
            run.finish()
            assert time.monotonic() - began < (60 if more else PATIENCE), run.output
        run.finish()
        assert "Traceback" not in run.output
        assert "this is a bug" not in run.output
    if command in ("run", "plan", "detect", "diagnose"):
        # stopped half-way, it leaves the toolkit to an engine that may run containers through it, and says so
        needed = ("/usr/local/nvidia",) if "The toolkit is still needed" in run.output else ()
        gone = (path, "/run/containerd", "/run/crio", *needed)
        after = {name: entry for name, entry in bare.snapshot().items() if not name.startswith(gone)}
        if "Cleaning up" not in run.output:  # one that was begun may end with what cannot be taken back, and says so
            assert after == {each: entry for each, entry in before.items() if not each.startswith(gone)}, run.output


def hangs(place: Path) -> None:
    """Let the program at `place` hang, whatever it is asked, and whatever it is told."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # it does not sleep: in a made root there is no program for that, and the loop would take a whole processor
    place.write_text("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do kill -STOP $$; done\n")
    place.chmod(0o755)


def wait_until_nothing_runs_in(node: FakeNode) -> None:
    """Wait until no process has a `/` in the node: what a command has started ends with it, however that was ended."""
    deadline = time.monotonic() + 30
    while any(_root(process).startswith(str(node.root)) for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, "a program outlived the command that started it"
        time.sleep(0.05)


def _root(process: Path) -> str:
    try:
        return os.readlink(process / "root")
    except OSError:
        return ""  # it has ended


@runs_programs
@pytest.mark.parametrize("command", ["run", "plan", "wait-driver"])
def test_a_hanging_nvidia_smi_holds_no_command_that_is_told_to_stop(bare: FakeNode, command: str) -> None:
    hangs(driver_roots.install(bare.place(driver_roots.CONTAINER)))
    before = bare.snapshot()
    auto = ("--driver-root", "auto")
    run = begun(bare, command, *auto, *(() if command == "wait-driver" else ("--runtime", "docker")))
    code = stopped(run)
    assert code in ((-15,) if command == "plan" else (0, 143)), run.output
    assert bare.snapshot() == before
    wait_until_nothing_runs_in(bare)


def test_a_hanging_nvidia_ctk_holds_no_run_that_is_told_to_stop(bare: FakeNode, tmp_path: Path) -> None:
    bare.payload = fake_ctk.into(payloads.build(tmp_path / "payload"))
    fake_ctk.driver(bare.place("/run/nvidia/driver"))
    hangs(next(bare.payload.rglob("nvidia-ctk")))
    before = bare.snapshot()
    run = begun(bare, "run", "--runtime", "docker", "--cdi-enabled")
    assert stopped(run) == 0
    assert bare.snapshot() == before


@pytest.mark.parametrize("way", ["uninstall"])
def test_who_waits_for_another_instance_to_leave_can_be_stopped(bare: FakeNode, way: str) -> None:
    held = bare.waiting()
    os.kill(held.pid, signal.SIGSTOP)
    try:
        run = begun(bare, way, "--runtime", "docker")
        run.wait_for("Asking the running instance")
        assert stopped(run, 0.5) == 128 + signal.SIGTERM
    finally:
        os.kill(held.pid, signal.SIGCONT)
    assert held.finish() == 0
