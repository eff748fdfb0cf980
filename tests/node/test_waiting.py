"""What is watched while a run waits, what is said of it, and what `status` says of it: at night, to somebody new."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.engines.rules import Served
from tests.node.instants import stopping
from tests.support import driver_roots
from tests.support.driver_roots import HOST, install
from tests.support.fake_node import DAEMON_JSON, TOOLKIT, WAITING, FakeNode

WRAPPER = f"{TOOLKIT}/nvidia-container-runtime"
SECRET = "hunter2-hunter2"  # noqa: S105  # made up, to be looked for
DOCKER = f'{{\n  "log-opts": {{"splunk-token": "{SECRET}"}},\n  "debug": true\n}}\n'.encode()
NOT_AS_PUT = "A file of the toolkit is not what was put there"


@pytest.fixture(autouse=True)
def configured(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)


def status(node: FakeNode) -> dict[str, Any]:
    answer = node.do("status", "--json")
    assert answer.process.returncode == 0, answer.output
    body: dict[str, Any] = json.loads(answer.output)
    return body


def reasons(node: FakeNode) -> str:
    return " | ".join(reason["what"] for reason in status(node)["reasons"])


def installed(node: FakeNode) -> None:
    """Install, and once more with another setting: by then the kernel's clock has moved on since each copy was made."""
    node.do("run", "--no-daemon", "--nvidia-container-runtime.log-level", "debug")
    node.do("run", "--no-daemon")


def emptied(node: FakeNode) -> None:
    node.place(WRAPPER).write_bytes(b"")


def changed(node: FakeNode) -> None:
    node.place(WRAPPER).write_text("#!/bin/sh\nexit 1\n")


def closed(node: FakeNode) -> None:
    node.place(WRAPPER).chmod(0o644)


def gone(node: FakeNode) -> None:
    node.place(WRAPPER).unlink()


def made_a_link(node: FakeNode) -> None:
    node.place(WRAPPER).unlink()
    node.place(WRAPPER).symlink_to("/bin/true")


def copy_changed(node: FakeNode) -> None:
    node.place(f"{WRAPPER}.real").write_bytes(b"\x7fELF, and another program\n")


