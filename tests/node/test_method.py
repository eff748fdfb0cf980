"""`--method cdi` and `auto` on made nodes: the engine's files stay as they are, and a change comes and goes whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.engines.rules import Served
from tests.support import fake_ctk, fake_processes, payloads
from tests.support.fake_node import DAEMON_JSON, STORE, FakeNode, Run

DOCKER = b'{\n  "debug": true\n}\n'
SPECIFICATION = "/run/cdi/management.nvidia.com-gpu.yaml"
FOLDERS = ["/etc/cdi", "/var/run/cdi"]
AT = ("--socket", SOCKET)
UNSUPPORTED, REJECTED, USED = 3, 5, 2


@pytest.fixture
def gpu(with_driver: FakeNode) -> FakeNode:
    """A node with a driver, and docker's file; the test starts the engine."""
    with_driver.write(DAEMON_JSON, DOCKER, 0o640)
    return with_driver


@pytest.fixture
def reading(gpu: FakeNode) -> Iterator[FakeDockerd]:
    """A docker that reads specifications from the usual folders."""
    engine = FakeDockerd(gpu, CDISpecDirs=FOLDERS)
    yield engine
    engine.close()


def done(node: FakeNode, method: str, *more: str, code: int = 0) -> Run:
    run = node.do("run", "--no-daemon", "--method", method, *AT, *more)
    assert run.process.returncode == code, run.output
    return run


