"""`--metrics-address`: whoever asks is answered while the run works, and while it waits, until the run is gone."""

from __future__ import annotations

import contextlib
import grp
import http.client
import os
import pwd
import signal
import socket
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.node import fake_gpus
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import quickly
from tests.support import driver_roots
from tests.support.fake_node import DAEMON_JSON, DEADLINE, DOCKER, TOOLKIT, WAITING, FakeNode, Run
from tests.support.warm_start import SCRIPTS
from toolkit_installer.reporting import metrics_server

pytestmark = pytest.mark.usefixtures("configured")
AGAIN = "Metrics are served again"


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def begun(node: FakeNode, port: int, *more: str) -> Run:
    return quickly(node, "run", "--metrics-address", f"127.0.0.1:{port}", "--socket", SOCKET, *more)


def started(node: FakeNode, port: int, *more: str) -> Run:
    run = begun(node, port, *more)
    run.wait_for(WAITING)
    return run


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def metrics(port: int) -> dict[str, float]:
    return {
        " ".join([sample.name.removeprefix("toolkit_installer_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(get(port, "/metrics")[1])
        for sample in family.samples
    }


def answering_processes(run: Run) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]


def wait_until_somebody_listens(port: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while True:
        with contextlib.suppress(ConnectionError):
            get(port, "/healthz")
            return
        assert time.monotonic() < deadline, "nobody answers"


def wait_until_nobody_listens(port: int) -> None:
    deadline = time.monotonic() + DEADLINE
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < deadline:
            get(port, "/healthz")
        raise AssertionError("somebody answers")


@pytest.mark.usefixtures("dockerd")
def test_a_waiting_run_tells_how_its_node_stands_until_it_ends(node: FakeNode, port: int) -> None:
    run = started(node, port)
    assert get(port, "/healthz") == (200, "ok\n")
    status, why = get(port, "/readyz")
    assert (status, why.partition(":")[0]) == (200, "Serving")
    found = metrics(port)
    assert (found["ready"], found["engine_served docker"], found["reloads_total docker install"]) == (1, 1, 1)
    assert run.stop() == 0
    wait_until_nobody_listens(port)
    assert node.read(DAEMON_JSON) == DOCKER


def assert_harmless(pid: int) -> None:
    """Look at what a process can do: it has no privileges, no user's identity, and holds no file of the node."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    root = os.geteuid() == 0
    user, group = (metrics_server.USER, metrics_server.USER) if root else (os.geteuid(), os.getegid())
    assert ({*status["Uid"].split()}, {*status["Gid"].split()}) == ({str(user)}, {str(group)})
    if root:
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        assert status["Groups"].split() == []
    held = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
    kinds = {each.partition(":")[0] for each in held if each != "/dev/null"}
    assert kinds <= {"socket", "anon_inode", "pipe"}, held


@pytest.mark.usefixtures("dockerd")
def test_the_process_and_whichever_replaces_it_have_no_privileges(node: FakeNode, port: int) -> None:
    run = started(node, port)
    (first,) = answering_processes(run)
    assert_harmless(first)
    os.kill(first, signal.SIGKILL)
    run.wait_for(AGAIN)
    run.wait_for(WAITING)
    (second,) = answering_processes(run)
    assert second != first
    assert_harmless(second)
    assert run.stop() == 0


def test_the_user_that_it_becomes_is_nobodys() -> None:
    """Who is the same user may stop it: node-exporter is `nobody`, and systemd's services have numbers of their own."""
    homed, dynamic = 60_577, 61_184
    assert homed < metrics_server.USER < dynamic
    assert not any(each.pw_uid == metrics_server.USER for each in pwd.getpwall())
    assert not any(each.gr_gid == metrics_server.USER for each in grp.getgrall())


@pytest.mark.usefixtures("dockerd")
def test_damage_makes_it_not_ready_and_says_what_it_is(node: FakeNode, port: int) -> None:
    run = started(node, port)
    node.write(f"{TOOLKIT}/nvidia-container-runtime", b"", 0o755)
    run.wait_for("Not ready: the toolkit is damaged")
    run.wait_for(WAITING)
    status, why = get(port, "/readyz")
    assert status == 503
    assert "nvidia-container-runtime" in why
    assert metrics(port)["toolkit_files_damaged"] == 1
    assert run.stop() == 0


def test_whoever_asks_while_the_run_is_at_work_is_answered(node: FakeNode, port: int) -> None:
    """An engine that does not answer keeps the run at work for as long as it may take."""
    engine = FakeDockerd(node)
    try:
        os.kill(engine.pid, signal.SIGSTOP)
        run = begun(node, port, "--reload-timeout", "600")
        wait_until_somebody_listens(port)
        assert get(port, "/healthz") == (200, "ok\n")
        assert get(port, "/readyz")[0] == 503
        deadline = time.monotonic() + DEADLINE
        while (told := metrics(port)).get("rollbacks_total") is None:  # the endpoint answers before its first report
            assert time.monotonic() < deadline, told
        assert told["rollbacks_total"] == 0
        os.kill(engine.pid, signal.SIGCONT)
        run.wait_for(WAITING)
        assert get(port, "/readyz")[0] == 200
        assert run.stop() == 0
    finally:
        engine.close()


def test_a_node_that_had_no_gpu_is_not_ready_while_it_is_set_up(node: FakeNode, port: int) -> None:
    fake_gpus.show_sysfs(node)
    engine = FakeDockerd(node)
    try:
        run = started(node, port, "--without-gpu", "idle", "--reload-timeout", "600")
        assert get(port, "/readyz")[1].startswith("NoGpu: ")
        os.kill(engine.pid, signal.SIGSTOP)
        fake_gpus.show(node)
        driver_roots.install(node.place(driver_roots.HOST))
        os.kill(run.pid, signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE
        while (said := get(port, "/readyz")) != (503, "Installing: the node is set up\n"):
            assert time.monotonic() < deadline, said
        assert metrics(port)["ready"] == 0
        os.kill(engine.pid, signal.SIGCONT)
        run.wait_for(WAITING)
        assert get(port, "/readyz")[0] == 200
        assert run.stop() == 0
    finally:
        engine.close()


@pytest.mark.usefixtures("dockerd")
def test_a_process_that_is_killed_is_replaced_and_no_signal_but_that_ends_it(node: FakeNode, port: int) -> None:
    run = started(node, port)
    (old,) = answering_processes(run)
    if os.geteuid() != 0 or os.path.exists(f"/proc/{old}/cwd/"):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(old, number)
        assert get(port, "/healthz") == (200, "ok\n")
    os.kill(old, signal.SIGKILL)
    run.wait_for(AGAIN)
    run.wait_for(WAITING)
    (new,) = answering_processes(run)
    assert new != old
    assert metrics(port)["reloads_total docker install"] == 1
    assert run.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_a_run_that_is_killed_leaves_nobody_behind(node: FakeNode, port: int) -> None:
    run = started(node, port)
    os.kill(run.pid, signal.SIGKILL)
    run.process.wait()
    wait_until_nobody_listens(port)
    run = started(node, port)
    assert get(port, "/readyz")[0] == 200
    assert run.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_it_is_the_same_process_through_all_that_the_run_becomes(node: FakeNode, port: int) -> None:
    run = started(node, port)
    before = answering_processes(run)
    for _ in range(3):
        os.kill(run.pid, signal.SIGHUP)
        run.wait_for("Nothing to do")
        run.wait_for(WAITING)
    assert answering_processes(run) == before
    assert AGAIN not in run.output
    assert run.stop() == 0


def test_an_address_that_somebody_has_is_refused_before_anything_is_written(node: FakeNode, port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        run = begun(node, port)
        assert run.finish() == 3
    assert f"metrics cannot be served on 127.0.0.1:{port}: Address already in use" in run.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


@pytest.mark.usefixtures("dockerd")
def test_a_port_that_is_lost_stops_nothing_and_is_taken_again_once_it_is_free(node: FakeNode, port: int) -> None:
    run = started(node, port)
    (pid,) = answering_processes(run)
    os.kill(run.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE
    while True:
        with contextlib.suppress(OSError):
            taken = socket.create_server(("127.0.0.1", port))
            break
        assert time.monotonic() < deadline
    with taken:
        os.kill(run.pid, signal.SIGCONT)
        run.wait_for("Metrics are served no more")
        run.wait_for(WAITING)
    run.wait_for(AGAIN)
    run.wait_for(WAITING)
    assert get(port, "/readyz")[0] == 200
    assert run.stop() == 0
    assert node.read(DAEMON_JSON) == DOCKER


@pytest.mark.usefixtures("dockerd")
def test_a_run_that_leaves_starts_no_process_in_place_of_a_dead_one(node: FakeNode, port: int) -> None:
    run = started(node, port)
    (pid,) = answering_processes(run)
    os.kill(run.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    os.kill(run.pid, signal.SIGTERM)
    os.kill(run.pid, signal.SIGCONT)
    assert run.finish() == 0
    assert AGAIN not in run.output
    assert node.read(DAEMON_JSON) == DOCKER


def test_a_process_that_cannot_give_up_its_privileges_is_none(node: FakeNode, port: int) -> None:
    """As where root has no CAP_SETUID: better nobody than root answers at a port."""
    if os.geteuid() != 0:
        pytest.skip("only root has privileges to give up")
    without = ("setpriv", "--bounding-set=-setuid,-setgid")
    words = node.arguments("run", "--metrics-address", f"127.0.0.1:{port}")
    run = node._started([*without, str(SCRIPTS / "toolkit-installer"), *words])
    assert run.finish() == 3
    assert f"metrics cannot be served on 127.0.0.1:{port}: the process that is to answer did not begin" in run.output
    assert "PermissionError" in run.output
    assert not node.exists(TOOLKIT)
