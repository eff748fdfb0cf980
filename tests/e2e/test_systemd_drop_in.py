"""containerd 2.1 under systemd: a drop-in of our own, and one import in config.toml."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import lost_lines
from tests.e2e.hosts.machine import CONFIG, CONFIGURATION, DROP_IN, HANDLERS, INSTALL_DIR
from tests.e2e.program import WAITING

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

UNIT = "containerd"
VERSION_3 = CONFIGURATION.replace("version = 2", "version = 3").replace(
    "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
)
IMPORTING = 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + VERSION_3


@pytest.mark.parametrize("text", [VERSION_3, CONFIGURATION, IMPORTING], ids=["version 3", "version 2", "importing"])
def test_containerd_2_gets_a_drop_in_and_at_most_an_import_and_is_left_as_it_was(
    newest_machine: Machine, text: str
) -> None:
    machine = newest_machine
    before = machine.serve(UNIT, CONFIG, text)
    runc = machine.containerd()["runtimes"]["runc"]
    run = machine.start()
    run.wait_for(WAITING)
    assert machine.starts(UNIT) == 2

    installed = machine.host.path(CONFIG).read_text()
    assert lost_lines(text, installed) == []
    was, now = tomllib.loads(text), tomllib.loads(installed)
    imports = now.pop("imports")
    assert set(imports) - {DROP_IN} == set(was.pop("imports", []))
    assert now == was, "more than an import was changed"
    assert tomllib.loads(machine.host.path(DROP_IN).read_text())["version"] == was["version"]
    live = machine.containerd()
    assert set(live["runtimes"]) == {"runc"} | HANDLERS
    assert live["defaultRuntimeName"] == "nvidia"
    assert live["runtimes"]["runc"] == runc
    assert all(live["runtimes"][name]["options"]["SystemdCgroup"] is True for name in HANDLERS)

    assert run.terminate() == 0, run.output
    assert machine.starts(UNIT) == 3
    assert machine.state(CONFIG) == before
    assert not machine.exists("/etc/containerd/conf.d")
    assert machine.handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)


def test_containerd_2_without_a_file_has_none_again(newest_machine: Machine) -> None:
    machine = newest_machine
    machine.serve(UNIT, CONFIG, None)
    code, output = machine.run()
    assert code == 0, output
    assert machine.handlers() == {"runc"} | HANDLERS
    code, output = machine.uninstall()
    assert code == 0, output
    assert not machine.exists(CONFIG)
    assert not machine.exists("/etc/containerd/conf.d")
    assert machine.handlers() == {"runc"}