DAMAGES = {
    emptied: "nvidia-container-runtime: it is empty",
    changed: "nvidia-container-runtime: its content was changed",
    closed: "nvidia-container-runtime: its mode is 0644, not 0755",
    gone: "files are missing in /usr/local/nvidia/toolkit: nvidia-container-runtime",
    made_a_link: "nvidia-container-runtime: it is another kind of file by now",
    copy_changed: "nvidia-container-runtime.real: its content was changed",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_status_says_broken_of_a_file_that_is_not_what_was_put_there(node: FakeNode, damage: Any) -> None:
    installed(node)
    assert "toolkit/" not in reasons(node)
    damage(node)
    assert DAMAGES[damage] in reasons(node)
    assert status(node)["verdict"] == "BROKEN"
    assert node.do("run", "--no-daemon").process.returncode == 0
    assert DAMAGES[damage] not in reasons(node)


def test_a_copy_that_was_only_touched_is_as_good_as_before(node: FakeNode) -> None:
    installed(node)
    copy = node.place(f"{WRAPPER}.real")
    copy.write_bytes(copy.read_bytes())
    assert not status(node)["toolkit"]["damaged"]


@pytest.mark.parametrize("damage", [emptied, gone, copy_changed], ids=lambda damage: damage.__name__)
def test_a_waiting_run_logs_once_which_toolkit_file_changed_and_is_not_ready(
    node: FakeNode, tmp_path: Path, damage: Any
) -> None:
    ready = tmp_path / "ready"
    with (
        FakeDockerd(node),
        stopping(node, "never", "run", "--socket", SOCKET, "--ready-file", str(ready), woken=True) as run,
    ):
        run.wait_for(WAITING)
        assert ready.exists()
        good = node.read(WRAPPER)
        damage(node)
        run.wait_for(NOT_AS_PUT)
        run.wait_for("Not ready: the toolkit is damaged")
        run.wait_for(WAITING)
        assert not ready.exists()
        assert run.output.count(NOT_AS_PUT) == 1
        run.process.send_signal(signal.SIGHUP)
        run.wait_for("Wrote the ready file")
        run.wait_for(WAITING)
        assert node.read(WRAPPER) == good
        assert run.stop() == 0


def test_a_waiting_run_that_repairs_puts_the_toolkit_back(node: FakeNode) -> None:
    with stopping(node, "never", "run", "--on-drift", "repair", woken=True) as run:
        run.wait_for(WAITING)
        good = node.read(WRAPPER)
        emptied(node)
        run.wait_for("Installed the toolkit")
        run.wait_for(WAITING)
        assert node.read(WRAPPER) == good
        assert run.stop() == 0


def test_a_changed_file_is_told_with_what_would_undo_it_and_no_secret(node: FakeNode) -> None:
    with stopping(node, "never", "run", woken=True) as run:
        run.wait_for(WAITING)
        node.place(DAEMON_JSON).write_bytes(DOCKER)
        run.wait_for("Somebody changed the file")
        run.wait_for(WAITING)
        assert '+    \\"nvidia\\"' in run.output or '\\"nvidia\\": {' in run.output
        assert SECRET not in run.output
        ((file,),) = (engine["files"] for engine in status(node)["engines"])
        assert (file["path"], file["state"]) == (DAEMON_JSON, "as it was before")
        assert '+    "nvidia": {' in file["difference"]
        assert SECRET not in file["difference"]
        shown = node.do("status").output
        assert '\n         +    "nvidia": {\n' in shown
        run.process.send_signal(signal.SIGHUP)
        run.wait_for("The node is configured")
        run.wait_for(WAITING)
        ((file,),) = (engine["files"] for engine in status(node)["engines"])
        assert (file["state"], file["difference"]) == ("as written", None)
        run.stop()


def test_a_file_that_no_longer_parses_is_told_with_its_line_and_why(node: FakeNode) -> None:
    with stopping(node, "never", "run", "--cleanup", "never", woken=True) as run:
        run.wait_for(WAITING)
        node.place(DAEMON_JSON).write_bytes(b'{\n  "debug": true,\n}\n')
        run.wait_for("Somebody changed the file")
        run.wait_for(WAITING)
        assert "line=2" in run.output
        assert "a comma before" in run.output
        run.stop()


def test_an_engine_that_comes_back_without_the_handlers_is_told_without_a_ready_file(node: FakeNode) -> None:
    with stopping(node, "never", "run", "--socket", SOCKET, "--restart-mode", "none", woken=True) as run:
        run.wait_for(WAITING)
        with FakeDockerd(node) as engine:
            engine.put(Served())
            run.wait_for("Not ready: the engines do not serve the handlers")
            run.wait_for(WAITING)
        run.stop()


def test_status_tells_what_the_waiting_run_did_last(node: FakeNode) -> None:
    run = node.waiting("--cleanup", "never")
    look = status(node)["last_look"]
    assert look["failure"] is None
    assert status(node)["changed"] <= look["at"] or look["at"] <= status(node)["changed"]
    node.place(DAEMON_JSON).write_bytes(b"{ broken")
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("Could not converge")
    run.wait_for(WAITING)
    assert "daemon.json" in status(node)["last_look"]["failure"]
    assert "could not do its work" in reasons(node)
    run.stop()


def test_status_tells_a_killed_run_from_one_that_was_stopped(node: FakeNode) -> None:
    stopped = node.waiting("--cleanup", "never")
    stopped.stop()
    assert status(node)["killed_pid"] is None
    killed = node.waiting("--cleanup", "never")
    killed.stop(signal.SIGKILL)
    assert status(node)["killed_pid"] == killed.pid
    assert f"(PID {killed.pid}) was killed" in reasons(node)


def test_the_exit_code_of_a_check_is_the_verdict(node: FakeNode) -> None:
    with FakeDockerd(node):
        flags = ("--socket", SOCKET)
        assert node.do("run", "--no-daemon", *flags).process.returncode == 0
        assert node.do("status", "--check").process.returncode == 0
        node.place(DAEMON_JSON).write_bytes(node.read(DAEMON_JSON) + b"\n")
        assert node.do("status", "--check").process.returncode == 1
        emptied(node)
        assert node.do("status", "--check").process.returncode == 2
        assert node.do("status").process.returncode == 0


@pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
def test_a_driver_that_stays_broken_is_told_once_and_not_at_each_look(node: FakeNode) -> None:
    program = install(node.place(HOST))
    with stopping(node, "never", "run", "--driver-root", "auto", woken=True) as run:
        run.wait_for(WAITING)
        program.write_text("#!/bin/busybox sh\necho the module is not loaded >&2; exit 9\n")
        run.wait_for("nvidia-smi ends with 9")
        run.wait_for(WAITING)
        run.wait_for("none was usable so far")
        said = run.output.count("nvidia-smi ends with 9")
        program.write_text("#!/bin/busybox sh\necho the module is another >&2; exit 8\n")
        run.wait_for("nvidia-smi ends with 8")
        assert run.output.count("nvidia-smi ends with 9") == said
        assert run.output.count("none was usable so far") == 1
        assert run.stop() == 0
