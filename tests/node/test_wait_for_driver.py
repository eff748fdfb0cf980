"""`run --wait-for-driver`: what needs a driver waits for one, changes nothing meanwhile, and does not end with 8."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import stopping
from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, install
from tests.support.fake_node import DAEMON_JSON, TOOLKIT, WAITING, FakeNode
from toolkit_installer.errors import SIGNALLED, ExitCode

runs_drivers = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)

AUTO = ("--driver-root", "auto")
WAITS = (*AUTO, "--wait-for-driver")
NOT_YET = "No driver is usable yet: nothing is changed before one is"
NOT_READY = "Not ready: no driver is usable"


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    return tmp_path / "ready"


def test_without_it_such_a_run_ends_and_is_started_again_and_again(node: FakeNode) -> None:
    before = node.snapshot()
    run = node.do("run", *AUTO)
    assert run.process.returncode == ExitCode.DRIVER_NOT_READY
    assert "--wait-for-driver" in run.output, "the remedy"
    assert node.snapshot() == before


@runs_drivers
def test_a_driver_that_comes_is_taken_and_the_node_is_not_ready_before(node: FakeNode, ready: Path) -> None:
    node.write(DAEMON_JSON, "{}")
    flags = (*WAITS, "--ready-file", str(ready), "--socket", SOCKET)
    with FakeDockerd(node), stopping(node, "never", "run", *flags, woken=True) as run:
        run.wait_for(NOT_YET)
        run.wait_for(NOT_READY)
        run.wait_for(WAITING)
        assert "engines do not serve" not in run.output, "nobody has asked them to"
        assert not ready.exists()
        assert not node.exists(TOOLKIT)
        assert node.read(DAEMON_JSON) == b"{}"
        install(node.place(CONTAINER))
        run.wait_for("The node is configured")
        run.wait_for(WAITING)
        assert ready.exists()
        assert run.stop() == 0, run.output
    assert node.read(DAEMON_JSON) == b"{}"


def test_one_that_is_told_to_stop_before_that_leaves_without_a_change(node: FakeNode) -> None:
    before = node.snapshot()
    run = node.start(*WAITS)
    run.wait_for(NOT_YET)
    run.wait_for(WAITING)
    assert run.stop() == 0
    assert "Nothing to clean up" in run.output
    assert node.snapshot() == before


@runs_drivers
def test_a_run_that_does_not_stay_waits_too(node: FakeNode) -> None:
    run = node.start("--no-daemon", *WAITS)
    run.wait_for("Waiting for the driver")
    assert not node.exists(TOOLKIT)
    install(node.place(HOST))
    run.process.send_signal(signal.SIGHUP)
    assert run.finish() == 0, run.output
    assert "The node is configured" in run.output
    assert node.exists(TOOLKIT)


def test_a_run_that_does_not_stay_can_be_told_to_stop_waiting(node: FakeNode) -> None:
    before = node.snapshot()
    run = node.start("--no-daemon", *WAITS)
    run.wait_for("Waiting for the driver")
    assert run.stop() == SIGNALLED + signal.SIGTERM, run.output
    assert node.snapshot() == before


@runs_drivers
def test_a_driver_that_goes_takes_readiness_with_it_and_brings_it_back(node: FakeNode, ready: Path) -> None:
    program = install(node.place(HOST))
    flags = (*AUTO, "--ready-file", str(ready), "--socket", SOCKET)
    with FakeDockerd(node), stopping(node, "never", "run", *flags, woken=True) as run:
        run.wait_for(WAITING)
        assert ready.exists()
        program.unlink()
        run.wait_for(NOT_READY)
        run.wait_for(WAITING)
        assert not ready.exists()
        assert ready.with_name("ready.started").exists(), "a pod's startup probe would have it started anew"
        install(node.place(HOST))
        run.wait_for("Wrote the ready file")
        run.wait_for(WAITING)
        assert ready.exists()
        assert run.stop() == 0, run.output
    assert not list(ready.parent.glob("ready*"))


@runs_drivers
def test_a_run_that_starts_without_its_driver_has_started_and_is_not_ready(node: FakeNode, ready: Path) -> None:
    """As after a reboot: the driver's container may take longer than a startup probe has patience."""
    program = install(node.place(HOST))
    flags = (*AUTO, "--ready-file", str(ready), "--socket", SOCKET)
    with FakeDockerd(node):
        assert node.do("run", "--no-daemon", *flags).process.returncode == 0
        program.unlink()
        with stopping(node, "never", "run", *flags, woken=True) as run:
            run.wait_for(NOT_READY)
            run.wait_for(WAITING)
            assert ready.with_name("ready.started").exists()
            assert not ready.exists()
            install(node.place(HOST))
            run.wait_for("Wrote the ready file")
            assert run.stop() == 0, run.output
