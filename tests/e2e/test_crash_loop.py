"""An engine that comes up with its new configuration, answers, and crashes, over and over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.hosts.machine import CONFIG, CONFIGURATION, INSTALL_DIR

if TYPE_CHECKING:
    from tests.e2e.hosts.machine import Machine

# it is up before this runs, and answers a moment later; what it starts is in the unit's own cgroup
ANSWERS = "until [ -S /run/containerd/containerd.sock ]; do sleep 0.05; done"
DIES = (
    "ExecStartPost=/bin/sh -c 'if grep -rqs nvidia /etc/containerd; then "
    f"( {ANSWERS}; sleep 0.3; kill -9 $MAINPID ) >/dev/null 2>&1 & fi'"
)


def test_an_engine_that_answers_but_crashes_fails_the_run_and_is_rolled_back(machine: Machine) -> None:
    machine.override("containerd", DIES, "Restart=always", "RestartSec=200ms", name="dies")
    machine.override("containerd", "StartLimitIntervalSec=0", name="limit", section="Unit")
    before = machine.serve("containerd", CONFIG, CONFIGURATION)
    code, output = machine.run("--reload-timeout", 20)
    assert code == 5, output
    # on a slow machine it may end before its first answer each time
    assert "it answers, and ends again and again" in output or "waited 20 s" in output
    assert machine.state(CONFIG) == before
    assert machine.handlers() == {"runc"}
    assert not machine.exists(INSTALL_DIR)
