"""Metrics as a real Prometheus scrapes them from a run on a live dockerd: each alert is seen, and so is its end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.e2e.program import WAITING, Installer
from tests.support import prometheus
from tests.support.prometheus import NODE, Prometheus
from toolkit_installer.lifecycle.metrics import exposition
from toolkit_installer.lifecycle.metrics.exposition import Metrics

if TYPE_CHECKING:
    from tests.support.engines.daemons import DockerEngine

ALERTS_TEST = Path(__file__).parents[1] / "data/prometheus/rules-test.yaml"
WITHIN = "10m"
"""Longer than all of this takes: what a rule has seen in that time stays."""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    if missing := prometheus.missing():
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's package prometheus)")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def flags(docker: DockerEngine, folder: Path, payload: Path, port: int) -> list[object]:
    return [
        *("run", "--runtime", "docker", "--config", docker.config, "--socket", docker.socket),
        *("--restart-mode", "signal", "--reload-budget", "99/600", "--metrics-address", f"127.0.0.1:{port}"),
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def drop_a_handler(docker: DockerEngine) -> None:
    said = json.loads(docker.config.read_bytes())
    del said["runtimes"]["nvidia-cdi"]
    docker.config.write_text(json.dumps(said))


def ask(watching: Prometheus, unanswered: set[str]) -> None:
    """Ask the dashboard's queries that have told nothing so far: some tell only of what is wrong."""
    unanswered.difference_update({query for query in unanswered if watching.query(query)})


def test_promtool_finds_nothing_wrong_and_each_alert_waits_as_long_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(prometheus.rules(), width=1000))
    shutil.copy(ALERTS_TEST, tmp_path)
    for command in (("check", "rules", "rules.yaml"), ("test", "rules", ALERTS_TEST.name)):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tried = {
        each["alertname"]
        for test in yaml.safe_load(ALERTS_TEST.read_text())["tests"]
        for each in test["alert_rule_test"]
    }
    assert tried == {rule["alert"] for group in prometheus.rules()["groups"] for rule in group["rules"]}
    everything = exposition.text(
        Metrics(
            ready=True,
            served={"docker": True, "crio": False},
            reloads={("docker", "install"): 2, ("docker", "rollback"): 1},
            away={"docker": 1.25},
            drifted=("/etc/a\\b", '/etc/"c"'),
            payload="1.19.0",
        )
    )
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=everything, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_node_that_was_never_right_is_not_the_one_that_was_right_longest_ago(tmp_path: Path) -> None:
    (query,) = (each for each in prometheus.queries() if "last_converge_timestamp" in each)
    name = "toolkit_installer_last_converge_timestamp_seconds"
    series = [
        {"series": f'{name}{{node="{node}"}}', "values": f"{when}x100"} for node, when in {"a": 3000, "none": 0}.items()
    ]
    asked = {"expr": query, "eval_time": "100m", "exp_samples": [{"labels": "{}", "value": 3000}]}
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [asked]}]
    (tmp_path / "queries-test.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    command = ["promtool", "test", "rules", "queries-test.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_and_resolves_and_every_query_of_the_dashboard_is_answered(
    docker: DockerEngine, installer: Installer, flags: list[object], folder: Path, port: int
) -> None:
    toolkit = folder / "nvidia/toolkit"
    unanswered = set(prometheus.queries())
    with Prometheus(folder / "prometheus", f"127.0.0.1:{port}", WITHIN) as watching:
        watching.wait_until("ToolkitInstallerAway")
        run = installer.start("toolkit-installer", *flags)
        run.wait_for(WAITING)
        watching.wait_for("toolkit_installer_ready == 1")
        watching.wait_until("ToolkitInstallerAway", "ToolkitNotReady", fires=False)
        assert watching.firing() == {}
        ask(watching, unanswered)
        (ready,) = watching.query("sum(toolkit_installer_ready)")
        assert ready["value"][1] == "1"
        (reloads,) = watching.query("toolkit_installer_reloads_total{reason='install'}")
        assert (reloads["metric"]["node"], reloads["value"][1]) == (NODE, "1")

        # a file that somebody changed; putting it back reloads the engine, and that three times is too often
        ours = docker.config.read_bytes()
        drop_a_handler(docker)
        watching.wait_until("ToolkitDrift")
        assert watching.firing()["ToolkitDrift"]["file"] == str(docker.config)
        ask(watching, unanswered)
        run.send(signal.SIGHUP)
        watching.wait_until("ToolkitDrift", fires=False)
        for reloads_by_now in (3, 4):
            drop_a_handler(docker)
            run.send(signal.SIGHUP)
            watching.wait_for(f"toolkit_installer_reloads_total == {reloads_by_now}")
        watching.wait_until("ToolkitReloadsOften")
        assert json.loads(docker.config.read_bytes()) == json.loads(ours)

        # a file that is none any more: nothing is changed before it is whole
        whole = docker.config.read_bytes()
        docker.config.write_bytes(b"{")
        run.send(signal.SIGHUP)
        watching.wait_until("ToolkitInstallationFails")
        assert watching.firing()["ToolkitInstallationFails"]["code"] == "bad-configuration"
        ask(watching, unanswered)
        docker.config.write_bytes(whole)
        run.send(signal.SIGHUP)
        watching.wait_until("ToolkitInstallationFails", "ToolkitDrift", fires=False)

        (toolkit / "nvidia-container-runtime").write_bytes(b"")
        watching.wait_until("ToolkitDamaged", "ToolkitNotReady")
        run.send(signal.SIGHUP)
        watching.wait_until("ToolkitDamaged", "ToolkitNotReady", fires=False)

        docker.shut_down()
        watching.wait_until("ToolkitEngineNotServing", "ToolkitNotReady")
        assert watching.firing()["ToolkitEngineNotServing"]["engine"] == "docker"
        ask(watching, unanswered)
        assert unanswered == set()
        docker.start()
        watching.wait_until("ToolkitEngineNotServing", "ToolkitNotReady", fires=False)

        assert run.terminate() == 0, run.output
        watching.wait_until("ToolkitInstallerAway")
