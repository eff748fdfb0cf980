"""docker under systemd, activated by its socket: signalled, restarted where that is allowed, or left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts.machine import HANDLERS, INSTALL_DIR
from tests.e2e.program import WAITING

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

UNIT = "docker"
CONFIG = "/etc/docker/daemon.json"
CONFIGURATION = '{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}'
RELOADED = "Reloaded configuration"
RUNTIME = ("--runtime", "docker")


@pytest.mark.parametrize(
    "flags, starts, reloads",
    [
        pytest.param((), 0, 1, id="unset"),
        pytest.param(("--restart-mode", "signal"), 0, 1, id="signal"),
        pytest.param(("--restart-mode", "systemd", "--allow-restart"), 1, 0, id="systemd"),
    ],
)
def test_docker_is_reloaded_as_the_restart_mode_says(
    machine: Machine, flags: tuple[str, ...], starts: int, reloads: int
) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    run = machine.start(*RUNTIME, *flags)
    run.wait_for(WAITING)
    assert machine.starts(UNIT) == 1 + starts
    assert machine.host.journal(UNIT).count(RELOADED) == reloads
    assert machine.docker_handlers() == {"runc"} | HANDLERS

    assert run.terminate() == 0, run.output
    assert machine.starts(UNIT) == 1 + 2 * starts
    assert machine.state(CONFIG) == before
    assert machine.docker_handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)


def test_docker_that_is_not_to_be_reloaded_serves_the_file_from_its_next_restart_on(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    flags = (*RUNTIME, "--restart-mode", "none")
    run = machine.start(*flags)
    run.wait_for(WAITING)
    assert "was not reloaded" in run.output
    assert machine.docker_handlers() == {"runc"}
    machine.host.run("systemctl", "restart", UNIT)
    assert machine.docker_handlers() == {"runc"} | HANDLERS

    assert run.terminate() == 0, run.output
    assert "docker still offers the handler nvidia" in run.output
    assert machine.state(CONFIG) == before
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    assert machine.exists(INSTALL_DIR), "it starts containers through them until somebody restarts it"
    machine.host.run("systemctl", "restart", UNIT)
    assert machine.uninstall()[0] == 0
    assert machine.docker_handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)
    assert machine.starts(UNIT) == 3
    assert RELOADED not in machine.host.journal(UNIT)


def test_docker_is_not_restarted_unless_that_is_allowed(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    code, output = machine.run(*RUNTIME, "--restart-mode", "systemd")
    assert code == 3, output
    assert "--allow-restart" in output
    assert machine.starts(UNIT) == 1
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)


def test_a_file_that_docker_28_would_refuse_is_found_before_anything_is_written(newest_machine: Machine) -> None:
    machine = newest_machine
    machine.serve(UNIT, CONFIG, CONFIGURATION)
    # for the next restart to trip over
    machine.host.path(CONFIG).write_text(CONFIGURATION.replace('"labels"', '"lables"'))
    broken, folders = machine.state(CONFIG), machine.written_below("/etc/docker", "/usr/local", "/run/nvidia")
    code, output = machine.run(*RUNTIME)
    assert code == 3, output
    assert "dockerd itself would refuse the new file" in output
    assert "lables" in output
    assert machine.state(CONFIG) == broken
    assert machine.written_below("/etc/docker", "/usr/local", "/run/nvidia") == folders
    assert RELOADED not in machine.host.journal(UNIT)
    assert machine.starts(UNIT) == 1


def test_docker_28_serves_the_handlers_and_forgets_them(newest_machine: Machine) -> None:
    machine = newest_machine
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    run = machine.start(*RUNTIME)
    run.wait_for(WAITING)
    assert machine.docker_handlers() == {"runc"} | HANDLERS
    assert run.terminate() == 0, run.output
    assert machine.docker_handlers() == {"runc"}
    assert machine.state(CONFIG) == before
    assert machine.starts(UNIT) == 1
