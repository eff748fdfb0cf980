"""Commands without options take them from the run that waits, or from the receipt, and report what they took."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.engines import cri_socket
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, DOCKER, NOTHING_TO_DO, SCRIPTS, TOOLKIT, FakeNode, Run

CONTAINERD = b"version = 2\n"
TAKEN = "event=options-taken"
DIFFERS = "event=option-differs"


@pytest.fixture(autouse=True)
def two_engines(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    node.write(CONFIG_TOML, CONTAINERD, 0o600)


@pytest.fixture
def waiting(node: FakeNode) -> Iterator[Run]:
    run = node.waiting("--set-as-default=false", "--runtime-name", "gpu")
    yield run
    run.close()


def ended(node: FakeNode, command: str, *more: str) -> tuple[int, str]:
    """Run a command with no option but the node's place; return its exit code and all that it printed."""
    words = [command, "--node-root", str(node.root), "--log-format", "logfmt", *more]
    run = node._started([str(SCRIPTS / "toolkit-installer"), *words])
    return run.finish(), run.output


def test_a_plan_without_options_is_that_of_the_run_that_waits(node: FakeNode, waiting: Run) -> None:
    code, output = ended(node, "plan")
    assert code == 4, output  # a second `run` would make way
    assert NOTHING_TO_DO in output
    assert TAKEN in output
    assert f"pid={waiting.pid}" in output
    assert "--runtime=docker" in output
    assert "--set-as-default=false" in output
    assert DIFFERS not in output


def test_an_option_that_differs_counts_and_is_reported(node: FakeNode, waiting: Run) -> None:
    code, output = ended(node, "plan", "--set-as-default")
    assert code == 4, output
    assert '"default-runtime": "gpu"' in output
    (line,) = [each for each in output.splitlines() if DIFFERS in each]
    assert "option=--set-as-default given=true" in line
    assert "waiting=false" in line
    assert waiting.process.poll() is None


def test_an_option_that_is_the_same_is_no_difference(node: FakeNode, waiting: Run) -> None:
    code, output = ended(node, "plan", "--set-as-default=false", "--runtime", "docker")
    assert code == 4, output
    assert DIFFERS not in output
    assert waiting.process.poll() is None


@pytest.mark.parametrize("runtime", ["docker", "auto"])
def test_nothing_about_an_engine_is_taken_for_another_one(node: FakeNode, runtime: str) -> None:
    of_docker: tuple[str, ...] = ("--set-as-default=false", "--restart-mode=none")
    if runtime == "auto":
        node.place(CONFIG_TOML).unlink()
    else:
        of_docker += ("--config", DAEMON_JSON, "--socket", "/run/docker.sock")
    run = node.waiting("--runtime", runtime, *of_docker)
    node.write(CONFIG_TOML, CONTAINERD, 0o600)
    try:
        code, output = ended(node, "plan", "--runtime", "containerd")
    finally:
        run.close()
    assert code == 4, output
    assert f"option=--runtime given=containerd waiting={runtime}" in output
    assert "--toolkit-source-root=" in output
    for option in ("--config=", "--socket=", "--restart-mode=", "--set-as-default="):
        assert option not in output
    assert f"+++ {CONFIG_TOML}" in output


def test_nvidias_own_program_gives_no_options(node: FakeNode, tmp_path: Path) -> None:
    program, pid_file = tmp_path / "nvidia-toolkit", node.place("/run/nvidia/toolkit.pid")
    shutil.copy("/usr/bin/flock", program)
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    pid_file.touch(0o600)
    words = [str(program), str(pid_file), "/bin/sh", "-c", "sleep 600; :", "--runtime=containerd"]
    with subprocess.Popen(words, start_new_session=True) as theirs:
        try:
            pid_file.write_text(f"{theirs.pid}\n")
            while subprocess.run(["/usr/bin/flock", "-n", str(pid_file), "true"], check=False).returncode == 0:
                time.sleep(0.01)
            code, output = ended(node, "plan", "--toolkit-source-root", str(node.payload))
        finally:
            os.killpg(theirs.pid, signal.SIGKILL)
    assert code == 4, output
    assert "another installer, nvidia-toolkit" in output
    assert TAKEN not in output


