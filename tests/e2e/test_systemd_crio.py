"""CRI-O under systemd: how often it is restarted, and what becomes of it over files with which it would not start."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.hosts import crio_unit
from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR
from tests.e2e.program import WAITING
from tests.support.built import go_tools
from tests.support.engines import cri_client
from tests.support.engines.crio import CrioEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.file_states import FileState
    from tests.e2e.hosts.machine import Machine
    from tests.support.built.go_tools import Tool

UNIT = "crio"
CONFIG = "/etc/crio/crio.conf"
DROP_INS = "/etc/crio/crio.conf.d"
DROP_IN = f"{DROP_INS}/99-nvidia.toml"
IDLE = "Nothing to do"
OWN = {"crun", "runc"}

# As its package has it. No storage on an overlay, and what lowers its score may be lacking here.
SERVICE = """\
[Unit]
DefaultDependencies=no
[Service]
Type=notify
ExecStart={programs}/crio --root /run/storage --runroot /run/storage-run --pinns-path {programs}/pinns
KillMode=process
Restart=on-failure
RestartSec=1
"""
CONFIGURATION = """\
# Managed by hand: ask the storage team before you touch this.
[crio.runtime]
default_runtime = "runc"   # crun once the fleet is ready
  [crio.runtime.runtimes.runc]
  runtime_path = "/usr/sbin/runc"
  monitor_path = "/usr/bin/conmon"
  monitor_env = ["PATH=/usr/bin:/bin", "TEAM=storage"]
[crio.nri]
enable_nri = false
"""


class CrioMachine:
    """The machine, with CRI-O's unit, started on CONFIGURATION; `before` is how the file stood then."""

    def __init__(self, machine: Machine, programs: Path, text: str = CONFIGURATION) -> None:
        self.machine = machine
        self._programs = programs
        machine.host.path(DROP_INS).mkdir(parents=True)
        machine.host.path("/etc/systemd/system/crio.service").write_text(SERVICE.format(programs=programs))
        self.before: FileState | None = machine.serve(UNIT, CONFIG, text)

    def handlers(self) -> set[str]:
        """Return the names of the live CRI-O's handlers."""
        answer = cri_client.status(self.machine.host.path(crio_unit.SOCKET), 20)
        return set(answer["handlers"]) - {""}

    def runtime(self) -> dict[str, Any]:
        """Return the table `crio.runtime` that it runs with."""
        said = self.machine.host.run(self._programs / "crio", "status", "config").stdout
        table: dict[str, Any] = tomllib.loads(said)["crio"]["runtime"]
        return table

    def write(self, name: str, text: str) -> None:
        """Write somebody else's drop-in."""
        self.machine.host.path(f"{DROP_INS}/{name}").write_text(text)


@pytest.fixture
def programs(go_tool: Callable[[Tool], Path]) -> Path:
    if missing := CrioEngine.missing():
        pytest.skip(f"not installed: {', '.join(missing)} (Debian's packages conmon, crun, runc)")
    return go_tool(go_tools.CRIO)


@pytest.fixture
def crio(machine: Machine, programs: Path) -> CrioMachine:
    return CrioMachine(machine, programs)


def test_crio_is_restarted_once_for_install_and_never_for_a_run_after_it(crio: CrioMachine) -> None:
    machine = crio.machine
    first = machine.start("--cleanup", "never")  # and without --runtime and --restart-mode: found, and by systemd
    first.wait_for(WAITING)
    assert machine.starts(UNIT) == 2
    assert machine.host.property(UNIT, "NRestarts") == "0", "it was not systemd that was asked"
    assert crio.handlers() == OWN | HANDLERS
    live = crio.runtime()
    assert live["default_runtime"] == "nvidia"
    assert live["runtimes"]["nvidia"]["monitor_env"] == live["runtimes"]["runc"]["monitor_env"]
    assert "TEAM=storage" in live["runtimes"]["nvidia"]["monitor_env"]
    assert machine.state(CONFIG) == crio.before
    assert first.terminate() == 0, first.output

    pid, traces = machine.host.property(UNIT, "MainPID"), machine.written_below("/etc/crio", INSTALL_DIR)
    code, output = machine.run()
    assert code == 0, output
    assert IDLE in output
    assert machine.host.property(UNIT, "MainPID") == pid
    assert machine.written_below("/etc/crio", INSTALL_DIR) == traces

    code, output = machine.uninstall()
    assert code == 0, output
    assert machine.starts(UNIT) == 3
    assert machine.state(CONFIG) == crio.before
    assert not machine.exists(DROP_IN)
    assert crio.handlers() == OWN
    assert not machine.exists(INSTALL_DIR)


