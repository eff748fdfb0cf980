"""The harness of CRI-O alone: were it wrong, every other test of it would prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.engines import leftovers
from tests.support.engines.containers import ContainerError, PodContainers
from tests.support.engines.daemons import EngineError

if TYPE_CHECKING:
    from tests.support.engines.crio import CrioEngine

pytestmark = pytest.mark.alone

GLOBAL = (
    *("/etc/crio", "/etc/containers", "/etc/cni", "/etc/nri", "/etc/sysconfig", "/opt", "/run"),
    *("/usr/share/containers", "/var/lib/containers", "/var/lib/crio", "/var/lib/cni", "/var/log/crio"),
)


def traces() -> set[str]:
    """Whatever CRI-O could leave outside of its folder."""
    found = {str(path) for root in GLOBAL for path in (Path(root), *Path(root).rglob("*")) if path.exists()}
    top = Path("/sys/fs/cgroup")
    return found | {str(path) for path in (*top.glob("*/"), *top.glob("*/*/"))}


def monitors(engine: CrioEngine) -> list[psutil.Process]:
    return [process for process in leftovers.processes_of(engine.folder) if process.name() == "conmon"]


def test_crio_tells_its_handlers_and_reads_its_files_anew_at_a_restart(crio: CrioEngine) -> None:
    assert crio.handlers() == {"runc": "/usr/sbin/runc", "crun": "/usr/bin/crun"}
    assert crio.default_handler() == "runc"
    pid = crio.pid
    table = "crio.runtime.runtimes.other"
    (crio.drop_ins / "10-other.conf").write_text(f'[{table}]\nruntime_path = "/usr/bin/crun"\nruntime_type = "oci"\n')
    assert "other" not in crio.handlers()
    crio.restart()
    assert crio.handlers()["other"] == "/usr/bin/crun"
    assert crio.pid != pid
    assert crio.starts == 2


def test_crio_with_a_broken_file_says_why_it_did_not_start(crio: CrioEngine) -> None:
    crio.stop()
    crio.config.write_text("[")
    with pytest.raises(EngineError, match=r"(?s)exited 1 at its start:.*unable to decode configuration \S+crio\.conf"):
        crio.start()


def test_a_pods_container_is_entered_stopped_and_lives_through_a_restart(crio: CrioEngine, cgroup: str) -> None:
    with PodContainers(crio, cgroup) as containers:
        containers.start("first", "", environment={"COLOUR": "green"})
        containers.start("second", "runc", annotations={"note": "one"})
        assert "COLOUR=green" in containers.execute("first", "env")
        crio.restart()
        assert len(monitors(crio)) == 2
        for name in ("first", "second"):
            assert containers.enter(name) == "busybox"
            assert containers.stop(name) == 0
            containers.delete(name)
        with pytest.raises(ContainerError, match="failed to find runtime handler nvidia"):
            containers.start("third", "nvidia")


def test_nothing_of_crio_is_left_when_a_test_kills_it_with_a_container_running(
    request: pytest.FixtureRequest, cgroup: str
) -> None:
    before = traces()
    crio: CrioEngine = request.getfixturevalue("crio")
    with crio:  # whose end is looked at here, before the fixture's
        with PodContainers(crio, cgroup) as containers:
            containers.start("left", "runc")
        assert monitors(crio)
        below = crio.folder / "mounted"
        below.mkdir()
        subprocess.run(["mount", "--bind", below, below], check=True)
        os.kill(crio.pid, signal.SIGKILL)
    assert not leftovers.processes_of(crio.folder)
    assert not leftovers.mounts_below(crio.folder)
    assert {path for path in traces() - before if cgroup not in path} == set()
