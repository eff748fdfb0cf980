"""A driver that comes, goes or moves while a run waits, with `--driver-root auto`."""

from __future__ import annotations

import json
import signal
import tomllib

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import stopping
from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, install
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, WAITING, FakeNode
from toolkit_installer.driver.roots import CONTAINER_READY, DRIVER_READY, VALIDATIONS

pytestmark = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)

AUTO = ("--driver-root", "auto")
CHANGED = "its files changed"
AWAY = "No driver is usable now: the installed root stays"


def root(node: FakeNode) -> str:
    """Return the driver root that the installed toolkit has."""
    document = tomllib.loads(node.read(f"{TOOLKIT}/.config/nvidia-container-runtime/config.toml").decode())
    return str(document["nvidia-container-cli"]["root"])


def test_a_driver_that_moves_is_followed_and_no_engine_is_reloaded(node: FakeNode) -> None:
    program = install(node.place(HOST))
    with (
        FakeDockerd(node),
        stopping(node, "never", "run", *AUTO, "--socket", SOCKET, woken=True) as run,
    ):
        run.wait_for(WAITING)
        assert root(node) == HOST
        program.unlink()
        run.wait_for(CHANGED)
        run.wait_for(AWAY)
        run.wait_for(NOTHING_TO_DO)
        before = node.read(DAEMON_JSON)
        install(node.place(CONTAINER))
        run.wait_for("The node is configured")
        run.wait_for(WAITING)
        assert root(node) == CONTAINER
        assert node.read(DAEMON_JSON) == before
        assert run.output.count("Reloading the engine") == 1
        assert run.stop() == 0, run.output
    assert not node.exists(TOOLKIT)


def test_a_driver_container_that_has_yet_to_say_that_it_is_ready_is_waited_for(node: FakeNode) -> None:
    program = install(node.place(HOST))
    with stopping(node, "never", "run", *AUTO, woken=True) as run:
        run.wait_for(WAITING)
        node.place(VALIDATIONS).mkdir(parents=True)
        program.unlink()
        install(node.place(CONTAINER))
        run.wait_for(AWAY)
        run.wait_for(WAITING)
        assert root(node) == HOST
        node.write(CONTAINER_READY, "")
        run.wait_for("The node is configured")
        run.wait_for(WAITING)
        assert root(node) == CONTAINER
        assert run.stop() == 0, run.output


def test_a_driver_whose_files_precede_its_module_is_checked_until_it_works(node: FakeNode) -> None:
    host = install(node.place(HOST))
    with stopping(node, "never", "run", *AUTO, woken=True) as run:
        run.wait_for(WAITING)
        host.unlink()
        place = node.place(CONTAINER)
        program = install(place)
        program.write_text(f"#!/bin/busybox sh\n[ -e /loaded ] || exit 9\necho {driver_roots.VERSION}\n")
        run.wait_for("nvidia-smi ends with 9")
        run.wait_for("none was usable so far")
        (place / "loaded").touch()  # what no file that is watched tells of
        run.wait_for("The node is configured")
        assert root(node) == CONTAINER
        assert run.stop() == 0, run.output


def test_another_driver_does_not_undo_an_edit_that_is_only_to_be_reported(node: FakeNode) -> None:
    install(node.place(HOST))
    with stopping(node, "never", "run", *AUTO, woken=True) as run:
        run.wait_for(WAITING)
        theirs = json.dumps(json.loads(node.read(DAEMON_JSON)) | {"default-runtime": "runc"}).encode()
        node.write(DAEMON_JSON, theirs)
        run.wait_for("Somebody changed the file")
        run.wait_for(WAITING)
        install(node.place(CONTAINER))
        run.wait_for("The driver may be another one, but somebody changed a managed file")
        run.wait_for(WAITING)
        assert run.output.count("The driver may be another one") == 1
        assert (root(node), node.read(DAEMON_JSON)) == (HOST, theirs)
        run.process.send_signal(signal.SIGHUP)
        run.wait_for("The node is configured")
        assert root(node) == CONTAINER
        assert node.docker()["default-runtime"] == "nvidia"
        assert run.stop() == 0, run.output


@pytest.mark.parametrize("flags", [(), ("--driver-root", HOST)], ids=str)
def test_where_nothing_depends_on_the_driver_none_is_looked_for(node: FakeNode, flags: tuple[str, ...]) -> None:
    program = install(node.place(HOST))
    with stopping(node, "never", "run", *flags, woken=True) as run:
        run.wait_for(WAITING)
        before = root(node)
        program.unlink()
        install(node.place(CONTAINER))
        run.process.send_signal(signal.SIGHUP)
        run.wait_for(NOTHING_TO_DO)
        run.wait_for(WAITING)
        assert root(node) == before
        assert run.stop() == 0, run.output
        assert CHANGED not in run.output


def test_a_driver_that_cannot_be_looked_at_is_told_of_once_for_each_change(node: FakeNode) -> None:
    """What fails because of a change fails again for the next look, and the log is not the place to count that."""
    install(node.place(HOST))
    with stopping(node, "never", "run", *AUTO, woken=True) as run:
        run.wait_for(WAITING)
        ready = node.place(DRIVER_READY)
        ready.parent.mkdir(parents=True)
        ready.mkdir()
        run.wait_for(CHANGED)
        run.wait_for("Could not converge: the wait goes on")
        run.wait_for(WAITING)
        ready.rmdir()
        install(node.place(CONTAINER))
        node.write(CONTAINER_READY, "")
        run.wait_for("The node is configured")
        assert root(node) == CONTAINER
        assert run.output.count("Could not converge") == 1
        assert run.stop() == 0, run.output
