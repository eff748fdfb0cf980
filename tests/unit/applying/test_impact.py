"""The units that a restart takes along, asked of a played systemd; a node that does not tell stops nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit_installer.applying import impact as look
from toolkit_installer.applying.impact import DependentUnit, ReloadImpact
from toolkit_installer.engines.api import Inspection, LiveState, Reload
from toolkit_installer.engines.detect import kubelet
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.programs import CompletedProgram, ProgramError, Programs
from toolkit_installer.settings import EngineName, ReloadMode

UNIT = "containerd.service"
RESTART = Reload(ReloadMode.SYSTEMD, UNIT, restarts=True)
GONE = Process(4194305, "containerd", "/usr/bin/containerd", (), 1.0, UNIT)
"""A PID that no process has."""

Units = dict[str, dict[str, str]]


class Systemd:
    """Answers `systemctl show` of several units as systemd does: blocks with an empty line between them."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.asked: list[list[str]] = []

    def run(self, command: list[str], **_: object) -> CompletedProgram:
        asked = command[command.index("--") + 1 :]
        self.asked.append(asked)
        properties = command[2].removeprefix("--property=").split(",")
        blocks = []
        for name in asked:
            said = {"ActiveState": "active", **dict.fromkeys(properties[1:], ""), **self.units.get(name, {})}
            blocks.append("".join(f"{key}={value}\n" for key, value in said.items()))
        return CompletedProgram(0, "\n".join(blocks).encode(), "")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node.open(str(tmp_path), "/host")


def impact(
    node: Node, monkeypatch: pytest.MonkeyPatch, systemd: Systemd | None, reload: Reload = RESTART, **live: object
) -> ReloadImpact:
    monkeypatch.setattr(Programs, "find_program", lambda _self, _name: None if systemd is None else "/bin/systemctl")
    if systemd is not None:
        monkeypatch.setattr(Programs, "run", lambda _self, command, **more: systemd.run(command, **more))
    process = GONE if reload.unit is None or reload.unit == UNIT else None
    answer = LiveState("2.1.4", {}, None, process, **live)  # type: ignore[arg-type]
    inspection = Inspection("/run/containerd/containerd.sock", (), answer)
    return look.find_impact(node, EngineName.CONTAINERD, inspection, reload, "/usr/local/nvidia/toolkit")


