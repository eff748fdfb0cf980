"""Every engine, from a fresh start to the end: each promise is looked at, each disturbance is counted.

It is done under systemd, in a machine of its own for each engine: that is how nodes restart containerd, and docker's
socket is systemd's there. Nothing is said of paths or restarts on the command line, as a node's own pod does not.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import toolkit_installer
from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR, Machine
from tests.e2e.matrix.course import Clock, Course
from tests.e2e.matrix.foretelling import Foretelling
from tests.e2e.matrix.peer import Peer
from tests.e2e.matrix.prober import Prober
from tests.e2e.matrix.rows import ROWS, Row
from tests.e2e.program import WAITING, Installer, missing_programs
from tests.support import payloads
from tests.support.reports.compatibility import By, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.hosts.host import Host
    from tests.support.built.go_tools import Tool
    from tests.support.built.releases import Release, Suite

pytestmark = pytest.mark.alone

IDLE = "Nothing to do"
OWNER, GROUP = 0, 12


@pytest.fixture
def payload(folder: Path) -> Path:
    """Return a folder with two payloads, which the machine shows whole."""
    payloads.build(folder / "payloads" / "old", version="1.19.0")
    payloads.build(folder / "payloads" / "new", version="1.20.0")
    return folder / "payloads"


@pytest.fixture(params=ROWS, ids=str)
def row(request: pytest.FixtureRequest) -> Row:
    made: Row = request.param
    return made


@pytest.fixture
def machine(
    row: Row,
    boot: Callable[[Release | None], Host],
    release: Callable[[Suite], Release],
    go_tool: Callable[[Tool], Path],
    folder: Path,
    payload: Path,
) -> Iterator[Machine]:
    """Yield a machine whose engine runs, on a file of its own."""
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)} (make .venv/installed)")
    host = boot(release(row.suite) if row.suite is not None else None)
    if row.prepare is not None:
        row.prepare(host, go_tool)
    logs = folder / "logs"
    logs.mkdir()
    installer = Installer(logs, host.enter)
    made = Machine(host, installer, payload / "old")
    made.serve(row.kind.unit, row.kind.config, row.kind.text)
    os.chown(host.path(row.kind.config), OWNER, GROUP)
    yield made
    installer.close()


@pytest.fixture
def course(row: Row, machine: Machine, folder: Path, request: pytest.FixtureRequest) -> Iterator[Course]:
    """Yield what times, watches and records the steps."""
    version = row.kind.version(machine)
    with Prober(row.kind.probed, machine.host.path(row.kind.socket), folder / "prober") as prober:
        prober.settle()
        yield Course(row, machine, prober, version, request.node.user_properties)


def owner_of_handlers(machine: Machine, row: Row) -> str:
    return next(path for path in row.kind.owns if machine.exists(path))


def damage(machine: Machine, row: Row) -> None:
    """Do as somebody who edits the file, and restarts the engine for that."""
    path = machine.host.path(owner_of_handlers(machine, row))
    path.write_text(row.kind.damage(path.read_text()))
    machine.host.run("systemctl", "restart", row.kind.unit)
    assert "nvidia-cdi" not in row.kind.executables(row.kind.serves(machine))


def assert_it_serves(machine: Machine, row: Row, *names: str) -> None:
    executables = row.kind.executables(row.kind.serves(machine))
    assert set(executables) == set(names)
    for name in HANDLERS & set(names):
        assert executables[name].startswith(f"{INSTALL_DIR}/toolkit/nvidia-container-runtime")
        assert os.access(machine.host.path(executables[name]), os.X_OK)


class Ours:
    """This installer's steps. Before each, the node is captured: what it is foretold elsewhere comes true."""

    def __init__(self, course: Course, machine: Machine, row: Row, payload: Path, folder: Path) -> None:
        self._course = course
        self._machine = machine
        self._row = row
        self._older, self._newer = payload / "old", payload / "new"
        self._flags = ("--runtime", row.kind.name)
        self._foretelling = Foretelling(machine, self._flags, folder)

    def step(self, step: Step, *, changes: bool = False) -> contextlib.AbstractContextManager[Clock]:
        restarts = self._row.kind.restarts if changes else 0
        return self._course.step(step, By.OURS, toolkit_installer.__version__, restarts=restarts)

    def run(self) -> str:
        code, output = self._machine.run(*self._flags)
        assert code == 0, output
        return output

    def touched(self) -> dict[str, tuple[int, ...]]:
        folder = str(Path(self._row.kind.config).parent)
        return self._machine.written_below(folder, INSTALL_DIR)

    def take(self) -> None:
        machine, row = self._machine, self._row
        before, served = machine.state(row.kind.config), row.kind.serves(machine)
        others = set(row.kind.executables(served))
        foretold = self._foretelling.look()
        assert set(row.kind.owns) & set(foretold.files)
        with self.step(Step.INSTALL, changes=True) as clock:
            self.run()
            clock.stop()
            assert_it_serves(machine, row, *others, *HANDLERS)
        foretold.assert_come_true()
        with self.step(Step.VERIFY) as clock:
            self.verify(clock)
        assert self._foretelling.look().nothing_to_do
        touched = self.touched()
        with self.step(Step.SECOND_RUN) as clock:
            assert IDLE in self.run()
            clock.stop()
            assert self.touched() == touched
        self.upgrade()
        self.repair(others)
        assert self._foretelling.look().nothing_to_do
        touched = self.touched()
        with self.step(Step.POD_RESTART) as clock:
            pod = machine.start(*self._flags, "--cleanup", "never")
            pod.wait_for(WAITING)
            assert pod.terminate() == 0, pod.output
            pod = machine.start(*self._flags, "--cleanup", "never")
            pod.wait_for(WAITING)
            clock.stop()
            assert IDLE in pod.output
            assert self.touched() == touched
        with self.step(Step.UNINSTALL, changes=True) as clock:
            code, output = machine.uninstall()
            assert code == 0, output
            assert pod.finish() == 0, pod.output
            clock.stop()
            assert machine.state(row.kind.config) == before
            assert [path for path in row.kind.owns if path != row.kind.config and machine.exists(path)] == []
            assert row.kind.serves(machine) == served
            assert not machine.exists(INSTALL_DIR)
        machine.payload = self._older
        assert self._foretelling.look().files == foretold.files

    def verify(self, clock: Clock) -> None:
        status = self._machine.status()
        clock.stop()
        (engine,) = status["engines"]
        assert status["installed"]
        assert status["toolkit"]["missing"] == []
        assert engine["name"] == self._row.kind.name
        assert engine["live"]["served"], engine["live"]["detail"]
        assert {file["state"] for file in engine["files"]} == {"as written"}
        live = self._row.kind.executables(self._row.kind.serves(self._machine))
        assert engine["handlers"].items() <= live.items()
        assert set(engine["handlers"]) == HANDLERS

    def upgrade(self) -> None:
        machine, row = self._machine, self._row
        configured = machine.state(row.kind.config), machine.state(owner_of_handlers(machine, row))
        runtime = f"{INSTALL_DIR}/toolkit/nvidia-container-runtime.real"
        old, machine.payload = machine.state(runtime), self._newer
        foretold = self._foretelling.look()
        assert not set(row.kind.owns) & set(foretold.files)
        with self.step(Step.UPGRADE) as clock:
            self.run()
            clock.stop()
            new = machine.state(runtime)
            assert old != new
            assert new is not None
            assert b"1.20.0" in new.content
            assert (machine.state(row.kind.config), machine.state(owner_of_handlers(machine, row))) == configured
        foretold.assert_come_true()

    def repair(self, others: set[str]) -> None:
        machine, row = self._machine, self._row
        whole = machine.state(owner_of_handlers(machine, row))
        damage(machine, row)
        foretold = self._foretelling.look()
        with self.step(Step.DRIFT, changes=True) as clock:
            self.run()
            clock.stop()
            assert_it_serves(machine, row, *others, *HANDLERS)
            assert machine.state(owner_of_handlers(machine, row)) == whole
        foretold.assert_come_true()


def test_no_step_breaks_its_promise_or_restarts_the_engine_needlessly(
    row: Row, machine: Machine, course: Course, payload: Path, folder: Path, peer: Path
) -> None:
    course.idle()
    Ours(course, machine, row, payload, folder).take()
    theirs = Peer(peer, machine, row, (payload / "old", payload / "new"), folder)
    with contextlib.closing(theirs):
        theirs.take(course, lambda: damage(machine, row))
