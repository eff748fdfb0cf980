"""`run --enable-nri-plugin` on live engines: devices arrive by annotation, and the engine is as it was, to the byte.

containerd 1.7.24, and CRI-O 1.34.0 as Go's module proxy has it, would leave the devices out: there it refuses.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.file_states import state_of
from tests.e2e.nri.made import DOMAIN, devices, nri
from tests.e2e.program import WAITING, Installer, Program
from tests.support.built import go_tools
from tests.support.built.releases import Suite
from tests.support.engines.containers import ContainerError, PodContainers
from tests.support.engines.crio import CrioEngine
from tests.support.engines.daemons import ContainerdEngine

GPU = {DOMAIN: "example.com/gpu=0"}
HAS_GPU = ["0=example.com/gpu"]
ALL = {DOMAIN: "management.nvidia.com/gpu=all"}
CONNECTED = "event=nri-connected"
NEWER = pytest.mark.parametrize("containerd", [None, Suite.SID], indirect=True)


def started(
    installer: Installer, engine: ContainerdEngine | CrioEngine, payload: Path, *more: object, name: str = ""
) -> Program:
    """Start a run that serves the plugin."""
    command = [name] if name else ["toolkit-installer", "run"]
    return installer.start(
        *command,
        *("--enable-nri-plugin", "--nri-namespace", "gpu-operator", "--nri-socket", nri(engine)),
        *("--toolkit-install-dir", engine.folder.parent / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", engine.folder.parent / "pid" / "toolkit.pid", "--log-format", "logfmt", *more),
    )


def waiting(installer: Installer, engine: ContainerdEngine | CrioEngine, payload: Path, *more: object) -> Program:
    run = started(installer, engine, payload, *more)
    run.wait_for(WAITING)
    return run


def processes(run: Program) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]


def disappear(path: Path) -> None:
    """Wait until there is no such file."""
    deadline = time.monotonic() + 60
    while path.exists():
        assert time.monotonic() < deadline, f"{path} stays"
        time.sleep(0.02)


@NEWER
def test_a_device_arrives_by_annotation_and_the_engine_is_as_it_was(
    containerd: ContainerdEngine, pods: PodContainers, installer: Installer, payload: Path, folder: Path
) -> None:
    before, pid = state_of(containerd.config), containerd.pid
    run = waiting(installer, containerd, payload)
    pods.start("plain", "")
    assert devices(pods, "plain") == []
    pods.start("asks", "", of_pod=GPU)
    assert devices(pods, "asks") == HAS_GPU
    run.wait_for("event=nri-granted container=test/asks/asks")
    assert (folder / "nvidia/toolkit/nvidia-ctk").exists()
    assert sorted(containerd.handlers()) == ["runc"]
    assert run.terminate() == 0, run.output
    assert not (folder / "nvidia").exists()
    assert not (folder / "pid").exists()
    assert state_of(containerd.config) == before
    assert (containerd.alive(), containerd.pid, containerd.starts) == (True, pid, 1)
    pods.start("late", "", of_pod=GPU)
    assert devices(pods, "late") == []


@NEWER
def test_who_may_not_have_management_devices_is_refused(
    containerd: ContainerdEngine, pods: PodContainers, installer: Installer, payload: Path
) -> None:
    run = waiting(installer, containerd, payload)
    with pytest.raises(ContainerError, match="only pods in these namespaces may have: gpu-operator"):
        pods.start("thief", "", of_pod=ALL)
    run.wait_for("event=nri-refused container=test/thief/thief")
    pods.start("operand", "", of_pod=ALL, namespace="gpu-operator")
    assert devices(pods, "operand") == ["all=management.nvidia.com/gpu"]
    assert run.terminate() == 0


def test_under_an_old_name_it_starts_without(
    containerd: ContainerdEngine, pods: PodContainers, installer: Installer, payload: Path
) -> None:
    run = started(installer, containerd, payload, "--runtime", "containerd", name="nvidia-ctk-installer")
    run.wait_for(WAITING)
    pods.start("thief", "", of_pod=ALL)
    assert devices(pods, "thief") == []
    run.wait_for("event=nri-withheld")
    assert run.terminate() == 0


@NEWER
def test_a_restarted_engine_is_served_again_and_a_killed_process_is_replaced(
    containerd: ContainerdEngine, pods: PodContainers, installer: Installer, payload: Path, folder: Path
) -> None:
    ready = folder / "ready"
    run = waiting(installer, containerd, payload, "--ready-file", ready)
    run.wait_for("event=ready ")
    for number, how in enumerate(("stopped", "killed"), 2):
        (containerd.stop if how == "stopped" else containerd.kill)()
        run.wait_for("event=not-ready-plugin", times=number - 1)
        disappear(ready)  # it says so first
        containerd.start()
        run.wait_for(CONNECTED, times=number)
        run.wait_for("event=ready ", times=number)
        pods.start(how, "", of_pod=GPU)
        assert devices(pods, how) == HAS_GPU
    (process,) = processes(run)
    os.kill(process, signal.SIGKILL)
    run.wait_for("event=nri-served-again")
    run.wait_for(CONNECTED, times=4)
    pods.start("again", "", of_pod=GPU)
    assert devices(pods, "again") == HAS_GPU
    assert run.terminate() == 0


def test_a_run_that_is_killed_leaves_no_plugin_and_the_next_serves_one(
    containerd: ContainerdEngine, pods: PodContainers, installer: Installer, payload: Path, folder: Path
) -> None:
    run = waiting(installer, containerd, payload)
    (process,) = processes(run)
    run.send(signal.SIGKILL)
    run.finish()
    disappear(Path(f"/proc/{process}"))
    pods.start("between", "", of_pod=GPU)
    assert devices(pods, "between") == []
    again = waiting(installer, containerd, payload)
    pods.start("after", "", of_pod=GPU)
    assert devices(pods, "after") == HAS_GPU
    assert again.terminate() == 0
    assert not (folder / "nvidia").exists()


def test_none_of_a_hundred_containers_is_missed_while_nobody_reads_the_log(
    containerd: ContainerdEngine, pods: PodContainers, installer: Installer, payload: Path
) -> None:
    run = waiting(installer, containerd, payload)
    for container in pods.create_many("crowd", 100, GPU, at_once=8):
        assert "HAS_0=example.com/gpu" in pods.specification(container)["process"]["env"]
    run.wait_for("event=nri-granted", times=100)
    assert run.terminate() == 0


def test_without_nri_in_the_engine_nothing_is_written(
    containerd: ContainerdEngine, installer: Installer, payload: Path, folder: Path
) -> None:
    nri(containerd).unlink()
    assert refused(installer, containerd, payload, folder) == ""


def refused(installer: Installer, engine: ContainerdEngine | CrioEngine, payload: Path, folder: Path) -> str:
    """Return what a run says that ends with 3, and has written nothing."""
    before = state_of(engine.config)
    run = started(installer, engine, payload)
    assert run.finish() == 3, run.output
    assert not (folder / "nvidia").exists()
    assert state_of(engine.config) == before
    assert engine.starts == 1
    assert str(nri(engine)) in run.output or "nothing was changed" in run.output
    return next((line for line in run.output.splitlines() if "leaves the CDI devices out" in line), "")


@pytest.mark.parametrize(
    "containerd, version",
    [(Suite.TRIXIE, "1.7.24"), (go_tools.CONTAINERD_2_0, "2.0.5")],
    indirect=["containerd"],
    ids=["1.7", "2.0"],
)
def test_a_containerd_that_leaves_the_devices_out_is_refused(
    containerd: ContainerdEngine, version: str, installer: Installer, payload: Path, folder: Path
) -> None:
    said = refused(installer, containerd, payload, folder)
    assert f"containerd {version}" in said
    assert "1.7.30 or 2.1.0" in said


def test_a_crio_that_leaves_the_devices_out_is_refused(
    crio: CrioEngine, installer: Installer, payload: Path, folder: Path
) -> None:
    said = refused(installer, crio, payload, folder)
    assert "cri-o 1.34.0" in said
    assert "CRI-O 1.34.1 or later" in said
