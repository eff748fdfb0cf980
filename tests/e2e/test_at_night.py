"""Nodes that break at night: the first three lines of `status` have the cause, and the command that they give cures it.

Each is broken as it happens in the field, on a real engine below systemd.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.hosts import crio_unit, gpu_host
from tests.e2e.hosts.machine import CONFIG, CONFIGURATION, INSTALL_DIR
from tests.e2e.program import WAITING
from tests.support import driver_roots
from tests.support.built import go_tools

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.hosts.machine import Machine
    from tests.e2e.program import Program
    from tests.support.built.go_tools import Tool

DAEMON_JSON = "/etc/docker/daemon.json"
DOCKER = '{\n  "labels": ["rack=a1"],\n  "log-level":   "info"\n}\n'
OPTIONS = "--bridge=none --iptables=false --ip6tables=false --storage-driver=overlay2"
KUBELET = "/var/lib/kubelet/config.yaml"
BY_CGROUPFS = "kind: KubeletConfiguration\ncgroupDriver: cgroupfs\n"
RUNC = "/usr/sbin/runc"
REFRESH = "refresh` rebuilds it"
_POLL = 0.2
_SECONDS = 60


class Site:
    """A machine on which a run waits, with an engine of its distribution's."""

    def __init__(self, machine: Machine, engine: str, tool: Callable[[Tool], Path]) -> None:
        self.machine = machine
        self.engine = engine
        self.tool = tool
        self.run: Program | None = None
        self.said: list[str] = []
        self.config = DAEMON_JSON if engine == "docker" else CONFIG
        if engine == "docker":
            machine.host.path("/etc/default/docker").write_text(f'DOCKER_OPTS="{OPTIONS}"\n')
        machine.serve(engine, self.config, DOCKER if engine == "docker" else CONFIGURATION)

    @property
    def text(self) -> str:
        """The engine's file."""
        return self.machine.host.path(self.config).read_text()

    @text.setter
    def text(self, text: str) -> None:
        self.machine.host.path(self.config).write_text(text)

    def wait(self, *flags: object) -> Program:
        """Have a run install the toolkit, and wait."""
        self.run = self.machine.start("--runtime", self.engine, *flags)
        self.run.wait_for(WAITING)
        return self.run

    def refresh(self) -> None:
        """Have the waiting run look again."""
        code, said = self.machine.refresh()
        assert code == 0, said

    def shell(self, command: str) -> None:
        """Run a command of `status` on the machine, as an operator would."""
        self.machine.host.run("sh", "-c", command)

    def verdict(self) -> list[str]:
        """Return what `status` says now, which the cure goes by."""
        self.said = self.machine.verdict()
        return self.said

    def commands(self) -> list[str]:
        """Return the commands that the remedy of the first reason gave."""
        return re.findall(r"`([^`]+)`", self.said[2])

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what systemd, or the engine, does in its own time."""
        deadline = time.monotonic() + _SECONDS
        while not is_so():
            assert time.monotonic() < deadline, self.machine.verdict()
            time.sleep(_POLL)


@dataclasses.dataclass(frozen=True)
class Broken:
    """How a node breaks, what `status` is to say of it in its first lines, and what its remedy is carried out by."""

    engine: str
    breaks: Callable[[Site], object]
    cause: str
    remedy: str
    cure: Callable[[Site], object]
    waits: bool = True
    """A run waits on it before it breaks."""


def refreshed(site: Site) -> None:
    site.refresh()


def command_is_run(site: Site) -> None:
    """Run the one command of the remedy."""
    (command,) = site.commands()
    site.shell(command)


def change(site: Site, old: str, new: str) -> None:
    text = site.text
    assert old in text, text
    site.text = text.replace(old, new, 1)


# --- how they break ---


def driver_unloaded(site: Site) -> None:
    gpu_host.plug_in(site.machine.host)
    driver_roots.install(site.machine.host.path("/"), devices=False, works=False)


def nvidia_smi_hangs(site: Site) -> None:
    gpu_host.plug_in(site.machine.host)
    program = driver_roots.install(site.machine.host.path("/"), devices=False)
    program.write_text("#!/bin/sh\nexec sleep 600\n")


def driver_works(site: Site) -> None:
    """Do what `modprobe` and a reboot would."""
    driver_roots.install(site.machine.host.path("/"), devices=False)


def handler_deleted(site: Site) -> None:
    document = json.loads(site.text)
    del document["runtimes"]["nvidia"], document["default-runtime"]
    site.text = json.dumps(document, indent=2)


def toml_broken(site: Site) -> None:
    site.text += "root = = 1\n"
    site.machine.host.run("systemctl", "restart", "containerd", check=False)


def toml_mended(site: Site) -> None:
    change(site, "root = = 1\n", "")
    command_is_run(site)


def comma_added(site: Site) -> None:
    change(site, '["rack=a1"],', '["rack=a1",],')


def comma_removed(site: Site) -> None:
    change(site, '["rack=a1",],', '["rack=a1"],')


def unit_masked(site: Site) -> None:
    site.machine.host.run("systemctl", "mask", "--now", "docker")


def engine_stopped(site: Site) -> None:
    site.machine.host.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "docker")


def peer_configured(site: Site) -> None:
    program = site.tool(go_tools.TOOLKIT) / "nvidia-ctk"
    shutil.copy2(program, site.machine.host.path("/usr/local/bin/nvidia-ctk"))
    site.machine.host.run("/usr/local/bin/nvidia-ctk", "runtime", "configure", "--runtime=docker")
    site.machine.host.run("systemctl", "restart", "docker")


def receipt_deleted(site: Site) -> None:
    site.machine.host.path(f"{INSTALL_DIR}/.toolkit-installer/receipt.json").unlink()


def half_killed(site: Site) -> None:
    run = site.machine.start("--runtime", site.engine)
    run.wait_for("Reloading the engine")
    run.send(signal.SIGKILL)
    run.finish()
    site.machine.wait_until_settled()


def run_again(site: Site) -> None:
    code, output = site.machine.run("--runtime", site.engine)
    assert code == 0, output


def engine_upgraded(site: Site) -> None:
    """Put a newer containerd in its place, with the file of its package, as an upgrade does that was told to."""
    new = site.machine.host.path("/usr/bin/containerd.new")
    shutil.copy2(site.tool(go_tools.CONTAINERD) / "containerd", new)
    new.rename(site.machine.host.path("/usr/bin/containerd"))
    site.text = CONFIGURATION
    site.machine.host.run("systemctl", "restart", "containerd")


def runc_renamed(site: Site) -> None:
    site.machine.host.path(RUNC).rename(site.machine.host.path(f"{RUNC}.old"))


def runc_put_back(site: Site) -> None:
    site.machine.host.path(f"{RUNC}.old").rename(site.machine.host.path(RUNC))


def kubelet_by_cgroupfs(site: Site) -> None:
    """Have a process that is called like a kubelet, and was started like one."""
    host = site.machine.host
    shutil.copy2(host.path("/usr/bin/dash"), host.path("/usr/bin/kubelet"))
    host.path(KUBELET).parent.mkdir(parents=True, exist_ok=True)
    host.path(KUBELET).write_text(BY_CGROUPFS)
    flags = f"--config={KUBELET} --container-runtime-endpoint=unix:///run/containerd/containerd.sock"
    unit = f"[Service]\nExecStart=/usr/bin/kubelet -c 'while :; do sleep 1000; done' {flags}\n"
    host.path("/etc/systemd/system/kubelet.service").write_text(unit)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "start", "kubelet")


def kubelet_by_systemd(site: Site) -> None:
    site.machine.host.path(KUBELET).write_text(BY_CGROUPFS.replace("cgroupfs", "systemd"))
    command_is_run(site)


def second_installer(site: Site) -> None:
    host = site.machine.host
    shutil.copy2(site.tool(go_tools.PEER) / "nvidia-ctk-installer", host.path("/usr/local/bin/nvidia-ctk-installer"))
    flags = (
        *("--runtime=docker", "--restart-mode=none", "--config=/run/other.json", "--driver-root=/"),
        *("--pid-file=/run/elsewhere/toolkit.pid", f"--toolkit-install-dir={INSTALL_DIR}"),
        f"--toolkit-source-root={site.machine.payload}",
    )
    host.path("/run/elsewhere").mkdir()
    host.run("systemd-run", "--unit=other", "/usr/local/bin/nvidia-ctk-installer", *flags)
    site.wait_until(lambda: "Waiting for signal" in host.journal("other"))


def second_ended(site: Site) -> None:
    pid = re.search(r"PID (\d+)", site.said[1])
    assert pid is not None
    site.shell(f"kill {pid[1]}")
    site.wait_until(lambda: not site.machine.active("other"))
    site.refresh()


NODES = {
    "driver-unloaded": Broken(
        "docker", driver_unloaded, "couldn't communicate with the NVIDIA driver", "`modprobe nvidia`", driver_works
    ),
    "nvidia-smi-hangs": Broken("docker", nvidia_smi_hangs, "nvidia-smi hangs", "needs a reboot", driver_works),
    "handler-deleted": Broken(
        "docker", handler_deleted, "the handler nvidia is gone", "puts the handlers back", refreshed
    ),
    "toml-broken": Broken(
        "containerd", toml_broken, "not valid TOML: Invalid value (column 8)", "`systemctl restart", toml_mended
    ),
    "trailing-comma": Broken(
        "docker", comma_added, 'not valid JSON: a comma before "]" (column', "remove the comma", comma_removed
    ),
    "default-changed": Broken(
        "docker",
        lambda site: change(site, '"default-runtime": "nvidia"', '"default-runtime": "runc"'),
        "the default runtime is no longer nvidia",
        "puts the handlers back",
        refreshed,
    ),
    "unit-masked": Broken(
        "docker", unit_masked, "docker.service is masked", "`systemctl unmask docker.service", command_is_run
    ),
    "engine-stopped": Broken("docker", engine_stopped, "is stopped (SIGSTOP)", "`kill -CONT", command_is_run),
    "peer-configured": Broken(
        "docker", peer_configured, "the handler nvidia was changed", "puts the handlers back", refreshed
    ),
    "receipt-deleted": Broken("docker", receipt_deleted, "receipt.json is gone", REFRESH, refreshed),
    "half-killed": Broken(
        "containerd", half_killed, "a run was killed", "`toolkit-installer run` finishes", run_again, waits=False
    ),
    "engine-upgraded": Broken(
        "containerd", engine_upgraded, "the handler nvidia is gone", "puts the handlers back", refreshed
    ),
    "runc-renamed": Broken(
        "containerd",
        runc_renamed,
        f"its low-level runtime {RUNC} is not there: no container starts",
        "install it again",
        runc_put_back,
    ),
    "cgroup-drivers": Broken(
        "containerd",
        kubelet_by_cgroupfs,
        f"the kubelet's cgroup driver is cgroupfs (in {KUBELET}), and that of ",
        "`systemctl restart kubelet`",
        kubelet_by_systemd,
    ),
    "two-instances": Broken(
        "docker", second_installer, "another installer is at work on this node", "`kill` its PID", second_ended
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_the_cause_comes_first_and_its_remedy_cures(
    machine: Machine, go_tool: Callable[[Tool], Path], name: str
) -> None:
    node = NODES[name]
    site = Site(machine, node.engine, go_tool)
    if node.waits:
        site.wait()
    node.breaks(site)
    said = site.verdict()
    assert said[0] in ("Verdict: BROKEN", "Verdict: DEGRADED"), said
    assert node.cause in said[1], "\n".join(said)
    assert node.remedy in said[2], "\n".join(said)
    node.cure(site)
    site.wait_until(lambda: machine.verdict()[0].startswith("Verdict: OK"))


def test_a_broken_drop_in_of_crio_is_named(machine: Machine, go_tool: Callable[[Tool], Path]) -> None:
    crio_unit.bring(machine.host, go_tool(go_tools.CRIO))
    machine.serve("crio", crio_unit.CONFIG, crio_unit.CONFIGURATION)
    machine.start("--runtime", "crio").wait_for(WAITING)
    site = machine.host.path("/etc/crio/crio.conf.d/50-site.conf")
    site.write_text("[crio.runtime]\nlog_level = = 'info'\n")
    machine.host.run("systemctl", "restart", "crio", check=False)
    verdict, cause, remedy, *_ = machine.verdict()
    assert verdict == "Verdict: BROKEN"
    assert "crio: /etc/crio/crio.conf.d/50-site.conf:2: not valid TOML: Invalid value (column 13)" in cause
    assert "then `systemctl restart crio.service`" in remedy
    site.write_text("[crio.runtime]\nlog_level = 'info'\n")
    machine.host.run("systemctl", "restart", "crio.service")
    assert machine.verdict()[0].startswith("Verdict: OK")


def test_a_failed_unit_is_named_with_its_own_words(machine: Machine, go_tool: Callable[[Tool], Path]) -> None:
    site = Site(machine, "docker", go_tool)
    site.wait()
    machine.override("docker", "ExecStartPre=/bin/sh -c 'echo the disk is gone >&2; exit 9'", "Restart=no")
    machine.host.run("systemctl", "restart", "docker", check=False)
    said = site.verdict()
    assert "docker does not run: docker.service has failed (exit-code); its log says: " in said[1]
    assert "the disk is gone" in said[1]
    assert any("its configuration: it can be parsed" in line for line in said)
    machine.undo_override("docker")
    site.shell(site.commands()[-1])
    site.wait_until(lambda: machine.verdict()[0].startswith("Verdict: OK"))


def test_a_repair_that_failed_is_forgotten_once_its_cause_is_gone(
    machine: Machine, go_tool: Callable[[Tool], Path]
) -> None:
    site = Site(machine, "containerd", go_tool)
    run = site.wait("--on-drift", "repair")
    good = site.text
    site.text = good + "root = = 1\n"
    run.wait_for("Could not converge", within=90)
    assert any("could not do its work" in line for line in machine.verdict())
    site.text = good
    machine.host.run("systemctl", "restart", "containerd")
    assert machine.verdict()[0].startswith("Verdict: OK"), "it is looked at again when it is asked"
    run.wait_for("Trying again what failed", within=90)


def test_a_key_that_docker_does_not_know_is_named_by_docker_itself(
    newest_machine: Machine, go_tool: Callable[[Tool], Path]
) -> None:
    site = Site(newest_machine, "docker", go_tool)
    site.wait()
    change(site, '"labels"', '"lables"')
    verdict, cause, remedy, *others = site.verdict()
    assert verdict == "Verdict: BROKEN"
    assert f"BROKEN: docker: {DAEMON_JSON}: refused by docker's own program: " in cause
    assert "lables" in cause
    assert "docker cannot start with it" in cause
    assert "correct what it names" in remedy
    assert not [line for line in others if "changed by somebody else" in line and "DEGRADED" in line]
    change(site, '"lables"', '"labels"')
    site.wait_until(lambda: newest_machine.verdict()[0].startswith("Verdict: OK"))
