"""Pods that a live CRI-O has started through our handlers: what becomes of them, and of a cleanup while they exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of, traces_of_writing
from tests.e2e.program import WAITING, Installer
from tests.support.engines.containers import ContainerError, PodContainers
from toolkit_installer.applying import impact
from toolkit_installer.applying.impact import RunningContainers
from toolkit_installer.engines.api import Inspection, LiveState
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.engines.crio import CrioEngine

OWN = {"runc", "crun"}
_FORGOTTEN = "failed to find runtime handler nvidia"


@pytest.fixture
def pods(crio: CrioEngine, cgroup: str) -> Iterator[PodContainers]:
    with PodContainers(crio, cgroup) as containers:
        yield containers


@pytest.fixture
def flags(crio: CrioEngine, folder: Path, payload: Path) -> list[object]:
    """Return the flags of every run; the restart is this test's business."""
    return [
        *("--runtime", "crio", "--config", crio.config, "--socket", crio.socket, "--restart-mode", "none"),
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


@pytest.mark.parametrize("completed", [False, True], ids=["running", "completed"])
def test_crio_neither_stops_nor_deletes_a_pod_whose_handler_it_has_forgotten(
    crio: CrioEngine, pods: PodContainers, *, completed: bool
) -> None:
    """This is why a cleanup is refused: it is CRI-O's own way, whoever takes the handler back."""
    handler = crio.drop_ins / "50-theirs.conf"
    handler.write_text(
        '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/sbin/runc"\nmonitor_path = "/usr/bin/conmon"\n'
    )
    crio.restart()
    pods.start("cuda", "nvidia")
    if completed:
        pods.stop("cuda")
    text = handler.read_text()
    handler.unlink()
    crio.restart()
    with pytest.raises(ContainerError, match=_FORGOTTEN):
        pods.delete("cuda")
    handler.write_text(text)
    crio.restart()
    # without a container it needs the handler no more
    pods.end("cuda")
    handler.unlink()
    crio.restart()
    pods.remove("cuda")


def test_pods_of_our_handlers_are_named_by_their_conmons_and_others_are_counted(
    crio: CrioEngine, installer: Installer, flags: list[object], folder: Path, pods: PodContainers
) -> None:
    """For what a restart touches. This CRI-O is in no unit, so no run would restart it: the look itself is called.

    Without a kubelet nobody has told CRI-O the labels that name a pod: its container's ID is shown.
    """
    run = installer.start("toolkit-installer", "run", *flags, "--no-daemon")
    assert run.finish() == 0, run.output
    crio.restart()
    identity = pods.start("cuda", "nvidia")
    for name, handler in {"completed": "nvidia-cdi", "other": "runc"}.items():
        pods.start(name, handler)
    pods.stop("completed")
    live = LiveState("", {}, None, processes.inspect_process(crio.pid))
    inspection = Inspection(str(crio.socket), (), live)
    found = impact.find_running_containers(Node("/"), EngineName.CRIO, inspection, str(folder / "nvidia" / "toolkit"))
    assert found == RunningContainers(2, 1, (identity[:12],))
    for name in ("cuda", "completed", "other"):
        pods.end(name)
        pods.remove(name)


def test_cleanup_is_refused_while_pods_need_a_handler_and_finishes_after_them(
    crio: CrioEngine, installer: Installer, flags: list[object], folder: Path, pods: PodContainers
) -> None:
    before = state_of(crio.config)
    run = installer.start("toolkit-installer", "run", *flags)
    run.wait_for(WAITING)
    crio.restart()
    for name, handler in {"running": "nvidia", "completed": "nvidia-cdi", "other": "runc", "ordinary": ""}.items():
        pods.start(name, handler)
    pods.stop("completed")
    traces = traces_of_writing(crio.config, crio.drop_ins, folder / "nvidia")

    assert run.terminate() == 3, run.output
    assert "test/completed, test/running" in run.output
    assert "test/o" not in run.output
    assert traces_of_writing(crio.config, crio.drop_ins, folder / "nvidia") == traces
    crio.restart()
    assert pods.enter("running") == "busybox"
    # a kubelet leaves what remains of a deleted pod to be removed a minute later
    for name in ("running", "completed"):
        pods.end(name)

    uninstall = installer.start("toolkit-installer", "uninstall", *flags)
    assert uninstall.finish() == 0, uninstall.output
    assert state_of(crio.config) == before
    crio.restart()
    assert crio.handlers().keys() == OWN
    for name in ("running", "completed"):
        pods.remove(name)
    for name in ("other", "ordinary"):
        assert pods.enter(name) == "busybox"
        pods.stop(name)
        pods.delete(name)
