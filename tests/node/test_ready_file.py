"""The ready file, which a pod's probes look at: there while the engine serves the handlers, and at no other time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.engines.rules import Served
from tests.node.faults import Fault, Plan, run
from tests.node.instants import stopping
from tests.support.fake_node import DAEMON_JSON, DOCKER, TOOLKIT, WAITING, FakeNode

pytestmark = pytest.mark.usefixtures("configured")
NOT_READY = "Not ready: the engines do not serve the handlers"
HANDLERS = tuple(
    (name, f"{TOOLKIT}/nvidia-container-runtime{kind}")
    for name, kind in (("nvidia", ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))
)
SERVED = Served((*HANDLERS, ("runc", "runc")), "nvidia")


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    return tmp_path / "ready"


def flags(ready: Path, *more: str) -> tuple[str, ...]:
    return ("--ready-file", str(ready), "--socket", SOCKET, *more)


@pytest.mark.usefixtures("dockerd")
def test_it_is_there_from_the_engines_answer_to_the_signal(node: FakeNode, ready: Path) -> None:
    waiting = node.start(*flags(ready))
    waiting.wait_for("The engine serves its configuration")
    waiting.wait_for("Wrote the ready file")
    waiting.wait_for(WAITING)
    assert ready.read_text() == "docker nvidia nvidia-cdi nvidia-legacy\n"
    assert ready.stat().st_mode & 0o777 == 0o644
    assert waiting.stop() == 0
    assert not ready.exists()
    assert node.read(DAEMON_JSON) == DOCKER


@pytest.mark.usefixtures("dockerd")
def test_a_node_that_is_right_already_is_ready_at_once(node: FakeNode, ready: Path, tmp_path: Path) -> None:
    assert run(node, tmp_path, "run", *flags(ready, "--no-daemon")).code == 0
    assert ready.exists()  # what it says is true until somebody changes it
    waiting = node.waiting(*flags(ready, "--cleanup", "never"))
    assert "Nothing to do" in waiting.output
    assert ready.exists()
    assert waiting.stop() == 0
    assert not ready.exists()  # nobody looks after it any more


def test_an_engine_that_does_not_run_is_not_ready(node: FakeNode, ready: Path) -> None:
    waiting = node.waiting(*flags(ready))
    assert NOT_READY in waiting.output
    assert not ready.exists()
    waiting.stop()


def test_one_that_is_to_be_restarted_by_hand_is_not_ready_before_that(
    node: FakeNode, dockerd: FakeDockerd, ready: Path
) -> None:
    waiting = node.waiting(*flags(ready, "--restart-mode", "none"))
    assert f'{NOT_READY}" event=not-ready-engine why="docker: it does not list the handler nvidia' in waiting.output
    assert not ready.exists()
    dockerd.put(SERVED)
    waiting.process.send_signal(signal.SIGHUP)
    waiting.wait_for(WAITING)
    assert ready.exists()
    dockerd.put(Served())
    waiting.process.send_signal(signal.SIGHUP)
    waiting.wait_for(NOT_READY)
    waiting.wait_for(WAITING)
    assert not ready.exists()
    waiting.stop()


@pytest.mark.parametrize("drift", ["report", "repair", "ignore"])
def test_an_engine_that_starts_while_we_wait_is_noticed(node: FakeNode, ready: Path, drift: str) -> None:
    arguments = flags(ready, "--restart-mode", "none", "--on-drift", drift)
    with stopping(node, "never", "run", *arguments, woken=True) as waiting:
        waiting.wait_for(WAITING)
        assert not ready.exists()
        engine = FakeDockerd(node)
        try:
            engine.put(SERVED)
            waiting.wait_for("Wrote the ready file")
            waiting.wait_for(WAITING)
            assert ready.exists()
            assert "Somebody changed" not in waiting.output
            assert "A managed file was changed" not in waiting.output
            assert waiting.stop() == 0
        finally:
            engine.close()
    assert not ready.exists()
    assert node.read(DAEMON_JSON) == DOCKER


def test_one_that_an_earlier_run_left_says_nothing(node: FakeNode, ready: Path, tmp_path: Path) -> None:
    ready.write_text("stale\n")
    node.write(DAEMON_JSON, "{ broken")
    assert run(node, tmp_path, "run", *flags(ready)).code == 3
    assert not ready.exists()


@pytest.mark.usefixtures("dockerd")
def test_a_second_run_leaves_that_of_the_first_alone(node: FakeNode, ready: Path) -> None:
    first = node.waiting(*flags(ready))
    status = ready.stat()
    assert node.do("run", *flags(ready)).process.returncode == 4
    assert node.do("plan", *flags(ready)).process.returncode == 4
    assert node.do("status", *flags(ready)).process.returncode == 0
    assert (ready.stat().st_ino, ready.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    assert first.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_uninstall_after_a_kill_removes_it(node: FakeNode, ready: Path) -> None:
    first = node.waiting(*flags(ready))
    first.stop(signal.SIGKILL)
    assert ready.exists()
    assert node.do("uninstall", *flags(ready)).process.returncode == 0
    assert not ready.exists()


def test_a_toolkit_alone_is_ready_once_it_is_installed(node: FakeNode, ready: Path, tmp_path: Path) -> None:
    assert run(node, tmp_path, "run", "--ready-file", str(ready), "--no-daemon", "--no-runtime-config").code == 0
    assert ready.exists()


def test_a_folder_that_is_not_there_is_said_before_anything_is_changed(node: FakeNode, tmp_path: Path) -> None:
    before = node.snapshot()
    done = run(node, tmp_path, "run", *flags(tmp_path / "absent" / "ready"))
    assert done.code == 3
    assert "the folder of the ready file does not exist" in done.output
    assert node.snapshot() == before


def test_a_folder_in_its_place_is_said_and_stays(node: FakeNode, ready: Path, tmp_path: Path) -> None:
    ready.mkdir()
    done = run(node, tmp_path, "run", *flags(ready))
    assert done.code == 3
    assert str(ready) in done.output
    assert ready.is_dir()


def test_it_is_written_as_all_files_are_and_through_no_symlink(
    node: FakeNode, dockerd: FakeDockerd, ready: Path, tmp_path: Path
) -> None:
    dockerd.put(SERVED)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    ready.symlink_to(victim)
    done = run(node, tmp_path, "run", *flags(ready, "--no-daemon", "--restart-mode", "none"))
    assert done.code == 0, done.output
    assert not ready.is_symlink()
    assert victim.read_text() == "precious"
    assert f"rename .{ready.name}.toolkit-installer.tmp {ready.name}" in done.calls


def test_one_that_cannot_be_removed_keeps_no_node_from_being_given_back(
    node: FakeNode, dockerd: FakeDockerd, ready: Path, tmp_path: Path
) -> None:
    dockerd.put(SERVED)
    assert run(node, tmp_path, "run", *flags(ready, "--no-daemon", "--restart-mode", "none")).code == 0
    done = run(node, tmp_path, "uninstall", *flags(ready, "--restart-mode", "none"))
    at = done.index(f"unlink {ready.name}")
    assert run(node, tmp_path, "run", *flags(ready, "--no-daemon", "--restart-mode", "none")).code == 0
    failed = run(
        node,
        tmp_path,
        "uninstall",
        *flags(ready, "--restart-mode", "none"),
        plan=Plan(at, fault=Fault.ONCE),
    )
    assert "The ready file cannot be removed" in failed.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert os.path.lexists(ready)


@pytest.mark.usefixtures("dockerd")
@pytest.mark.parametrize("damage", ["removed", "replaced", "folder-renamed", "made-unusable"])
def test_damage_to_the_toolkit_shows_within_seconds(node: FakeNode, ready: Path, damage: str) -> None:
    waiting = node.waiting(*flags(ready))
    assert ready.exists()
    runtime = node.place(f"{TOOLKIT}/nvidia-container-runtime")
    if damage == "removed":
        runtime.unlink()
    elif damage == "replaced":
        runtime.with_name("new").write_bytes(b"#!/bin/sh\n")
        runtime.with_name("new").rename(runtime)
    elif damage == "folder-renamed":
        runtime.parent.rename(runtime.parent.with_name("away"))
    else:
        runtime.chmod(0o600)
    deadline = time.monotonic() + 10  # a look at the files comes every 30 s
    while ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ready.exists(), waiting.output
    waiting.stop()


@pytest.mark.usefixtures("dockerd")
def test_other_files_in_the_toolkits_folder_wake_nobody_up(node: FakeNode, ready: Path) -> None:
    waiting = node.waiting(*flags(ready))
    for number in range(20):
        node.write(f"{TOOLKIT}/other-{number}", b"x")
        time.sleep(0.1)
    assert waiting.output.endswith('msg="Waiting for signal" event=waiting\n')
    assert b"idle_process" in Path(f"/proc/{waiting.pid}/cmdline").read_bytes()
    assert ready.exists()
    waiting.stop()