def test_units_are_named_with_what_ties_them_to_the_engine_however_long_the_chain(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = Systemd(
        {
            UNIT: {"RequiredBy": "kubelet.service", "ConsistsOf": "part.service", "RequisiteOf": "soft.service"},
            "kubelet.service": {"BoundBy": "agent.service", "RequiredBy": "part.service"},
            "agent.service": {"RequiredBy": f"{UNIT} kubelet.service"},
        }
    )
    found = impact(node, monkeypatch, systemd)
    assert found.units == (
        DependentUnit("kubelet.service", "Requires", UNIT),
        DependentUnit("soft.service", "Requisite", UNIT),
        DependentUnit("part.service", "PartOf", UNIT),
        DependentUnit("agent.service", "BindsTo", "kubelet.service"),
    )
    assert systemd.asked == [[UNIT], ["kubelet.service", "soft.service", "part.service"], ["agent.service"]]


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_a_unit_that_is_down_is_not_restarted_and_neither_is_what_depends_on_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    systemd = Systemd(
        {
            UNIT: {"RequiredBy": "down.service up.service"},
            "down.service": {"ActiveState": state, "RequiredBy": "behind.service"},
            "up.service": {"ActiveState": "activating"},
        }
    )
    assert impact(node, monkeypatch, systemd).units == (DependentUnit("up.service", "Requires", UNIT),)


def test_a_unit_that_only_a_stop_affects_is_not_named_as_restarted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd({UNIT: {"PropagatesStopTo": "b.service"}, "b.service": {"RequiredBy": "c.service"}})
    found = impact(node, monkeypatch, systemd)
    assert found.units == ()
    assert found.units_at_stop == (DependentUnit("b.service", "StopPropagatedFrom", UNIT),)


def test_without_systemd_its_units_are_unknown_and_not_none(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    found = impact(node, monkeypatch, None)
    assert (found.units, found.units_at_stop) == (None, None)
    assert f"systemd does not say which units depend on {UNIT}" in found.unknown


@pytest.mark.parametrize("output", [b"", b"ActiveState=active\n\nActiveState=active\n", b"Failed to connect to bus\n"])
def test_a_systemctl_that_answers_something_else_leaves_the_units_unknown(
    node: Node, monkeypatch: pytest.MonkeyPatch, output: bytes
) -> None:
    systemd = Systemd({})
    monkeypatch.setattr(systemd, "run", lambda _command, **_: CompletedProgram(0, output, ""))
    assert impact(node, monkeypatch, systemd).units is None


def test_a_systemctl_that_hangs_or_breaks_stops_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_command: list[str], **_: object) -> CompletedProgram:
        raise ProgramError("it did not end within 10 s")

    systemd = Systemd({})
    monkeypatch.setattr(systemd, "run", broken)
    assert impact(node, monkeypatch, systemd).units is None


def test_a_systemctl_that_may_not_be_looked_at_stops_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_command: list[str], **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    systemd = Systemd({})
    monkeypatch.setattr(systemd, "run", forbidden)
    found = impact(node, monkeypatch, systemd)
    assert found.units is None
    assert any("Permission denied" in why for why in found.unknown)


def test_a_chain_without_an_end_is_not_followed_for_ever(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"{number}.service": {"RequiredBy": f"{number + 1}.service"} for number in range(1000)}
    systemd = Systemd(many | {UNIT: {"RequiredBy": "0.service"}})
    found = impact(node, monkeypatch, systemd)
    assert found.units is None
    assert len(systemd.asked) < 250


def test_a_reload_that_is_no_restart_asks_systemd_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd({})
    found = impact(node, monkeypatch, systemd, Reload(ReloadMode.SIGNAL), containers_outlive_it=False)
    assert (found.restarts, found.containers_keep_running, found.units) == (False, True, ())
    assert systemd.asked == []


@pytest.mark.parametrize("keeps", [True, False, None])
def test_whether_containers_outlive_a_restart_is_what_the_engine_says(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, keeps: bool | None
) -> None:
    assert impact(node, monkeypatch, Systemd({}), containers_outlive_it=keeps).containers_keep_running is keeps


def test_an_engine_that_ends_at_a_signal_is_restarted_by_its_own_unit(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = Systemd({UNIT: {"RequiredBy": "kubelet.service"}})
    found = impact(node, monkeypatch, systemd, Reload(ReloadMode.SIGNAL, restarts=True))
    assert found.units == (DependentUnit("kubelet.service", "Requires", UNIT),)


def test_what_a_distribution_restarts_with_its_engine_is_unknown(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd({})
    found = impact(node, monkeypatch, systemd, Reload(ReloadMode.SIGNAL, watched_by="k0s"))
    assert (found.restarts, found.units, systemd.asked) == (True, None, [])


@pytest.mark.parametrize("unit, inside", [("k3s.service", True), (UNIT, False)])
def test_a_kubelet_that_runs_in_the_engines_unit_is_restarted_with_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, unit: str, *, inside: bool
) -> None:
    """microk8s has a unit for each: its containerd's has no kubelet in it."""
    server = Process(4194306, "k3s-server", "/usr/local/bin/k3s", (), 1.0, "k3s.service")
    monkeypatch.setattr(kubelet, "find_by_name", lambda _names: [server])
    monkeypatch.setattr(node, "is_home_of", lambda process: process is server)
    reload = Reload(ReloadMode.SYSTEMD, unit, restarts=True)
    assert impact(node, monkeypatch, Systemd({}), reload).kubelet_in_unit is inside


def test_the_containers_of_an_engine_that_ended_meanwhile_are_unknown(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = impact(node, monkeypatch, Systemd({}))
    assert (found.running, found.through_handlers) == (None, None)
    assert "the engine's process is not seen any more" in found.unknown
