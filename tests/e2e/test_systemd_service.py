"""The service of a machine without containers of ours (daemonset/systemd): waits, survives the engine, gives back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR
from tests.e2e.program import SCRIPTS, WAITING
from tests.support import driver_roots

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

PROJECT = Path(__file__).parents[2]
SERVICE = "toolkit-installer"
UNIT, CONFIG = "docker", "/etc/docker/daemon.json"
CONFIGURATION = '{\n  "log-level":   "info"\n}'
OPTIONS = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"


def wait_for(machine: Machine, text: str, times: int = 1, within: float = 90.0) -> None:
    deadline = time.monotonic() + within
    while machine.host.journal(SERVICE).count(text) < times:
        assert time.monotonic() < deadline, machine.host.journal(SERVICE)
        time.sleep(0.2)


def test_the_service_waits_for_the_driver_survives_dockers_restarts_and_reverts(machine: Machine) -> None:
    host = machine.host
    host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{OPTIONS}"\n')
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    unit = host.path(f"/etc/systemd/system/{SERVICE}.service")
    unit.write_bytes((PROJECT / "daemonset/systemd" / unit.name).read_bytes())
    host.path("/usr/local/bin/toolkit-installer").symlink_to(SCRIPTS / "toolkit-installer")
    host.path("/etc/default/toolkit-installer").write_text(f"RUNTIME=docker\nTOOLKIT_SOURCE_ROOT={machine.payload}\n")
    verified = host.run("systemd-analyze", "verify", "--man=no", f"/etc/systemd/system/{SERVICE}.service")
    assert SERVICE not in verified.stderr, verified.stderr
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "enable", "--now", SERVICE)

    assert host.property(SERVICE, "StatusText") == "waiting for the driver"
    assert "No driver is usable yet" in host.journal(SERVICE)
    wait_for(machine, WAITING)
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)
    driver_roots.install(host.path("/"))
    wait_for(machine, "The node is configured")
    wait_for(machine, WAITING, 2)
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    assert "Default Runtime: runc" in host.run("docker", "info").stdout

    # another process with the same PID: it became the one that waits, and systemd still takes it for the service's
    main = host.property(SERVICE, "MainPID")
    host.run("systemctl", "restart", UNIT)
    machine.wait_until_active(UNIT)
    assert machine.active(SERVICE)
    assert host.property(SERVICE, "MainPID") == main
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    # `systemctl start` returns when the machine is configured: `status` after it, as the page has it, is OK
    host.run("systemctl", "stop", SERVICE)
    assert machine.uninstall()[0] == 0
    host.run("systemctl", "start", SERVICE)
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    assert host.property(SERVICE, "StatusText") == "waiting for signal"

    host.run("systemctl", "reload", SERVICE)
    wait_for(machine, "Nothing to do: the node is as it should be")

    host.run("systemctl", "disable", "--now", SERVICE)
    assert host.property(SERVICE, "Result") == "success"
    assert machine.docker_handlers() == {"runc"} | HANDLERS, "a stop takes nothing back"
    assert machine.uninstall()[0] == 0
    assert machine.docker_handlers() == {"runc"}
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)


def test_variables_that_make_no_sense_are_not_tried_again_and_again(machine: Machine) -> None:
    host = machine.host
    unit = host.path(f"/etc/systemd/system/{SERVICE}.service")
    unit.write_bytes((PROJECT / "daemonset/systemd" / unit.name).read_bytes())
    host.path("/usr/local/bin/toolkit-installer").symlink_to(SCRIPTS / "toolkit-installer")
    host.path("/etc/default/toolkit-installer").write_text("RUNTIME=podman\n")
    host.run("systemctl", "daemon-reload")
    # it is not up before it can work, so whoever starts it is told
    assert host.run("systemctl", "start", SERVICE, check=False).returncode != 0
    deadline = time.monotonic() + 30
    while host.property(SERVICE, "ActiveState") != "failed":
        assert time.monotonic() < deadline, machine.host.journal(SERVICE)
        time.sleep(0.2)
    assert host.property(SERVICE, "ExecMainStatus") == "2"
    assert host.property(SERVICE, "NRestarts") == "0"


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(("tool", "run", "--from", str(PROJECT), SERVICE), id="uvx"),
        pytest.param(("tool", "run", "pipx", "run", "--spec", str(PROJECT), SERVICE), id="pipx"),
    ],
)
def test_it_can_be_run_from_a_clone_by_the_usual_tools(way: tuple[str, ...], folder: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    homes = {name: str(folder / name) for name in ("PIPX_HOME", "PIPX_BIN_DIR", "UV_TOOL_DIR")}
    done = subprocess.run(
        [uv, "--quiet", *way, "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | homes,
        timeout=300,
    )
    assert done.stdout.startswith("toolkit-installer "), done.stderr
