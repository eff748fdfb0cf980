"""containerd under systemd: how often it is restarted, and what becomes of it when its unit does not play along."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts.machine import CONFIG, CONFIGURATION, HANDLERS, INSTALL_DIR
from tests.e2e.program import WAITING

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

UNIT = "containerd"
IDLE = "Nothing to do"
REFUSING = f"ExecStartPre=/bin/sh -c '! grep -q nvidia {CONFIG} || {{ echo the policy forbids nvidia >&2; exit 9; }}'"

RESTARTED = {"needs", "part", "behind"}
"""The units of a test that systemd restarts with containerd."""


def test_containerd_is_restarted_once_for_install_and_never_for_a_run_after_it(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    first = machine.start("--cleanup", "never")  # and without --restart-mode: by systemd, then
    first.wait_for(WAITING)
    assert machine.starts(UNIT) == 2
    assert machine.host.property(UNIT, "NRestarts") == "0", "it was not systemd that was asked"
    assert machine.handlers() == {"runc"} | HANDLERS
    installed = machine.state(CONFIG)
    assert first.terminate() == 0, first.output

    pid = machine.host.property(UNIT, "MainPID")
    code, output = machine.run()
    assert code == 0, output
    assert IDLE in output
    again = machine.start("--cleanup", "never")
    again.wait_for(WAITING)
    assert IDLE in again.output
    assert again.terminate() == 0, again.output
    assert machine.host.property(UNIT, "MainPID") == pid
    assert machine.starts(UNIT) == 2
    assert machine.state(CONFIG) == installed

    code, output = machine.uninstall()
    assert code == 0, output
    assert machine.starts(UNIT) == 3
    assert machine.state(CONFIG) == before
    assert machine.handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)


def test_the_units_that_a_restart_takes_along_are_named_before_and_restarted_then(machine: Machine) -> None:
    machine.serve(UNIT, CONFIG, CONFIGURATION)
    settings = {
        "needs": "Requires=containerd.service",
        "part": "PartOf=containerd.service",
        "behind": "BindsTo=needs.service",
        "stops": "StopPropagatedFrom=containerd.service",
        "wants": "Wants=containerd.service",
        "down": "Requires=containerd.service",
    }
    for name, setting in settings.items():
        text = f"[Unit]\n{setting}\n[Service]\nExecStart=/usr/bin/sleep infinity\n"
        machine.host.path(f"/etc/systemd/system/{name}.service").write_text(text)
    machine.host.run("systemctl", "daemon-reload")
    machine.host.run("systemctl", "start", *(name for name in settings if name != "down"))
    before = {name: machine.host.property(name, "InvocationID") for name in settings}

    text, planned = machine.plan()
    (engine,) = planned["engines"]
    impact = engine["impact"]
    assert {each["name"]: f"{each['setting']}={each['of']}" for each in impact["units"]} == {
        f"{name}.service": settings[name] for name in RESTARTED
    }
    assert [each["name"] for each in impact["units_at_stop"]] == ["stops.service"]
    assert "With it systemd restarts needs.service (Requires=containerd.service), " in text
    assert "containerd is restarted, and its containers keep running." in text
    assert (impact["running"], impact["through_handlers"], impact["unknown"]) == (0, 0, [])
    assert machine.starts(UNIT) == 1, "a plan changes nothing"

    code, output = machine.run()
    assert code == 0, output
    assert output.index("event=reload-impact") < output.index("event=reloading ")
    assert 'units="needs.service,part.service,behind.service"' in output
    restarted = {name for name in settings if machine.host.property(name, "InvocationID") != before[name]}
    assert restarted == RESTARTED
    assert not machine.active("down")


def test_a_unit_that_refuses_the_new_file_is_rolled_back_and_its_message_reported(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    machine.override(UNIT, REFUSING)
    code, output = machine.run()
    assert code == 5, output
    assert "the policy forbids nvidia" in output.replace("\n", " ")
    assert machine.state(CONFIG) == before
    assert machine.active(UNIT)
    assert machine.handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)


def test_a_unit_that_hangs_over_the_new_file_gets_the_old_one_back_in_time(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    machine.override(UNIT, f"ExecStartPre=/bin/sh -c '! grep -q nvidia {CONFIG} || exec sleep infinity'")
    code, output = machine.run("--reload-timeout", 5)
    assert code == 5, output
    assert "did not end within 5 s" in output
    assert machine.state(CONFIG) == before
    assert machine.active(UNIT)
    assert machine.handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)


def test_a_unit_that_never_comes_back_has_the_old_file_and_the_next_run_finishes(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    machine.override(UNIT, "ExecStartPre=/bin/sh -c 'echo the disk is gone >&2; exit 9'")
    code, output = machine.run("--reload-timeout", 2)
    assert code == 6, output
    assert "DOES NOT COME BACK" in output
    assert "the disk is gone" in output
    assert machine.state(CONFIG) == before
    assert not machine.active(UNIT)

    machine.undo_override(UNIT)
    machine.host.run("systemctl", "reset-failed", UNIT)
    machine.host.run("systemctl", "start", UNIT)
    assert machine.handlers() == {"runc"}
    code, output = machine.run()
    assert code == 0, output
    assert machine.handlers() == {"runc"} | HANDLERS
    code, output = machine.uninstall()
    assert code == 0, output
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)


def test_a_unit_that_was_started_too_often_already_is_restarted_all_the_same(machine: Machine) -> None:
    machine.serve(UNIT, CONFIG, CONFIGURATION)
    machine.override(UNIT, "StartLimitBurst=1", "StartLimitIntervalSec=600", name="limit", section="Unit")
    machine.host.run("systemctl", "reset-failed", UNIT)
    machine.host.run("systemctl", "restart", UNIT)  # the one that is allowed
    code, output = machine.run()
    assert code == 0, output
    assert machine.handlers() == {"runc"} | HANDLERS
    refused = machine.host.run("systemctl", "restart", UNIT, check=False)
    assert refused.returncode, "systemd has no such limit, and this test proves nothing"
    assert machine.host.property(UNIT, "Result") == "start-limit-hit"


def test_a_unit_that_hits_its_start_limit_is_started_with_the_old_file(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    machine.override(UNIT, "StartLimitBurst=1", "StartLimitIntervalSec=600", name="limit", section="Unit")
    machine.override(UNIT, REFUSING)
    code, output = machine.run()
    assert code == 5, output
    assert machine.active(UNIT)
    assert machine.handlers() == {"runc"}
    assert machine.state(CONFIG) == before


def test_a_crash_looping_installer_does_not_restart_containerd_beyond_its_budget(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    budget = ("--reload-budget", "2/600")
    killed = machine.start(*budget)
    killed.wait_for(WAITING)
    killed.send(signal.SIGKILL)
    assert killed.finish() == -signal.SIGKILL
    run = machine.start(*budget)
    run.wait_for(WAITING)
    assert IDLE in run.output
    assert run.terminate() == 0, run.output
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)
    assert machine.starts(UNIT) == 3, "one for installing, one for cleaning up"
    # the second reload for installing is the last one, and taking it back is another that is not refused
    machine.override(UNIT, REFUSING)
    code, output = machine.run(*budget)
    assert code == 5, output
    assert machine.state(CONFIG) == before
    machine.undo_override(UNIT)

    starts = machine.starts(UNIT)
    for _ in range(2):
        code, output = machine.run(*budget)
        assert code == 3, output
        assert "reloaded 2 times" in output
        assert machine.uninstall()[0] == 0
    assert machine.starts(UNIT) == starts
    assert machine.active(UNIT)
    assert machine.state(CONFIG) == before
    assert not machine.exists(INSTALL_DIR)


def test_an_installer_killed_at_each_reload_is_stopped_by_the_budget(
    machine: Machine,
) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    for count in range(1, 4):
        run = machine.start()
        run.wait_for("Reloading the engine")
        run.send(signal.SIGKILL)
        assert run.finish() == -signal.SIGKILL
        machine.wait_until_active(UNIT)
        assert machine.starts(UNIT) <= 1 + count
    machine.wait_until_settled()
    starts = machine.starts(UNIT)
    code, output = machine.run()
    assert code == 3, output
    assert "reloaded 3 times" in output
    assert machine.starts(UNIT) == starts

    code, output = machine.uninstall()
    assert code == 0, output
    assert machine.state(CONFIG) == before
    assert machine.handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)


def test_an_installer_that_stops_at_each_restart_of_containerd_finds_its_work_done(machine: Machine) -> None:
    machine.serve(UNIT, CONFIG, CONFIGURATION)
    machine.run_as_unit("--cleanup", "never", with_unit=UNIT)
    deadline = time.monotonic() + 60
    while (journal := machine.host.journal("installer")).count(WAITING) < 1 or IDLE not in journal:
        assert time.monotonic() < deadline, journal
        time.sleep(0.05)
    assert "Starting" in journal.partition("The node is configured")[2], "it was not stopped and started again"
    assert machine.starts(UNIT) == 2
    assert machine.handlers() == {"runc"} | HANDLERS
    assert machine.active("installer")


@pytest.mark.parametrize(
    "flags, restarts, itself",
    [
        pytest.param(("--restart-mode", "systemd"), 1, 0, id="systemd"),
        pytest.param(("--restart-mode", "signal"), 1, 1, id="signal"),
        pytest.param(("--restart-mode", "none"), 0, 0, id="none"),
    ],
)
def test_containerd_is_restarted_as_the_restart_mode_says(
    machine: Machine, flags: tuple[str, ...], restarts: int, itself: int
) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    run = machine.start(*flags)
    run.wait_for(WAITING)
    assert machine.starts(UNIT) == 1 + restarts
    assert machine.host.property(UNIT, "NRestarts") == str(itself), "who started it?"
    assert machine.handlers() == ({"runc"} | HANDLERS if restarts else {"runc"})
    if not restarts:
        assert "was not reloaded" in run.output
        machine.host.run("systemctl", "restart", UNIT)
        assert machine.handlers() == {"runc"} | HANDLERS

    assert run.terminate() == 0, run.output
    assert machine.state(CONFIG) == before
    assert machine.handlers() == ({"runc"} if restarts else {"runc"} | HANDLERS)
    if not restarts:  # until somebody restarts it, it starts containers through them
        assert "containerd still offers the handler nvidia" in run.output
        assert machine.exists(INSTALL_DIR)
        machine.host.run("systemctl", "restart", UNIT)
        assert machine.uninstall()[0] == 0
    assert not machine.exists(INSTALL_DIR)


def test_a_containerd_that_dies_of_the_signal_asked_for_is_started_again(machine: Machine) -> None:
    before = machine.serve(UNIT, CONFIG, CONFIGURATION)
    machine.override(UNIT, "Restart=on-failure")  # to systemd, to die of SIGHUP is a clean end
    code, output = machine.run("--restart-mode", "signal", "--reload-timeout", 3)
    assert "it may stay down" in output
    assert machine.active(UNIT), output
    assert code == 5, output
    assert machine.state(CONFIG) == before
    assert machine.handlers() == {"runc"}


@pytest.mark.parametrize("text", [None, "version = 2\n"], ids=["absent", "bare"])
def test_a_containerd_that_has_nothing_but_its_defaults_is_configured(machine: Machine, text: str | None) -> None:
    before = machine.serve(UNIT, CONFIG, text)
    code, output = machine.run()
    assert code == 0, output
    assert machine.handlers() == {"runc"} | HANDLERS
    assert machine.uninstall()[0] == 0
    assert machine.state(CONFIG) == before
