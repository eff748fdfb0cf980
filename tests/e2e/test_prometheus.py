"""Metrics as a real Prometheus scrapes them from a run on a live dockerd: each alert is seen, and so is its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.e2e.failing import until
from tests.e2e.program import WAITING, Installer
from tests.support import driver_roots, prometheus
from tests.support.prometheus import NODE, Prometheus
from toolkit_installer.reporting import metrics_text
from toolkit_installer.reporting.metrics_text import Metrics

if TYPE_CHECKING:
    from tests.support.engines.daemons import DockerEngine

ALERTS_TEST = Path(__file__).parents[1] / "data/prometheus/rules-test.yaml"
OF_THE_RUN = {
    *("ToolkitInstallerAway", "ToolkitNotReady", "ToolkitEngineNotServing"),
    *("ToolkitDrift", "ToolkitInstallationFails", "ToolkitDamaged"),
}
OF_THE_DRIVER = {"ToolkitDriverNotUsable", "ToolkitNotReady"}
OF_THE_PLUGIN = {"ToolkitPluginNotConnected"}
"""By tests/e2e/nri/test_alert.py."""
OF_ITS_CHANGES = {"ToolkitReloadsOften", "ToolkitRollback", "ToolkitInstallationFails"}
RELOADS = "toolkit_installer_reloads_total{reason='install'}"
OFTEN, MANY = 3, 20
"""So many reloads of one run are told to nobody, as Prometheus cannot see the first of them; one more is."""
UNKNOWN = '{"lables": ["rack=a1"],'
"""How a daemon.json begins that dockerd 20.10 refuses once it is told to read it; it validates nothing before."""


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


def forget_a_handler(docker: DockerEngine) -> None:
    """Have dockerd itself forget it as well."""
    drop_a_handler(docker)
    os.kill(docker.pid, signal.SIGHUP)
    until(lambda: "nvidia-cdi" not in docker.handlers(), docker.log_tail)


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
    everything = metrics_text.format_text(
        Metrics(
            ready=True,
            served={"docker": True, "crio": False},
            reloads={("docker", "install"): 2, ("docker", "rollback"): 1},
            reload_seconds={"docker": 1.25},
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


def test_every_alert_is_seen_to_fire_and_to_resolve_by_one_of_the_tests() -> None:
    shipped = {rule["alert"] for group in prometheus.rules()["groups"] for rule in group["rules"]}
    assert shipped == OF_THE_RUN | OF_THE_DRIVER | OF_THE_PLUGIN | OF_ITS_CHANGES


def test_alerts_of_run_and_node_fire_and_resolve_and_the_dashboard_has_data(
    docker: DockerEngine, installer: Installer, flags: list[object], folder: Path, port: int
) -> None:
    toolkit = folder / "nvidia/toolkit"
    unanswered = set(prometheus.queries())
    with Prometheus(folder / "prometheus", f"127.0.0.1:{port}") as watching:
        watching.wait_until("ToolkitInstallerAway")
        run = installer.start("toolkit-installer", *flags)
        run.wait_for(WAITING)
        watching.wait_for("toolkit_installer_ready == 1")
        watching.wait_until("ToolkitInstallerAway", "ToolkitNotReady", fires=False)
        assert watching.firing() == {}
        ask(watching, unanswered)
        (ready,) = watching.query("sum(toolkit_installer_ready)")
        assert ready["value"][1] == "1"
        (reloads,) = watching.query(RELOADS)
        assert (reloads["metric"]["node"], reloads["value"][1]) == (NODE, "1")

        # a file that somebody changed
        ours = docker.config.read_bytes()
        drop_a_handler(docker)
        watching.wait_until("ToolkitDrift")
        assert watching.firing()["ToolkitDrift"]["file"] == str(docker.config)
        ask(watching, unanswered)
        run.send(signal.SIGHUP)
        watching.wait_until("ToolkitDrift", fires=False)
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
        assert watching.resolved == OF_THE_RUN


@pytest.mark.skipif(bool(driver_roots.MISSING), reason=driver_roots.MISSING)
def test_the_alert_of_a_driver_that_is_lost_fires_and_resolves_once_it_works_again(
    installer: Installer, flags: list[object], folder: Path, port: int
) -> None:
    driver = folder / "driver"
    driver_roots.install(driver)
    run = installer.start("toolkit-installer", *flags, "--driver-root", "auto", "--driver-root-ctr-path", driver)
    run.wait_for(WAITING)
    with Prometheus(folder / "prometheus", f"127.0.0.1:{port}") as watching:
        watching.wait_for("toolkit_installer_driver_usable == 1")
        driver_roots.install(driver, works=False)
        watching.wait_until("ToolkitDriverNotUsable", "ToolkitNotReady")
        assert driver_roots.NO_DRIVER in run.output
        assert watching.query("sum(toolkit_installer_driver_usable == bool 0)")[0]["value"][1] == "1"
        driver_roots.install(driver)
        watching.wait_until("ToolkitDriverNotUsable", "ToolkitNotReady", fires=False)
        assert watching.resolved == OF_THE_DRIVER
        assert watching.firing() == {}
    assert run.terminate() == 0, run.output


def test_alerts_of_rollbacks_and_of_frequent_reloads_fire_and_resolve(
    docker: DockerEngine, installer: Installer, flags: list[object], folder: Path, port: int
) -> None:
    run = installer.start("toolkit-installer", *flags, "--reload-timeout", 10)
    run.wait_for(WAITING)
    with Prometheus(folder / "prometheus", f"127.0.0.1:{port}") as watching:
        # of a series that has just begun, Prometheus takes much more to be between the scrapes than of an older one
        watching.wait_for(f"count_over_time({RELOADS}[1m]) >= 10")
        ours, count = docker.config.read_bytes(), 1
        while "ToolkitReloadsOften" not in watching.firing():
            # as many as it takes to have them within the rules' hour, which is a minute here
            assert count < MANY, "nobody is told"
            count += 1
            drop_a_handler(docker)
            run.send(signal.SIGHUP)
            watching.wait_for(f"{RELOADS} == {count}")
        assert count > OFTEN
        watching.wait_until("ToolkitReloadsOften")
        assert watching.firing()["ToolkitReloadsOften"]["engine"] == "docker"
        assert json.loads(docker.config.read_bytes()) == json.loads(ours)

        forget_a_handler(docker)
        refused = (UNKNOWN + docker.config.read_text().lstrip()[1:]).encode()
        docker.config.write_bytes(refused)
        run.send(signal.SIGHUP)
        watching.wait_until("ToolkitRollback")
        watching.wait_until("ToolkitInstallationFails")
        assert watching.firing()["ToolkitInstallationFails"]["code"] == "engine-rejected"
        assert watching.query("toolkit_installer_rollbacks_total == 1")
        assert docker.log_count("don't match any configuration option: lables")
        assert docker.config.read_bytes() == refused
        docker.config.write_bytes(ours)
        run.send(signal.SIGHUP)
        watching.wait_until(*OF_ITS_CHANGES, fires=False)
        assert "nvidia-cdi" in docker.handlers()
        assert watching.resolved == OF_ITS_CHANGES
        until(lambda: watching.firing() == {}, lambda: str(watching.firing()))
    assert run.terminate() == 0, run.output
