"""A reload that is to wait (`--reload-when`): nothing of the node changes meanwhile, all are told, and it is made by
itself when the time has come."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node import faults, zones
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import Stopping, stopping
from tests.support.fake_node import DAEMON_JSON, DEADLINE, STORE, TOOLKIT, WAITING, FakeNode
from tests.unit.started import wait_until_it_shows
from toolkit_installer.applying.reload_gate import ReloadGate
from toolkit_installer.applying.reload_windows import Pending

WINDOW = ("--reload-when", "02:00-04:00")
AT = ("--socket", SOCKET)
PENDING = "event=reload-pending"
RELOADS = "event=reloading "
OPEN, CLOSED = "03:00", "12:00"
TASKS = "run/containerd/io.containerd.runtime.v2.task/k8s.io"


@pytest.fixture
def dockerd(node: FakeNode) -> Iterator[FakeDockerd]:
    node.write(DAEMON_JSON, "{}\n")
    with FakeDockerd(node) as engine:
        yield engine


@contextlib.contextmanager
def waiting(node: FakeNode, *more: str) -> Iterator[Stopping]:
    """Start a run that looks around often, and is to find that it has to wait."""
    with stopping(node, "never", "run", *AT, *more, woken=True) as run:
        yield run


def status(node: FakeNode) -> Any:
    """Return what `status` says while the run sleeps: of one that is at work it knows less."""
    deadline = time.monotonic() + DEADLINE
    while True:
        health = json.loads(node.do("status", "--json").output)
        if health["last_look"] is not None:
            return health
        assert time.monotonic() < deadline


def planned(node: FakeNode, *more: str) -> Any:
    output = node.do("plan", "--json", *AT, *more).output
    return json.loads(output[output.index("{\n") :])


def handlers(engine: FakeDockerd) -> list[str]:
    return [name for name, _ in engine.take().handlers]


@pytest.mark.usefixtures("dockerd")
def test_outside_of_the_window_nothing_is_written_and_its_opening_is_named(
    node: FakeNode,
) -> None:
    zones.shows(node, CLOSED)
    before = node.stamps()
    run = node.do("run", "--no-daemon", *AT, *WINDOW)
    assert run.process.returncode == 3, run.output
    assert "the reload of docker is not allowed yet: it is outside of 02:00-04:00 (/etc/localtime," in run.output
    assert "the next window opens at 2" in run.output
    assert "nothing was changed" in run.output
    assert node.stamps() == before

    shown = node.do("plan", *AT, *WINDOW).output
    assert "`run` would wait before it does any of this, as --reload-when says: it is outside of 02:00-04:00" in shown
    assert planned(node, *WINDOW)["waits_for"].startswith("it is outside of 02:00-04:00")
    assert planned(node)["waits_for"] is None
    assert node.stamps() == before


@pytest.mark.usefixtures("dockerd")
def test_within_the_window_all_is_as_ever(node: FakeNode) -> None:
    zones.shows(node, OPEN)
    assert planned(node, *WINDOW)["waits_for"] is None
    run = node.do("run", "--no-daemon", *AT, *WINDOW)
    assert run.process.returncode == 0, run.output
    assert PENDING not in run.output
    assert RELOADS in run.output


def test_the_run_waits_tells_everybody_and_reloads_by_itself_when_the_window_opens(
    node: FakeNode, dockerd: FakeDockerd, tmp_path: Path
) -> None:
    zones.shows(node, CLOSED)
    before, ready, metrics = node.snapshot(), tmp_path / "ready", tmp_path / "it.prom"
    with waiting(node, *WINDOW, "--ready-file", str(ready), "--metrics-textfile", str(metrics)) as run:
        run.wait_for(PENDING)
        run.wait_for(WAITING)
        assert node.read(DAEMON_JSON) == b"{}\n"
        assert not node.exists(TOOLKIT)
        assert not node.exists(STORE)
        assert not ready.exists()
        # a new pod could do no more
        assert "A reload of docker is pending" in Path(f"{ready}.started").read_text()
        assert "toolkit_installer_reload_pending 1\n" in metrics.read_text()
        assert "toolkit_installer_ready 0\n" in metrics.read_text()
        health = status(node)
        assert health["verdict"] == "DEGRADED"
        (reason,) = health["reasons"]
        assert reason["what"].startswith("a reload of docker is pending since 20")
        pending = health["pending_reload"]
        assert (pending["engines"], pending["opens"] is None) == (["docker"], False)
        assert "outside of 02:00-04:00" in pending["reason"]
        run.process.send_signal(signal.SIGHUP)  # somebody asks, and nothing else is true
        run.wait_for(WAITING)
        assert RELOADS not in run.output
        assert status(node)["pending_reload"]["since"] == pending["since"]

        zones.shows(node, OPEN)
        run.wait_for("event=reload-allowed")
        run.wait_for("event=configured")
        run.wait_for(WAITING)
        assert "nvidia" in handlers(dockerd)
        assert ready.exists()
        assert "toolkit_installer_reload_pending 0\n" in metrics.read_text()
        assert status(node)["pending_reload"] is None
        assert run.output.count(PENDING) == 1
        assert run.output.count(RELOADS) == 1

        zones.shows(node, CLOSED)  # a cleanup waits for nothing
        assert run.stop() == 0, run.output
    assert "nvidia" not in handlers(dockerd)
    after = node.snapshot()
    after[zones.LOCALTIME] = before[zones.LOCALTIME]  # the one that its clock was set by last
    # the times of the reloads stay
    assert {name: each for name, each in after.items() if not name.startswith("/run/nvidia")} == before


def test_a_node_that_has_not_what_is_wanted_is_not_ready_and_serves_what_it_has(
    node: FakeNode, dockerd: FakeDockerd, tmp_path: Path
) -> None:
    zones.shows(node, OPEN)
    assert node.do("run", "--no-daemon", *AT).process.returncode == 0
    zones.shows(node, CLOSED)
    installed = node.stamps()
    ready = tmp_path / "ready"
    # the next one has another handler: what the node has is not what is wanted
    more = ("--runtime-name", "another", "--ready-file", str(ready))
    with waiting(node, *WINDOW, *more, "--cleanup", "never") as run:
        run.wait_for(WAITING)
        assert not ready.exists()
        assert status(node)["verdict"] == "DEGRADED"
        assert "nvidia" in handlers(dockerd)
        assert run.stop() == 0, run.output
    assert node.stamps() == installed


@pytest.mark.usefixtures("dockerd")
def test_a_node_whose_engine_serves_what_is_wanted_is_ready_while_its_file_waits(
    node: FakeNode, tmp_path: Path
) -> None:
    zones.shows(node, OPEN)
    assert node.do("run", "--no-daemon", *AT).process.returncode == 0
    zones.shows(node, CLOSED)
    node.write(DAEMON_JSON, "{}\n")  # somebody's edit, which the engine has not read
    ready, metrics = tmp_path / "ready", tmp_path / "it.prom"
    more = ("--ready-file", str(ready), "--metrics-textfile", str(metrics), "--cleanup", "never")
    with waiting(node, *WINDOW, *more) as run:
        run.wait_for(PENDING)
        run.wait_for(WAITING)
        assert ready.exists()
        assert "toolkit_installer_ready 1\n" in metrics.read_text()
        assert "toolkit_installer_reload_pending 1\n" in metrics.read_text()
        assert node.read(DAEMON_JSON) == b"{}\n"
        assert run.stop() == 0, run.output


@pytest.mark.parametrize("fresh", [True, False], ids=["first", "upgrade"])
def test_a_reload_that_is_not_allowed_any_more_once_the_toolkit_is_there_is_put_off(
    node: FakeNode,
    dockerd: FakeDockerd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh: bool,  # noqa: FBT001
) -> None:
    if not fresh:
        assert node.do("run", "--no-daemon", *AT).process.returncode == 0
    before, served = node.snapshot(), dockerd.take()
    answers = iter([None, Pending(("docker",), "a container was started", 1.0)])
    monkeypatch.setattr(ReloadGate, "find_pending", lambda _self, _seen: next(answers))
    changed = ("--runtime-name", "another", "--nvidia-container-runtime.log-level", "debug")
    run = faults.run(node, tmp_path, "run", "--no-daemon", *AT, *changed)
    assert run.code == 3, run.output
    assert "event=toolkit-installed" in run.output
    assert "event=reload-put-off" in run.output
    assert "event=rollback" not in run.output
    assert RELOADS not in run.output
    assert (node.read(DAEMON_JSON), dockerd.take()) == (before[DAEMON_JSON].content, served)
    after = {name: each for name, each in node.snapshot().items() if not name.startswith("/run/nvidia")}
    if fresh:
        assert after == before
    else:  # the toolkit's files are old or new, each whole, and the next run completes them
        assert node.broken_runtimes() == []
        assert node.do("run", "--no-daemon", *AT).process.returncode == 0
        assert dockerd.take() == served


EVERY_SO_MANY = 15
"""Of the instants at which a run is killed: but for the last part, each one is tried elsewhere."""


def test_what_a_run_killed_with_a_pending_reload_left_is_reverted_by_the_next_one(
    node: FakeNode, dockerd: FakeDockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, served = node.snapshot(), dockerd.take()
    real = ReloadGate.find_pending

    def put_off(plan: faults.Plan) -> faults.Outcome:
        answers = iter([None, Pending(("docker",), "a container was started", 1.0)])
        monkeypatch.setattr(ReloadGate, "find_pending", lambda _self, _seen: next(answers))
        outcome = faults.run(node, tmp_path, "run", "--no-daemon", *AT, plan=plan)
        monkeypatch.setattr(ReloadGate, "find_pending", real)
        return outcome

    calls = len(put_off(faults.Plan()).calls)
    assert calls > EVERY_SO_MANY
    for number in {*range(0, calls, EVERY_SO_MANY), *range(calls - EVERY_SO_MANY, calls)}:
        assert put_off(faults.Plan(at=number)).code == -signal.SIGKILL
        assert (node.read(DAEMON_JSON), dockerd.take()) == (before[DAEMON_JSON].content, served)
        assert node.do("uninstall").process.returncode == 0
        after = {name: each for name, each in node.snapshot().items() if not name.startswith("/run/nvidia")}
        assert after == before, number


@pytest.mark.usefixtures("dockerd")
def test_a_change_without_a_reload_waits_for_nothing(node: FakeNode) -> None:
    zones.shows(node, OPEN)
    assert node.do("run", "--no-daemon", *AT).process.returncode == 0
    zones.shows(node, CLOSED)
    changed = ("--nvidia-container-runtime.log-level", "debug")
    run = node.do("run", "--no-daemon", *AT, *WINDOW, *changed)
    assert run.process.returncode == 0, run.output
    assert "event=toolkit-installed" in run.output
    assert RELOADS not in run.output


def test_an_engine_that_does_not_run_is_configured_at_once(node: FakeNode) -> None:
    """It is not reloaded: it reads its files when it starts, after a boot for example."""
    zones.shows(node, CLOSED)
    node.write(DAEMON_JSON, "{}\n")
    run = node.do("run", "--no-daemon", *WINDOW)
    assert run.process.returncode == 0, run.output
    assert b"nvidia" in node.read(DAEMON_JSON)


@pytest.mark.usefixtures("dockerd")
def test_a_run_that_is_stopped_or_killed_while_it_waits_leaves_the_node_as_it_was(node: FakeNode) -> None:
    zones.shows(node, CLOSED)
    before = node.snapshot()
    with waiting(node, *WINDOW) as run:
        run.wait_for(WAITING)
        assert run.stop() == 0, run.output
        assert "event=nothing-to-clean-up" in run.output
    assert node.snapshot() == before
    with waiting(node, *WINDOW) as run:
        run.wait_for(WAITING)
        run.process.kill()
        run.finish()
    kept = {name: each for name, each in node.snapshot().items() if not name.startswith("/run/nvidia")}
    assert kept == {name: each for name, each in before.items() if not name.startswith("/run/nvidia")}


@pytest.mark.parametrize("content", [b"", b"no zone", b"TZif", zones.fixed(0)[:-6]], ids=repr)
@pytest.mark.usefixtures("dockerd")
def test_a_time_zone_that_cannot_be_read_is_refused_before_anything_is_written(node: FakeNode, content: bytes) -> None:
    node.write(zones.LOCALTIME, content)
    before = node.stamps()
    run = node.do("run", "--no-daemon", *AT, *WINDOW)
    assert run.process.returncode == 3, run.output
    assert "is no time zone" in run.output
    assert node.stamps() == before
    assert node.do("run", "--no-daemon", *AT).process.returncode == 0  # nobody asks for it


@pytest.mark.usefixtures("dockerd")
def test_the_zone_is_named_as_the_nodes_link_names_it_and_a_node_without_one_has_utc(node: FakeNode) -> None:
    node.write("/usr/share/zoneinfo/Test/Town", zones.fixed(3600))
    node.place(zones.LOCALTIME).symlink_to("/usr/share/zoneinfo/Test/Town")
    # of two windows of one minute each, one is closed now
    one, other = (("--reload-when", f"{day} 00:00-00:01") for day in ("Mon", "Tue"))
    closed = one if planned(node, *one)["waits_for"] else other
    assert "(Test/Town, the node's time zone)" in planned(node, *closed)["waits_for"]
    node.place(zones.LOCALTIME).unlink()
    assert "(UTC, the node's time zone)" in planned(node, *closed)["waits_for"]


@pytest.mark.parametrize("text", ["soon", "02:00", "Sat,Sun 02:00-04:00", "now, 02:00-04:00"])
def test_what_is_no_time_is_refused(node: FakeNode, text: str) -> None:
    before = node.stamps()
    run = node.do("run", "--no-daemon", "--reload-when", text)
    assert run.process.returncode == 2
    assert "now, idle, or windows such as `Sat 02:00-04:00`" in run.output
    assert node.stamps() == before


class Shim:
    """A process that is called as a shim is, works in a bundle, and has its container."""

    def __init__(self, node: FakeNode, folder: Path) -> None:
        self.bundle = node.place(f"/{TASKS}/train")
        self.bundle.mkdir(parents=True)
        (self.bundle / "runtime").write_text(f"{TOOLKIT}/nvidia-container-runtime")
        annotations = {"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0"}
        (self.bundle / "config.json").write_text(json.dumps({"annotations": annotations, "process": {"env": []}}))
        program = folder / "containerd-shim-runc-v2"
        program.write_text("#!/bin/sh\nread -r _\n")
        program.chmod(0o755)
        self.process = subprocess.Popen([program, "-id", "train"], cwd=self.bundle, stdin=subprocess.PIPE)
        wait_until_it_shows(self.process.pid, program.name)

    def end(self) -> None:
        """End as a shim does whose container was deleted."""
        shutil.rmtree(self.bundle, ignore_errors=True)
        self.process.kill()
        self.process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees all shims of the machine")
def test_the_reload_waits_for_the_last_container_through_a_handler(
    node: FakeNode, dockerd: FakeDockerd, tmp_path: Path
) -> None:
    idle = ("--reload-when", "idle", "--set-as-default=false")
    run = node.do("run", "--no-daemon", *AT, *idle)  # nothing runs
    assert run.process.returncode == 0, run.output
    with contextlib.closing(contextlib.ExitStack()) as stack:
        shim = Shim(node, tmp_path)
        stack.callback(shim.end)
        changed = (*idle, "--runtime-name", "another", "--cleanup", "never")
        assert planned(node, *changed)["waits_for"] == (
            "the node is not idle: ml/train-0 runs through a handler of this program"
        )
        with waiting(node, *changed) as waits:
            waits.wait_for(PENDING)
            waits.wait_for(WAITING)
            assert "another" not in handlers(dockerd)
            shim.end()
            waits.wait_for("event=reload-allowed")
            waits.wait_for("event=configured")
            waits.wait_for(WAITING)
            assert "another" in handlers(dockerd)
            assert waits.stop() == 0, waits.output
