"""A docker that its administrator stopped while a run waits: systemd holds its socket, and starts it for any word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.program import WAITING

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

UNIT, CONFIG = "docker", "/etc/docker/daemon.json"
CONFIGURATION = '{\n  "log-level":   "info"\n}'
OPTIONS = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"
LOOK_SECONDS = 90
"""It looks every 30 s, and again after another 30 s."""


def test_a_docker_that_was_stopped_stays_so_and_is_told_of_when_it_is_back(machine: Machine) -> None:
    machine.host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{OPTIONS}"\n')
    machine.serve(UNIT, CONFIG, CONFIGURATION)
    run = machine.start("--runtime", "docker", "--set-as-default=false")
    run.wait_for(WAITING)
    assert machine.active("docker.socket"), "without it, nothing would start docker"
    machine.host.run("systemctl", "stop", UNIT)
    run.wait_for("docker: it is not running", within=LOOK_SECONDS)
    assert not machine.active(UNIT), "somebody asked it, and so it was started"
    (told,) = machine.status()["engines"]
    assert "it is not running" in told["live"]["detail"][0]
    assert not machine.active(UNIT)
    # an edit of its file is looked at without it, too
    machine.host.path(CONFIG).write_text(CONFIGURATION)
    run.wait_for("Somebody changed the file", within=LOOK_SECONDS)
    assert not machine.active(UNIT)
    machine.host.run("systemctl", "start", UNIT)
    run.wait_for("docker: it does not list the handler nvidia", within=LOOK_SECONDS)
    assert run.terminate() == 0, run.output
    assert machine.host.path(CONFIG).read_text() == CONFIGURATION
