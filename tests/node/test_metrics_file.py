"""`--metrics-textfile`: how the node stands, for node-exporter, from the first look until the run ends."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.node import fake_gpus, faults
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import quickly
from tests.support import driver_roots
from tests.support.fake_node import DAEMON_JSON, DEADLINE, DOCKER, TOOLKIT, WAITING, FakeNode, Run
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.run.converge import Converger

pytestmark = pytest.mark.usefixtures("configured")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "toolkit-installer.prom"


def started(node: FakeNode, file: Path, *more: str) -> Run:
    run = quickly(node, "run", "--metrics-textfile", str(file), "--socket", SOCKET, *more)
    run.wait_for(WAITING)
    return run


def read(file: Path) -> dict[str, float]:
    """Return each sample, by its name and its labels' values."""
    return {
        " ".join([sample.name.removeprefix("toolkit_installer_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }


@pytest.mark.usefixtures("dockerd")
def test_it_tells_of_an_installation_and_goes_with_the_run(node: FakeNode, file: Path) -> None:
    run = started(node, file)
    found = read(file)
    assert (found["ready"], found["engine_served docker"], found["driver_usable"]) == (1, 1, 1)
    assert (found["reloads_total docker install"], found["rollbacks_total"]) == (1, 0)
    assert found["reloads_total docker rollback"] == 0
    assert found["engine_away_seconds docker"] >= 0
    assert found["last_converge_timestamp_seconds"] > 1_700_000_000
    assert (found["last_result done"], found["toolkit_files_damaged"]) == (1, 0)
    assert [name for name in found if name.startswith("payload_info ")]
    assert file.stat().st_mode & 0o777 == 0o644
    assert run.stop() == 0
    assert not file.exists()
    assert node.read(DAEMON_JSON) == DOCKER


@pytest.mark.usefixtures("dockerd")
def test_what_was_counted_survives_the_sleep(node: FakeNode, file: Path) -> None:
    run = started(node, file)
    file.unlink()
    os.kill(run.pid, signal.SIGHUP)
    run.wait_for("Nothing to do")
    run.wait_for(WAITING)
    assert read(file)["reloads_total docker install"] == 1
    assert run.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_a_run_that_has_reloaded_nothing_says_0_so_that_its_first_reload_is_seen(node: FakeNode, file: Path) -> None:
    assert started(node, file, "--cleanup", "never").stop() == 0
    run = started(node, file)
    assert "Nothing to do" in run.output
    found = read(file)
    assert (found["reloads_total docker install"], found["reloads_total docker rollback"]) == (0, 0)
    assert run.stop() == 0


@pytest.mark.usefixtures("dockerd")
def test_drift_and_damage_are_told(node: FakeNode, file: Path) -> None:
    run = started(node, file)
    node.write(DAEMON_JSON, node.read(DAEMON_JSON).replace(b"json-file", b"journald"), 0o600)
    run.wait_for("Somebody changed the file")
    run.wait_for(WAITING)
    assert read(file)[f"drift {DAEMON_JSON}"] == 1
    node.write(f"{TOOLKIT}/nvidia-container-runtime", b"", 0o755)
    run.wait_for("Not ready: the toolkit is damaged")
    run.wait_for(WAITING)
    found = read(file)
    assert (found["ready"], found["toolkit_files_damaged"]) == (0, 1)
    assert run.stop() == 0


def test_a_run_that_fails_leaves_its_result(node: FakeNode, file: Path) -> None:
    node.write(DAEMON_JSON, b'{"runtimes": [}', 0o600)
    run = quickly(node, "run", "--metrics-textfile", str(file))
    assert run.finish() == 3
    found = read(file)
    assert (found["ready"], found["last_result bad-configuration"]) == (0, 1)
    assert found["last_converge_timestamp_seconds"] == 0
    assert not [name for name in found if name.startswith("payload_info ")]


@pytest.mark.usefixtures("dockerd")
def test_a_look_that_fails_is_no_time_at_which_the_node_was_right(node: FakeNode, file: Path) -> None:
    run = started(node, file)
    before, good = read(file)["last_converge_timestamp_seconds"], node.read(DAEMON_JSON)
    node.write(DAEMON_JSON, b'{"runtimes": [}', 0o600)
    while int(time.time()) <= before:
        time.sleep(0.05)  # the time is told in seconds
    os.kill(run.pid, signal.SIGHUP)
    run.wait_for("Could not converge")
    run.wait_for(WAITING)
    found = read(file)
    assert (found["last_result bad-configuration"], found["last_converge_timestamp_seconds"]) == (1, before)
    node.write(DAEMON_JSON, good, 0o600)
    os.kill(run.pid, signal.SIGHUP)
    run.wait_for("Nothing to do")
    run.wait_for(WAITING)
    found = read(file)
    assert (found["last_result done"], found["last_converge_timestamp_seconds"] > before) == (1, True)
    assert run.stop() == 0


def test_a_node_that_waits_for_a_driver_or_has_no_gpu_was_never_where_it_should_be(node: FakeNode, file: Path) -> None:
    run = started(node, file, "--driver-root", "auto", "--cdi-enabled", "--wait-for-driver")
    found = read(file)
    assert (found["ready"], found["driver_usable"], found["last_converge_timestamp_seconds"]) == (0, 0, 0)
    assert run.stop() == 0
    fake_gpus.show_sysfs(node)
    run = started(node, file, "--without-gpu", "idle")
    found = read(file)
    assert (found["ready"], found["last_result done"], found["last_converge_timestamp_seconds"]) == (1, 1, 0)
    assert run.stop() == 0


def test_a_node_that_had_no_gpu_is_not_ready_while_it_is_set_up(node: FakeNode, file: Path) -> None:
    fake_gpus.show_sysfs(node)
    engine = FakeDockerd(node)
    try:
        run = started(node, file, "--without-gpu", "idle", "--reload-timeout", "600")
        assert read(file)["ready"] == 1
        os.kill(engine.pid, signal.SIGSTOP)
        fake_gpus.show(node)
        driver_roots.install(node.place(driver_roots.HOST))
        os.kill(run.pid, signal.SIGHUP)
        deadline = time.monotonic() + DEADLINE
        while read(file)["ready"]:
            assert time.monotonic() < deadline, "it says that it is ready"
            time.sleep(0.01)
        os.kill(engine.pid, signal.SIGCONT)
        run.wait_for(WAITING)
        assert read(file)["ready"] == 1
        assert run.stop() == 0
    finally:
        engine.close()


@pytest.mark.usefixtures("dockerd")
def test_what_a_killed_run_left_is_gone_before_the_next_looks_at_the_node(
    node: FakeNode, file: Path, tmp_path: Path
) -> None:
    run = started(node, file)
    os.kill(run.pid, signal.SIGKILL)
    run.process.wait()
    assert read(file)["ready"] == 1
    then = tmp_path / "then"

    def look(*_: object) -> None:
        shutil.copy(file, then)
        raise ConfigurationError("this look fails")

    with mock.patch.object(Converger, "converge", look):
        outcome = faults.run(node, tmp_path, "run", "--metrics-textfile", str(file), "--socket", SOCKET)
    assert outcome.code == 3, outcome.output
    found = read(then)
    assert (found["ready"], found["last_converge_timestamp_seconds"]) == (0, 0)
    assert not [name for name in found if name.startswith("last_result ")]


@pytest.mark.usefixtures("dockerd")
def test_a_file_that_says_it_already_is_not_written_again(node: FakeNode, file: Path) -> None:
    run = started(node, file)
    before = file.stat()
    node.write(DAEMON_JSON, node.read(DAEMON_JSON), 0o600)  # somebody saved it as it was: the run wakes, and looks
    run.wait_for(WAITING)
    assert file.stat().st_ino == before.st_ino
    assert run.stop() == 0


@pytest.mark.parametrize(
    "place, said",
    [
        ("absent/x.prom", "the folder of the metrics file does not exist"),
        ("x.txt", "node-exporter reads no file of this"),
    ],
)
def test_a_place_that_nobody_would_read_is_refused_before_anything_is_written(
    node: FakeNode, tmp_path: Path, place: str, said: str
) -> None:
    before = node.snapshot()
    run = quickly(node, "run", "--metrics-textfile", str(tmp_path / place))
    assert run.finish() == 3
    assert said in run.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)
    assert before.keys() <= node.snapshot().keys()


@pytest.mark.parametrize(
    "mode, said",
    [(0o777, "is writable by everybody"), (0o755, "belongs to user 65533")],
)
def test_a_folder_that_allows_no_write_is_refused_before_anything_is_written(
    node: FakeNode, tmp_path: Path, mode: int, said: str
) -> None:
    folder = tmp_path / "collected"
    folder.mkdir()
    folder.chmod(mode)
    if "belongs" in said:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65533, 65533)
    run = quickly(node, "run", "--metrics-textfile", str(folder / "x.prom"))
    assert run.finish() == 3
    assert said in run.output
    assert not list(folder.iterdir())
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


@pytest.mark.usefixtures("dockerd")
def test_a_file_that_cannot_be_written_stops_nothing(node: FakeNode, file: Path) -> None:
    file.mkdir()
    (file / "theirs").touch()
    run = started(node, file)
    assert "The metrics file cannot be written" in run.output
    assert node.docker()["default-runtime"] == "nvidia"
    assert run.stop() == 0
    assert (file / "theirs").exists()
