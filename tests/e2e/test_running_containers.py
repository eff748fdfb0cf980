"""Containers that run, or stand stopped, while the toolkit that they were started with is replaced and taken away."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.program import WAITING
from tests.e2e.sites import wait_for
from tests.support.engines import containers as support
from tests.support.engines import leftovers
from tests.support.engines.containers import DockerContainers, PodContainers

if TYPE_CHECKING:
    from tests.e2e.sites import Site

INIT = "busybox"
"""What a container has as its PID 1."""
SIGNALLED = "pidfd_send_signal"


def ended(process: psutil.Process) -> bool:
    """Tell whether a process has ended, be it waited for or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


only_docker = pytest.mark.parametrize("site", ["docker"], indirect=True)
only_containerd = pytest.mark.parametrize("site", ["containerd"], indirect=True)


def test_a_container_lives_through_every_step_of_an_upgrade(site: Site) -> None:
    site.install()
    site.containers.start("old")
    changes = []
    upgrade = ("--toolkit-source-root", site.payload("1.20.0"), "--nvidia-container-runtime.log-level", "debug")
    with site.stepped("run", "--no-daemon", *upgrade) as run:
        for change in run.moments():
            changes.append(change)
            assert site.containers.enter("old") == INIT, change
            if '"nvidia-container-runtime.real"' in change:  # half of the files are new, the other half old
                site.containers.start("new")
                assert site.containers.enter("new") == INIT
                site.end("new")
        assert run.finish() == 0, run.output
    replaced = {name for change in changes for name in ("runtime.real", "cli.real", "config.toml") if name in change}
    assert replaced == {"runtime.real", "cli.real", "config.toml"}, changes
    assert "# 1.20.0" in (site.toolkit / "nvidia-container-runtime.real").read_text()

    assert "Nothing to do" in site.install(*upgrade)
    assert site.containers.enter("old") == INIT
    site.end("old")
    assert site.asked_of_the_runtime() >= {"create", "start", "exec", "kill", "delete"}


def test_a_plan_names_the_containers_of_our_handlers_and_counts_the_others(site: Site) -> None:
    site.containers.start("ordinary", "runc")
    site.install()
    site.containers.start("held")
    name = f"{support.NAMESPACE}/held" if isinstance(site.containers, PodContainers) else "held"
    changed = ("--runtime-name", "another")
    assert f"Running now: 2 containers, 1 of them through handlers of this program: {name}." in site.plan(*changed)
    for each in ("ordinary", "held"):
        site.end(each)
    assert "No container runs now." in site.plan(*changed)


def test_a_container_lives_through_every_step_of_a_cleanup_that_keeps_the_toolkit(site: Site) -> None:
    site.install()
    site.containers.start("old")
    signals = 0
    with site.stepped("uninstall", "--keep-toolkit") as run:
        starts = site.engine.starts
        for change in run.moments():
            if SIGNALLED in change:
                signals += 1
                site.await_reload(starts)
            assert site.containers.enter("old") == INIT, change
        assert run.finish() == 0, run.output
    assert signals == 1
    assert not site.serves_us()
    assert (site.toolkit / "nvidia-container-runtime").exists()

    site.journal.unlink()
    site.end("old")
    assert site.asked_of_the_runtime() >= {"kill", "delete"}
    site.uninstall()
    assert not site.install_dir.exists()


def test_cleanup_leaves_the_binaries_to_containers_and_the_next_one_removes_them(site: Site) -> None:
    run = site.installer.start("toolkit-installer", "run", *site.flags)
    run.wait_for(WAITING)
    first, second = site.containers.start("first"), site.containers.start("second")
    assert run.terminate() == 0, run.output
    for name, identity in (("first", first), ("second", second)):
        in_pod = isinstance(site.containers, PodContainers)
        known = f" of pod {support.NAMESPACE}/{name} (" if in_pod else f"docker calls {name},"
        assert re.search(f"the container {identity}[^;]*{re.escape(known)}", run.output)
    assert "still needed" in run.output
    assert not site.serves_us()
    assert site.containers.enter("first") == INIT

    # docker deletes with runc what has ended; the CRI does so with the container, and its pod goes on
    assert site.containers.stop("first") == 0
    held = site.uninstall()
    assert first not in held
    assert second in held
    if isinstance(site.containers, PodContainers):
        assert site.containers.pod("first") in held
    site.containers.delete("first")
    assert site.containers.enter("second") == INIT

    site.end("second")
    assert "still needed" not in site.uninstall()
    assert not site.install_dir.exists()


