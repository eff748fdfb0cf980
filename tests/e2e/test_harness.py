"""The harness alone: were it wrong, every other test here would prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.engines import leftovers
from tests.support.engines.daemons import ContainerdEngine, DockerEngine, EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
GLOBAL = ("/etc/docker", "/etc/containerd", "/etc/cni", "/opt", "/run", "/var/lib/docker", "/var/lib/containerd")


def paths_below(roots: Iterable[str]) -> set[str]:
    return {str(path) for root in roots for path in Path(root).rglob("*")}


def cgroups() -> set[str]:
    """Those at the top of each hierarchy, where engines make theirs."""
    top = Path("/sys/fs/cgroup")
    return {str(path) for path in (*top.glob("*/"), *top.glob("*/*/"))}


def write_minimal_configuration(engine: DockerEngine | ContainerdEngine) -> None:
    engine.folder.mkdir(exist_ok=True)
    if isinstance(engine, DockerEngine):
        engine.config.write_text("{}")
        return
    engine.config.write_text(f"""\
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{engine.folder}/cni"
""")


def traces() -> set[str]:
    """Whatever an engine could leave outside of its folder."""
    return paths_below(GLOBAL) | cgroups()


def test_docker_answers_and_restarts_with_the_file_it_was_given(docker: DockerEngine) -> None:
    assert "runc" in docker.handlers()
    assert docker.default_handler() == "runc"
    assert docker.info()["DockerRootDir"] == str(docker.folder / "data")
    before = docker.pid
    docker.config.write_text('{"runtimes": {"other": {"path": "/usr/sbin/runc"}}, "default-runtime": "other"}')
    docker.restart()
    assert docker.handlers()["other"] == "/usr/sbin/runc"
    assert docker.default_handler() == "other"
    assert docker.pid != before
    assert docker.starts == 2


def test_docker_logs_each_reload_once(docker: DockerEngine) -> None:
    assert docker.log_count("Reloaded configuration") == 0
    os.kill(docker.pid, signal.SIGHUP)
    signalled = time.monotonic()
    while not docker.log_count("Reloaded configuration"):
        assert time.monotonic() < signalled + 10, docker.log_tail()
        time.sleep(0.02)
    assert docker.log_count("Reloaded configuration") == 1
    assert docker.alive()


def test_containerd_tells_its_handlers_with_their_options(containerd: ContainerdEngine) -> None:
    assert set(containerd.handlers()) == {"runc"}
    assert containerd.default_handler() == "runc"
    assert containerd.runtimes()["runc"]["options"]["NoPivotRoot"] is True
    assert containerd.info()["conditions"]["RuntimeReady"] is True


def test_containerd_reads_its_file_anew_at_a_restart(containerd: ContainerdEngine) -> None:
    table = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other'
    added = f'\n[{table}]\nruntime_type = "io.containerd.runc.v2"\n[{table}.options]\nBinaryName = "/usr/sbin/runc"\n'
    containerd.config.write_text(containerd.config.read_text() + added)
    assert "other" not in containerd.handlers()
    containerd.restart()
    assert containerd.handlers()["other"] == "/usr/sbin/runc"
    assert containerd.starts == 2


@pytest.mark.parametrize("engine_class", [DockerEngine, ContainerdEngine])
def test_an_engine_with_a_broken_file_says_why_it_did_not_start(
    folder: Path, engine_class: type[DockerEngine | ContainerdEngine]
) -> None:
    with engine_class(folder / "engine") as engine:
        engine.folder.mkdir(exist_ok=True)
        engine.config.write_text("[")
        with pytest.raises(EngineError, match=r"exited 1 at its start:\n.*\S"):
            engine.start()


@pytest.mark.parametrize("engine_class", [DockerEngine, ContainerdEngine])
def test_nothing_of_an_engine_is_left_when_a_test_kills_it(
    folder: Path, engine_class: type[DockerEngine | ContainerdEngine]
) -> None:
    before = traces()
    with engine_class(folder / "engine") as engine:
        write_minimal_configuration(engine)
        engine.start()
        assert leftovers.processes_of(engine.folder)
        below = engine.folder / "mounted"
        below.mkdir()
        subprocess.run(["mount", "--bind", below, below], check=True)
        os.kill(engine.pid, signal.SIGKILL)
    assert not leftovers.processes_of(engine.folder)
    assert not leftovers.mounts_below(engine.folder)
    assert traces() - before == set()


def test_engines_end_with_tests_that_are_killed(folder: Path) -> None:
    engine = ContainerdEngine(folder / "engine")
    write_minimal_configuration(engine)
    script = f"""
        import os, pathlib, signal
        from tests.support.engines.daemons import ContainerdEngine
        ContainerdEngine(pathlib.Path({str(engine.folder)!r})).start()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert engine.log.exists(), "it never started"
    while leftovers.processes_of(engine.folder):
        assert time.monotonic() < started + 60
        time.sleep(0.02)
