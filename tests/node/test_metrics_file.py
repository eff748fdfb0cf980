"""`--metrics-textfile`: how the node stands, for node-exporter, from the first look until the run ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import quickly
from tests.support.fake_node import DAEMON_JSON, TOOLKIT, WAITING, FakeNode, Run

DOCKER = b'{\n  "log-driver": "json-file"\n}\n'


@pytest.fixture(autouse=True)
def configured(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "toolkit-installer.prom"


@pytest.fixture
def dockerd(node: FakeNode) -> Iterator[FakeDockerd]:
    engine = FakeDockerd(node)
    try:
        yield engine
    finally:
        engine.close()


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
    assert found["engine_away_seconds docker"] >= 0
    assert found["last_converge_timestamp_seconds"] > 1_700_000_000
    assert (found["last_result done"], found["toolkit_files_damaged"]) == (1, 0)
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


@pytest.mark.usefixtures("dockerd")
def test_a_file_that_cannot_be_written_stops_nothing(node: FakeNode, file: Path) -> None:
    file.mkdir()
    (file / "theirs").touch()
    run = started(node, file)
    assert "The metrics file cannot be written" in run.output
    assert node.docker()["default-runtime"] == "nvidia"
    assert run.stop() == 0
    assert (file / "theirs").exists()
