"""A driver in a root that was named (`--driver-root`, or its default): it is used unseen, and watched all the same."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node import fake_gpus
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import Stopping, stopping
from tests.node.test_metrics_file import read
from tests.support import driver_roots
from tests.support.driver_roots import CONTAINER, HOST, install
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, TOOLKIT, WAITING, FakeNode

pytestmark = pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)

AWAY = "No driver is usable now: the installed root stays"
FOUND = "Found the driver"
NOT_READY = "Not ready: no driver is usable"
READY = "Wrote the ready file"


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    return tmp_path / "ready"


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    return tmp_path / "toolkit-installer.prom"


@contextlib.contextmanager
def waiting(node: FakeNode, ready: Path, *more: str) -> Iterator[Stopping]:
    """Run on a node whose docker serves what it is told to, and wait until it is ready and sleeps."""
    given = ("--socket", SOCKET, "--ready-file", str(ready), *more)
    with FakeDockerd(node), stopping(node, "never", "run", *given, woken=True) as run:
        run.wait_for(WAITING)
        assert ready.exists()
        yield run
        assert run.stop() == 0, run.output


def looked_again(run: Stopping) -> None:
    """Have the run look at everything, whatever it has seen by itself; return once it sleeps again."""
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("Looking again")
    run.wait_for(NOTHING_TO_DO)
    run.wait_for(WAITING)


def counted(program: Path, place: Path) -> Callable[[], int]:
    """Have an nvidia-smi write down each of its calls; return what counts them."""
    program.write_text(f"#!/bin/busybox sh\necho >>/calls\necho {driver_roots.VERSION}\n")
    return lambda: len((place / "calls").read_text())


@pytest.mark.parametrize("path", [CONTAINER, "/opt/driver"], ids=["by default", "named"])
def test_one_that_goes_and_comes_back_takes_the_ready_file_with_it(
    node: FakeNode, ready: Path, metrics: Path, path: str
) -> None:
    place = node.place(path)
    install(place)
    flags = () if path == CONTAINER else ("--driver-root", path)
    with waiting(node, ready, *flags, "--metrics-textfile", str(metrics)) as run:
        config = node.read(DAEMON_JSON)
        place.rename(f"{place}.gone")  # as the mount of a driver container goes
        run.wait_for(AWAY)
        run.wait_for(NOT_READY)
        run.wait_for(WAITING)
        line = next(line for line in run.output.splitlines() if AWAY in line)
        assert f"root={path} " in line
        assert f"{path}: there is no such folder" in line
        assert "hint=" in line
        assert not ready.exists()
        assert Path(f"{ready}.started").exists()
        assert (read(metrics)["ready"], read(metrics)["driver_usable"]) == (0, 0)
        Path(f"{place}.gone").rename(place)
        run.wait_for(FOUND)
        run.wait_for(READY)
        run.wait_for(WAITING)
        assert (read(metrics)["ready"], read(metrics)["driver_usable"]) == (1, 1)
        assert run.output.count("Reloading the engine") == 1
        assert run.output.count(NOTHING_TO_DO) == 0, "the node is not converged for it"
        assert node.read(DAEMON_JSON) == config
    assert not node.exists(TOOLKIT)


def test_one_that_is_replaced_and_does_not_work_any_more_makes_the_node_not_ready(node: FakeNode, ready: Path) -> None:
    place = node.place(CONTAINER)
    install(place)
    with waiting(node, ready) as run:
        install(place, works=False)
        run.wait_for(AWAY)
        run.wait_for(NOT_READY)
        run.wait_for(WAITING)
        assert f"nvidia-smi ends with 9: {driver_roots.NO_DRIVER}" in run.output
        assert not ready.exists()
        answer = node.do("status", "--json", "--socket", SOCKET, "--driver-root", CONTAINER)
        assert any("nvidia-smi ends with 9" in each["what"] for each in json.loads(answer.output)["reasons"])
        install(place)
        run.wait_for(READY)
        run.wait_for(WAITING)


def test_one_that_is_away_is_told_of_once_however_often_it_is_looked_for(node: FakeNode, ready: Path) -> None:
    place = node.place(CONTAINER)
    program = install(place)
    with waiting(node, ready) as run:
        program.write_text("#!/bin/busybox sh\necho >>/calls\n[ -e /loaded ] || exit 9\necho 1.2.3\n")
        run.wait_for(AWAY)
        run.wait_for(WAITING)
        said = run.output.count(AWAY)
        while len((place / "calls").read_text()) < 4:
            run.wait_for("") if run.process.poll() is None else pytest.fail(run.output)
        (place / "loaded").touch()  # what no file that is watched tells of
        run.wait_for(FOUND)
        run.wait_for(READY)
        assert run.output.count(AWAY) == said == 1
        run.wait_for(WAITING)


def test_one_that_works_is_run_once_and_never_by_a_wake_up_that_has_another_reason(node: FakeNode, ready: Path) -> None:
    place = node.place(CONTAINER)
    calls = counted(install(place), place)
    with waiting(node, ready) as run:
        for _ in range(3):
            looked_again(run)
        assert calls() == 1
        assert AWAY not in run.output


def test_one_that_is_gone_for_the_look_of_a_hup_is_not_missed(node: FakeNode, ready: Path) -> None:
    program = install(node.place(CONTAINER))
    with waiting(node, ready) as run:
        program.unlink()
        looked_again(run)
        assert run.output.count(AWAY) == 1
        assert not ready.exists()
        looked_again(run)
        assert not ready.exists()


def no_root(_node: FakeNode) -> None:
    pass


def not_working(node: FakeNode) -> None:
    install(node.place(CONTAINER), works=False)


def elsewhere(node: FakeNode) -> None:
    install(node.place(HOST))


@pytest.mark.parametrize("before", [no_root, elsewhere], ids=lambda before: before.__name__)
def test_one_that_has_yet_to_come_is_no_reason_not_to_be_ready(
    node: FakeNode, ready: Path, before: Callable[[FakeNode], None]
) -> None:
    before(node)
    with waiting(node, ready) as run:
        install(node.place(CONTAINER), works=False)  # as one does whose module is yet to be loaded
        looked_again(run)
        assert ready.exists()
        assert AWAY not in run.output
        install(node.place(CONTAINER))
        run.wait_for(FOUND)
        run.wait_for(WAITING)
        node.place(CONTAINER).rename(node.place("/gone"))
        run.wait_for(AWAY)
        run.wait_for(WAITING)
        assert not ready.exists()


def test_one_that_cannot_be_run_from_here_counts_as_long_as_it_is_there(node: FakeNode, ready: Path) -> None:
    """Not each nvidia-smi works in a chroot at its root: such a root is named because of that."""
    not_working(node)
    with waiting(node, ready) as run:
        install(node.place(CONTAINER), works=False)
        looked_again(run)
        assert ready.exists()
        assert AWAY not in run.output
        node.place(CONTAINER).rename(node.place("/gone"))
        run.wait_for(AWAY)
        run.wait_for(WAITING)
        assert not ready.exists()
        node.place("/gone").rename(node.place(CONTAINER))
        run.wait_for(READY)
        run.wait_for(WAITING)


def test_on_a_node_that_shows_no_gpu_nobody_misses_a_driver(node: FakeNode, ready: Path) -> None:
    fake_gpus.show_sysfs(node)
    install(node.place(CONTAINER), devices=False)
    with waiting(node, ready) as run:
        node.place(CONTAINER).rename(node.place("/gone"))
        looked_again(run)
        assert ready.exists()
        assert AWAY not in run.output


def test_somebodys_edit_is_not_undone_for_a_driver_that_goes(node: FakeNode, ready: Path) -> None:
    install(node.place(CONTAINER))
    with waiting(node, ready, "--on-drift", "report") as run:
        theirs = json.dumps(node.docker() | {"debug": True}).encode()
        node.write(DAEMON_JSON, theirs)
        run.wait_for("Somebody changed the file")
        run.wait_for(WAITING)
        node.place(CONTAINER).rename(node.place("/gone"))
        run.wait_for(AWAY)
        run.wait_for(WAITING)
        assert node.read(DAEMON_JSON) == theirs
        assert not ready.exists()
