"""`diagnose` on a machine with systemd and a real docker: nothing on a sound one, and what ends each illness."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

UNIT, CONFIG = "docker", "/etc/docker/daemon.json"
SOUND = '{\n  "log-level": "info"\n}\n'
LEFT = """{
  "log-level": "info",
  "runtimes": {
    "nvidia": {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime"}
  }
}
"""


def findings_of(machine: Machine) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = machine.diagnosis()["findings"]
    return {each["illness"]: each for each in found}


def test_a_handler_that_was_left_on_a_running_docker_goes_with_its_remedy(machine: Machine) -> None:
    machine.serve(UNIT, CONFIG, SOUND)
    assert findings_of(machine) == {}
    machine.host.path(CONFIG).write_text(LEFT)
    machine.host.run("systemctl", "reload", UNIT)
    found = findings_of(machine)["leftover"]
    assert (found["path"], found["line"]) == (CONFIG, 4)
    assert "`toolkit-installer uninstall --runtime docker`" in found["remedy"]
    code, output = machine.uninstall("--runtime", "docker")
    assert code == 0, output
    assert findings_of(machine) == {}
    assert machine.docker_handlers() == {"runc"}


def test_a_runc_that_was_renamed_is_found_on_a_running_docker(machine: Machine) -> None:
    machine.serve(UNIT, CONFIG, SOUND)
    runc = machine.host.run("sh", "-c", "command -v runc").stdout.strip()
    machine.host.run("mv", runc, f"{runc}.away")
    found = findings_of(machine)["no-runtime"]
    assert found["what"] == "the default runtime is runc, which is not on the node"
    assert found["causes"] == "every container fails"
    machine.host.run("mv", f"{runc}.away", runc)
    assert findings_of(machine) == {}


def test_nothing_is_ill_once_the_toolkit_is_installed_and_after_it(machine: Machine) -> None:
    machine.serve(UNIT, CONFIG, SOUND)
    assert machine.run("--runtime", "docker")[0] == 0
    assert findings_of(machine) == {}
    assert json.loads(machine.host.path(CONFIG).read_text())["default-runtime"] == "nvidia"
    assert machine.uninstall()[0] == 0
    assert findings_of(machine) == {}