def test_a_run_at_work_is_asked_as_well(node: FakeNode, waiting: Run) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    request = node.begin("refresh")
    code, output = ended(node, "plan")
    assert code == 4, output
    assert "--runtime=docker" in output
    assert request.finish() == 0
    assert waiting.process.poll() is None


def test_without_a_run_the_receipt_tells_engine_default_and_name(node: FakeNode) -> None:
    assert node.do("run", "--no-daemon", "--set-as-default=false", "--runtime-name", "gpu").finish() == 0
    code, output = ended(node, "plan", "--toolkit-source-root", str(node.payload))
    assert code == 0, output
    assert NOTHING_TO_DO in output
    assert 'source="the receipt"' in output
    assert "--set-as-default=false" in output
    code, output = ended(node, "plan", "--toolkit-source-root", str(node.payload), "--runtime", "containerd")
    assert code == 0, output
    assert 'source="the receipt"' not in output
    assert "containerd" in output


def test_on_a_bare_node_nothing_is_taken(node: FakeNode) -> None:
    code, output = ended(node, "plan", "--toolkit-source-root", str(node.payload))
    assert code == 3, output
    assert "more than one engine" in output
    assert TAKEN not in output


def test_status_compares_with_the_payload_of_the_run(node: FakeNode, waiting: Run) -> None:
    program = node.place(f"{TOOLKIT}/nvidia-container-runtime.real")
    os.utime(program, (1, 1))
    code, output = ended(node, "status")
    assert code == 0, output
    assert "cannot be compared" not in output
    assert "touched" not in output
    assert waiting.process.poll() is None


def test_uninstall_without_options_takes_back_what_the_run_installed(node: FakeNode, waiting: Run) -> None:
    code, output = ended(node, "uninstall")
    assert code == 0, output
    assert waiting.finish() == 0
    assert node.read(DAEMON_JSON) == DOCKER
    assert not node.exists(TOOLKIT)


def test_a_report_without_options_has_the_plan_of_the_run(node: FakeNode, waiting: Run, tmp_path: Path) -> None:
    code, output = ended(node, "report", str(tmp_path / "report.tar.gz"))
    assert code == 0, output
    with tarfile.open(tmp_path / "report.tar.gz") as packed:
        texts = {member.name.rpartition("/")[2]: packed.extractfile(member) for member in packed if member.isfile()}
        plan = texts["plan.txt"]
        assert plan is not None
        assert NOTHING_TO_DO in plan.read().decode()
        status = texts["status.json"]
        assert status is not None
        assert json.loads(status.read())["running_pid"] == waiting.pid


def run_by_itself(node: FakeNode, *more: str) -> tuple[int, str]:
    """Run an installation that finds the engine by itself."""
    source = ("--toolkit-source-root", str(node.payload), "--no-daemon", "--restart-mode", "none")
    return ended(node, "run", "--runtime", "auto", *source, *more)


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_that_finds_its_engine_stopped_stays_with_it(node: FakeNode, *, broken: bool) -> None:
    (node.root / "var").mkdir()
    (node.root / "var" / "run").symlink_to("/run")
    with cri_socket.answering(node.place("/run/containerd/containerd.sock"), "1.7.24"):
        code, output = run_by_itself(node)
    assert code == 0, output
    installed = node.read(CONFIG_TOML)
    assert b"nvidia" in installed
    if broken:
        node.write(CONFIG_TOML, node.read(CONFIG_TOML) + b"[debug\n", 0o600)
    code, output = run_by_itself(node)
    assert "more than one engine" not in output
    if broken:
        assert code == 3, output
        assert f"file={CONFIG_TOML}" in output
        assert "not valid TOML" in output
    else:
        assert code == 0, output
        assert "engine=containerd" in output
        assert node.read(CONFIG_TOML) == installed
    code, output = ended(node, "detect")
    assert code == 0, output
    assert "more than one engine" not in output
    assert node.read(DAEMON_JSON) == DOCKER


def test_a_pid_file_that_names_a_bystander_gives_no_options(node: FakeNode) -> None:
    node.write("/run/nvidia/toolkit.pid", f"{os.getpid()}\n", 0o600)
    code, output = ended(node, "plan", "--toolkit-source-root", str(node.payload))
    assert code == 3, output
    assert TAKEN not in output