def test_after_a_killed_cleanup_a_container_can_be_entered_stopped_and_deleted(site: Site) -> None:
    site.containers.start("ordinary", "runc")
    site.install()
    held = site.containers.start("held")
    with site.stepped("uninstall") as run:
        change = next(change for change in run.moments() if f'"{site.engine.config.name}"' in change)
        run.kill()
    assert site.containers.enter("held") == INIT, change
    site.install()
    assert site.serves_us()

    starts = site.engine.starts
    with site.stepped("uninstall") as run:
        change = next(change for change in run.moments() if SIGNALLED in change)
        run.kill()
    site.await_reload(starts)
    assert site.containers.enter("held") == INIT, change
    assert held in site.uninstall()
    site.end("held")
    site.uninstall()
    assert not site.install_dir.exists()
    assert site.containers.enter("ordinary") == INIT
    site.end("ordinary")


@only_docker
def test_a_first_install_that_is_stopped_leaves_the_binaries_to_a_new_container(site: Site) -> None:
    dockerd = psutil.Process(site.engine.pid)
    started = ""
    with site.stepped("run") as run:
        for change in run.moments():
            if SIGNALLED in change and not started:
                wait_for(site.serves_us)
                started = site.containers.start("early")
                dockerd.suspend()  # the installer cannot see that it is served, and is told to stop meanwhile
                run.terminate()
            elif started:
                dockerd.resume()
        assert run.finish() == 0, run.output
    assert not site.serves_us()
    assert started in run.output
    site.end("early")
    site.uninstall()
    assert not site.install_dir.exists()


@only_docker
def test_a_cleanup_leaves_the_binaries_to_an_engine_that_was_not_told_to_forget_them(site: Site) -> None:
    by_hand = ("--restart-mode", "none")
    site.supervisor.paused.set()
    site.install(*by_hand)
    site.engine.restart()
    said = site.uninstall(*by_hand)
    assert site.serves_us()
    site.containers.start("late")
    site.end("late")
    assert "still needed" in said
    site.engine.restart()
    site.uninstall(*by_hand)
    assert not site.install_dir.exists()


@only_docker
def test_a_stopped_docker_container_holds_nothing_and_starts_after_the_next_install(site: Site) -> None:
    assert isinstance(site.containers, DockerContainers)
    site.install()
    names = ("kept", "deleted")
    for name in names:
        site.containers.start(name)
        assert site.containers.stop(name) == 0
    assert "still needed" not in site.uninstall()
    assert not site.install_dir.exists()
    site.containers.delete("deleted")
    with pytest.raises(support.ContainerError, match="nvidia"):
        site.containers.start_again("kept")
    site.install()
    site.containers.start_again("kept")
    assert site.containers.enter("kept") == INIT
    site.end("kept")


@only_containerd
def test_containerd_cleans_up_through_our_runtime_after_shim_and_engine_died(site: Site) -> None:
    assert isinstance(site.containers, PodContainers)
    site.install()
    orphan = site.containers.start("orphan")
    pod = site.containers.pod("orphan")
    site.containers.start("other")
    site.supervisor.paused.set()
    site.engine.kill()
    (shim,) = [each for each in leftovers.processes_of(site.engine.folder) if pod in each.cmdline()]
    inits = shim.children()
    shim.kill()
    wait_for(lambda: ended(shim))
    assert all(init.is_running() for init in inits)

    held = site.uninstall()
    assert orphan in held
    assert pod in held
    site.journal.unlink()
    site.supervisor.paused.clear()
    wait_for(site.engine.answers)
    wait_for(lambda: all(ended(init) for init in inits))
    assert any("delete" in line and orphan in line for line in site.journal.read_text().splitlines())
    site.end("other")
    assert orphan not in site.uninstall()
    assert not site.install_dir.exists()
