"""What containerd reads is found where it is on the node, and what a signal would do to it is known before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit_installer.engines.api import Inspection, LiveState, Reload
from toolkit_installer.engines.containerd.engine import Containerd
from toolkit_installer.engines.containerd.inspection import inspect_own
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

SOCKET = "/run/containerd/containerd.sock"


def test_imports_from_the_drop_ins_folder_are_read_where_that_folder_is_mounted(tmp_path: Path) -> None:
    """Otherwise a handler that somebody else's drop-in registers would be taken for missing."""
    files = {
        "/etc/containerd/config.toml": 'version = 2\nimports = ["/host/conf.d/*.toml"]\n',
        "/mounted/conf.d/10-other.toml": "version = 2\n",
    }
    for path, text in files.items():
        place = tmp_path / path[1:]
        place.parent.mkdir(parents=True)
        place.write_text(text)
    asked = EngineSettings(drop_in="/mounted/conf.d/99-nvidia.toml", drop_in_host_path="/host/conf.d/99-nvidia.toml")
    target = EngineTarget(EngineName.CONTAINERD, asked)
    found = inspect_own(Node.open(str(tmp_path), "/host"), target, Inspection(SOCKET, (), None))
    assert [(each.path, each.place) for each in found.graph] == [
        ("/host/conf.d/10-other.toml", "/mounted/conf.d/10-other.toml")
    ]


@pytest.mark.parametrize("unit, says", [(None, "always"), ("a.service", "no"), ("a.service", "on-failure")])
def test_a_signal_is_warned_of_where_nothing_starts_containerd_again(unit: str | None, says: str) -> None:
    assert dangers(unit, says, ReloadMode.SIGNAL)
    assert not dangers(unit, says, ReloadMode.SYSTEMD)


def test_a_signal_is_not_warned_of_where_the_unit_is_always_started_again() -> None:
    assert not dangers("a.service", "always", ReloadMode.SIGNAL)


def dangers(unit: str | None, says: str, mode: ReloadMode) -> tuple[str, ...]:
    """Return the warnings, where systemd says this of how the unit is started again."""
    properties = {("a.service", "Restart"): says}
    node: Any = SimpleNamespace(services=SimpleNamespace(property=lambda unit, name: properties.get((unit, name), "")))
    process = Process(1, "containerd", "/usr/bin/containerd", ("containerd",), 0.0, unit)
    inspection: Any = Inspection(SOCKET, (), LiveState("2.1.0", {}, None, process))
    return Containerd().describe_reload_risks(node, inspection, Reload(mode))