def told(node: FakeNode, command: str, *more: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(node.do(command, "--json", *AT, *more).output)
    return facts


def status(node: FakeNode) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(node.do("status", "--json").output)
    return facts


def test_by_cdi_the_specification_comes_and_no_file_of_the_engine_is_touched(
    gpu: FakeNode, reading: FakeDockerd
) -> None:
    before, stamps, served = gpu.snapshot(), gpu.stamps(), reading.take()
    done(gpu, "cdi")
    assert gpu.exists(SPECIFICATION)
    assert gpu.stamps()[DAEMON_JSON] == stamps[DAEMON_JSON]
    assert reading.take() == served
    method = status(gpu)["method"]
    assert (method["name"], method["met"]) == ("cdi", True)
    assert "management.nvidia.com/gpu=all" in method["asked_by"]
    written = gpu.stamps()
    assert "Nothing to do" in done(gpu, "cdi").output
    assert gpu.stamps() == written
    assert gpu.do("uninstall").process.returncode == 0
    assert gpu.snapshot() == before
    assert reading.take() == served


def test_from_handlers_to_cdi_and_back_nothing_of_the_other_stays(gpu: FakeNode, reading: FakeDockerd) -> None:
    before = gpu.snapshot()
    done(gpu, "handlers")
    assert {name for name, _ in reading.take().handlers} >= {"nvidia"}
    done(gpu, "cdi")
    assert gpu.read(DAEMON_JSON) == DOCKER
    assert "nvidia" not in {name for name, _ in reading.take().handlers}
    assert gpu.exists(SPECIFICATION)
    assert "Nothing to do" in done(gpu, "cdi").output
    done(gpu, "handlers")
    assert b"nvidia" in gpu.read(DAEMON_JSON)
    assert not gpu.exists(SPECIFICATION)
    assert status(gpu)["method"]["name"] == "handlers"
    assert gpu.do("uninstall").process.returncode == 0
    after = gpu.snapshot()
    after.pop("/run/nvidia/toolkit-installer.reloads", None)  # how often the engine was reloaded lately is kept
    assert after == before


@pytest.mark.usefixtures("reading")
def test_the_new_way_is_there_before_the_old_one_goes(gpu: FakeNode) -> None:
    done(gpu, "handlers")
    planned = told(gpu, "plan", "--method", "cdi")
    assert (planned["method"]["name"], planned["given_back"]) == ("cdi", [])
    assert [file["path"] for file in planned["engines"][0]["files"]] == [DAEMON_JSON]
    there, back = ([f"file={path}" for path in (SPECIFICATION, DAEMON_JSON)], done(gpu, "cdi").output)
    assert back.index(there[0]) < back.index(there[1])
    back = done(gpu, "handlers").output
    assert back.index(there[1]) < back.index(there[0])


def test_what_cannot_be_had_is_refused_with_the_reason_before_anything_is_written(gpu: FakeNode) -> None:
    before = gpu.snapshot()
    # nobody answers
    assert "does not answer" in done(gpu, "cdi", code=REJECTED).output
    for says, reason in (
        ({"ServerVersion": "24.0.7"}, "24.0.7 knows no CDI: 25.0 is the first that does"),
        ({"CDISpecDirs": ["/etc/cdi"]}, "looks for CDI specifications in /etc/cdi, and not in /var/run/cdi"),
        ({}, "CDI is off in the running docker, and it is switched on by a restart only"),
    ):
        engine = FakeDockerd(gpu, **says)
        try:
            assert reason in done(gpu, "cdi", code=UNSUPPORTED).output
        finally:
            engine.close()
        gpu.place(SOCKET).unlink()
    assert gpu.snapshot() == before


def test_a_specification_of_a_newer_version_than_the_engine_reads_is_refused(gpu: FakeNode, tmp_path: Path) -> None:
    newer = payloads.build(tmp_path / "newer")
    fake_ctk.into(newer)
    program = newer / "usr/bin/nvidia-ctk"
    program.write_text(program.read_text().replace("cdiVersion: 0.5.0", "cdiVersion: 0.7.0"))
    gpu.payload = newer
    before = gpu.snapshot()
    engine = FakeDockerd(gpu, CDISpecDirs=FOLDERS, ServerVersion="26.0.2")
    try:
        said = done(gpu, "cdi", code=UNSUPPORTED).output
    finally:
        engine.close()
    gpu.place(SOCKET).unlink()
    assert "is of version 0.7.0, and docker 26.0.2 reads none that is newer than 0.6.0" in said
    assert gpu.snapshot() == before


@pytest.mark.parametrize("method", ["cdi", "auto"])
@pytest.mark.parametrize("other", ["--no-runtime-config", "--cdi-output-dir="])
def test_what_contradicts_the_method_is_a_usage_error(gpu: FakeNode, method: str, other: str) -> None:
    before = gpu.snapshot()
    done(gpu, method, other, code=USED)
    assert gpu.snapshot() == before


@pytest.mark.usefixtures("reading")
def test_auto_takes_cdi_on_a_fresh_node_and_says_so_everywhere(gpu: FakeNode) -> None:
    before = gpu.snapshot()
    assert told(gpu, "plan", "--method=auto")["method"]["name"] == "cdi"
    detected = told(gpu, "detect", "--method=auto")["method"]
    assert (detected["name"], detected["cdi_is_out"]) == ("cdi", {"docker": None})
    assert "reads CDI specifications already" in detected["why"]
    assert "method=cdi" in done(gpu, "auto").output
    assert gpu.read(DAEMON_JSON) == DOCKER
    assert "reads CDI specifications already" in status(gpu)["method"]["why"]
    assert "Nothing to do" in done(gpu, "auto").output
    assert told(gpu, "detect")["method"]["installed"] == "cdi"
    assert gpu.do("uninstall").process.returncode == 0
    assert gpu.snapshot() == before


def test_detect_reads_in_the_receipt_what_the_engine_does_not_say(gpu: FakeNode, reading: FakeDockerd) -> None:
    done(gpu, "handlers")
    reading.put(Served())  # as if it had been started without them
    detected = told(gpu, "detect", "--method=auto")["method"]
    assert (detected["name"], detected["installed"], detected["unread"]) == ("handlers", "handlers", None)
    assert "it has the handlers nvidia" in detected["passed_over"][0]["why"]
    assert "the node has handlers now" in gpu.do("detect", *AT).output
    gpu.write(f"{STORE}/receipt.json", "no JSON", 0o600)
    assert "is no JSON" in told(gpu, "detect", "--method=auto")["method"]["unread"]


@pytest.mark.usefixtures("reading")
def test_auto_takes_no_handlers_away_from_a_node_that_has_them(gpu: FakeNode) -> None:
    done(gpu, "handlers")
    configured = gpu.read(DAEMON_JSON)
    planned = told(gpu, "plan", "--method=auto")["method"]
    assert planned["name"] == "handlers"
    assert "which pods may select" in planned["passed_over"][0]["why"]
    done(gpu, "auto")
    assert gpu.read(DAEMON_JSON) == configured
    assert not gpu.exists(SPECIFICATION)
    assert "of all engines" in status(gpu)["method"]["why"]
    assert "Nothing to do" in done(gpu, "auto").output


def test_auto_takes_handlers_where_the_engine_is_down_or_has_cdi_off(gpu: FakeNode) -> None:
    engine = FakeDockerd(gpu)
    try:
        said = told(gpu, "plan", "--method=auto")["method"]
        assert said["name"] == "handlers"
        assert "CDI is off" in said["passed_over"][0]["why"]
    finally:
        engine.close()
    done(gpu, "auto")
    assert b"nvidia" in gpu.read(DAEMON_JSON)


@pytest.mark.usefixtures("reading")
def test_status_says_that_a_request_would_not_be_met_and_why(gpu: FakeNode) -> None:
    done(gpu, "cdi")
    gpu.place(SPECIFICATION).unlink()
    found = status(gpu)
    assert found["method"]["met"] is False
    assert any("there is no specification" in why for why in found["method"]["against"])
    assert found["verdict"] == "BROKEN"
    assert "would NOT be given it" in gpu.do("status").output


@pytest.mark.parametrize("socket", ["/var/run/cri-dockerd.sock", "/run/shim.sock"], ids=["usual", "custom"])
def test_below_cri_dockerd_cdi_is_refused_and_never_chosen(gpu: FakeNode, reading: FakeDockerd, socket: str) -> None:
    """Its pods would be started without their devices, and without an error."""
    before = gpu.snapshot()
    flag = f"--container-runtime-endpoint=unix://{socket}"
    with fake_processes.process(gpu.root, "kubelet", flag), fake_processes.process(gpu.root, "cri-dockerd", flag):
        refused = done(gpu, "cdi", code=UNSUPPORTED)
        assert "cri-dockerd" in refused.output
        assert "--method handlers" in refused.output
        assert {path: entry for path, entry in gpu.snapshot().items() if "last" not in path} == before
        assert told(gpu, "plan", "--method", "auto")["method"]["name"] == "handlers"
    assert told(gpu, "plan", "--method", "auto")["method"]["name"] == "cdi"
    assert reading.take()


def test_a_cdi_node_that_comes_below_cri_dockerd_is_said_to_give_nothing(gpu: FakeNode, reading: FakeDockerd) -> None:
    done(gpu, "cdi")
    assert status(gpu)["method"]["met"] is True
    with fake_processes.process(gpu.root, "kubelet", "--container-runtime-endpoint=unix:///run/cri-dockerd.sock"):
        found = status(gpu)
    assert found["verdict"] == "BROKEN"
    assert found["method"]["met"] is False
    assert "cri-dockerd" in " ".join(found["method"]["against"])
    assert reading.take()


def test_the_prerequisites_of_a_handler_are_checked_before_it_counts_as_working(
    gpu: FakeNode, reading: FakeDockerd
) -> None:
    gpu.write("/opt/bin/runc", b"#!/bin/sh\n", 0o755)
    done(gpu, "handlers", "--nvidia-container-runtime.runtimes", "/opt/bin/runc")
    found = status(gpu)["method"]
    assert (found["met"], found["asked_by"]) == (True, "the handler nvidia or nvidia-legacy")
    assert list(found["not_by"]) == ["nvidia-cdi"]
    assert "nvidia.com/gpu" in found["not_by"]["nvidia-cdi"]
    gpu.write("/etc/cdi/nvidia.yaml", "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices: []\n")
    assert status(gpu)["method"]["not_by"] == {}
    gpu.place("/opt/bin/runc").rename(gpu.place("/opt/bin/runc.away"))
    broken = status(gpu)
    assert broken["verdict"] == "BROKEN"
    assert broken["method"]["met"] is False
    assert "/opt/bin/runc" in broken["method"]["no_runtime"]
    assert reading.take()