def test_crio_is_left_to_whoever_restarts_it_where_that_was_asked_for(crio: CrioMachine) -> None:
    machine = crio.machine
    run = machine.start("--restart-mode", "none")
    run.wait_for(WAITING)
    assert machine.starts(UNIT) == 1
    assert "was not reloaded" in run.output
    assert crio.handlers() == OWN
    machine.host.run("systemctl", "restart", UNIT)
    assert crio.handlers() == OWN | HANDLERS
    assert run.terminate() == 0, run.output
    assert machine.starts(UNIT) == 2
    assert not machine.exists(DROP_IN)
    assert machine.exists(INSTALL_DIR), "it starts containers through them until somebody restarts it"
    machine.host.run("systemctl", "restart", UNIT)
    assert machine.uninstall()[0] == 0
    assert not machine.exists(INSTALL_DIR)


def test_crio_is_not_stopped_over_files_with_which_it_would_not_start(crio: CrioMachine) -> None:
    machine = crio.machine
    crio.write("10-theirs.conf", "[crio.runtime]\nlog_size_max = 1\n")
    code, output = machine.run()
    assert code == 5, output
    assert "log size max should be" in output
    assert "it was not restarted" in output
    assert machine.starts(UNIT) == 1
    assert machine.active(UNIT)
    assert machine.state(CONFIG) == crio.before
    assert not machine.exists(DROP_IN)
    assert not machine.exists(INSTALL_DIR)


def test_a_unit_that_refuses_the_new_file_is_rolled_back_and_its_message_reported(crio: CrioMachine) -> None:
    machine = crio.machine
    refusing = f"! test -e {DROP_IN} || {{ echo the policy forbids nvidia >&2; exit 9; }}"
    machine.override(UNIT, f"ExecStartPre=/bin/sh -c '{refusing}'")
    code, output = machine.run()
    assert code == 5, output
    assert "the policy forbids nvidia" in output.replace("\n", " ")
    assert machine.active(UNIT)
    assert crio.handlers() == OWN
    assert not machine.exists(DROP_IN)
    assert not machine.exists(INSTALL_DIR)


def test_files_that_only_fail_at_the_start_are_rolled_back_and_the_next_run_finishes(
    crio: CrioMachine,
) -> None:
    machine = crio.machine
    crio.write("10-theirs.conf", '[crio.runtime]\ncgroup_manager = "none"\n')  # `crio config` takes it
    code, output = machine.run("--reload-timeout", 2)
    assert code == 6, output
    assert "DOES NOT COME BACK" in output
    assert machine.state(CONFIG) == crio.before
    assert not machine.exists(DROP_IN)
    assert not machine.active(UNIT)
    machine.host.path(f"{DROP_INS}/10-theirs.conf").unlink()
    machine.host.run("systemctl", "reset-failed", UNIT)
    machine.host.run("systemctl", "start", UNIT)
    code, output = machine.run()
    assert code == 0, output
    assert crio.handlers() == OWN | HANDLERS


@pytest.mark.parametrize("kill_mode", ["process", "control-group"])
def test_a_restart_that_would_end_containers_is_warned_of_before(
    machine: Machine, programs: Path, kill_mode: str
) -> None:
    by_cgroupfs = 'cgroup_manager = "cgroupfs"\nconmon_cgroup = "pod"\n'
    text = CONFIGURATION.replace("[crio.runtime]\n", f"[crio.runtime]\n{by_cgroupfs}", 1)
    crio = CrioMachine(machine, programs, text)
    machine.override(UNIT, f"KillMode={kill_mode}")
    code, output = machine.run()
    assert code == 0, output
    assert ("its restart may end running containers" in output) == (kill_mode != "process")
    assert crio.handlers() == OWN | HANDLERS
