"""CRI-O under systemd: restarted by it, left alone, or not signalled, as the restart mode says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts import crio_unit
from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR
from tests.e2e.program import WAITING
from tests.support.built import go_tools
from tests.support.engines.crio import running_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.hosts.machine import Machine
    from tests.support.built.go_tools import Tool

UNIT = crio_unit.UNIT
CONFIG = crio_unit.CONFIG
RUNTIME = ("--runtime", "crio")


@pytest.fixture
def machine(machine: Machine, go_tool: Callable[[Tool], Path]) -> Machine:
    """Return a machine that has CRI-O as well."""
    crio_unit.bring(machine.host, go_tool(go_tools.CRIO))
    return machine


def handlers(machine: Machine) -> set[str]:
    """Return ours among the handlers that CRI-O runs with."""
    runtime = running_config(machine.host.path(crio_unit.SOCKET))["runtime"]
    ours = HANDLERS & set(runtime["runtimes"])
    assert runtime["default_runtime"] == ("nvidia" if ours else "runc")
    return ours


def test_systemd_restarts_crio_once_to_serve_the_handlers_and_once_to_forget_them(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, crio_unit.CONFIGURATION)
    run = machine.start(*RUNTIME, "--restart-mode", "systemd")  # unset: in the matrix
    run.wait_for(WAITING)
    assert machine.starts(UNIT) == 2
    assert machine.host.property(UNIT, "NRestarts") == "0", "it was not systemd that was asked"
    assert handlers(machine) == HANDLERS
    assert machine.state(CONFIG) == before, "the handlers belong into a file of their own"

    assert run.terminate() == 0, run.output
    assert machine.starts(UNIT) == 3
    assert handlers(machine) == set()
    assert machine.state(CONFIG) == before
    assert not machine.exists(crio_unit.DROP_IN)
    assert not machine.exists(INSTALL_DIR)


def test_crio_is_not_signalled_as_it_would_list_handlers_that_start_no_pod(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, crio_unit.CONFIGURATION)
    pid = machine.host.property(UNIT, "MainPID")
    code, output = machine.run(*RUNTIME, "--restart-mode", "signal")
    assert code == 3, output
    assert "CRI-O takes no handler over on a signal" in output
    assert machine.host.property(UNIT, "MainPID") == pid
    assert machine.state(CONFIG) == before
    assert not machine.exists(crio_unit.DROP_IN)
    assert not machine.exists(INSTALL_DIR)


def test_crio_that_is_not_to_be_restarted_serves_the_file_from_its_next_restart_on(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, crio_unit.CONFIGURATION)
    run = machine.start(*RUNTIME, "--restart-mode", "none")
    run.wait_for(WAITING)
    assert "was not reloaded" in run.output
    assert handlers(machine) == set()
    machine.host.run("systemctl", "restart", UNIT)
    assert handlers(machine) == HANDLERS

    assert run.terminate() == 0, run.output
    assert machine.state(CONFIG) == before
    assert not machine.exists(crio_unit.DROP_IN)
    assert handlers(machine) == HANDLERS
    assert machine.exists(INSTALL_DIR), "it starts containers through them until somebody restarts it"
    machine.host.run("systemctl", "restart", UNIT)
    assert machine.uninstall()[0] == 0
    assert handlers(machine) == set()
    assert not machine.exists(INSTALL_DIR)
    assert machine.starts(UNIT) == 3
