"""A reload that waits until no GPU container runs (`--reload-when idle`): a real engine is left alone until then."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.file_states import state_of
from tests.e2e.program import WAITING
from tests.support.engines import containers as support
from tests.support.engines import images
from tests.support.engines.containers import DockerContainers, PodContainers
from tests.support.engines.daemons import ContainerdEngine

if TYPE_CHECKING:
    from tests.e2e.sites import Site

IDLE = ("--reload-when", "idle", "--set-as-default=false")
CHANGED = (*IDLE, "--runtime-name", "another")
PENDING = "event=reload-pending"
WAKE_UP = 60.0
"""Seconds: the waiting process looks every 30 s."""


def started(site: Site) -> float:
    return psutil.Process(site.engine.pid).create_time()


def test_an_engine_is_reloaded_soon_after_the_last_container_of_a_handler_ends(site: Site) -> None:
    before = state_of(site.engine.config)
    site.containers.start("ordinary", "runc")
    said = site.install(*IDLE)  # an ordinary container keeps nobody waiting
    assert PENDING not in said
    assert "nvidia" in site.engine.handlers()

    site.containers.start("held")
    name = f"{support.NAMESPACE}/held" if isinstance(site.containers, PodContainers) else "held"
    why = f"the node is not idle: {name} runs through a handler of this program"
    assert why in site.plan(*CHANGED)
    assert json.loads(site.plan(*CHANGED, "--json"))["waits_for"] == why
    installed, since, starts = site.engine.config.read_bytes(), started(site), site.engine.starts
    run = site.installer.start("toolkit-installer", "run", *site.flags, *CHANGED)
    run.wait_for(PENDING)
    run.wait_for(WAITING)
    assert why in run.output
    assert site.engine.config.read_bytes() == installed
    assert site.containers.enter("held") == "busybox"
    assert (started(site), "another" in site.engine.handlers()) == (since, False)

    ended = time.time()
    site.end("held")
    run.wait_for("event=reload-allowed", within=WAKE_UP)
    run.wait_for("event=configured")
    assert "another" in site.engine.handlers()
    assert site.containers.enter("ordinary") == "busybox"
    restarted = isinstance(site.engine, ContainerdEngine)  # docker takes a signal
    assert site.engine.starts == starts + restarted
    assert (started(site) > ended) is restarted
    assert run.output.count(PENDING) == 1
    assert run.output.count("event=reloading ") == 1

    assert run.terminate() == 0, run.output
    assert state_of(site.engine.config) == before
    assert not site.install_dir.exists()
    site.end("ordinary")


def test_a_cleanup_waits_for_no_container(site: Site) -> None:
    content = site.engine.config.read_bytes()
    run = site.installer.start("toolkit-installer", "run", *site.flags, *IDLE)
    run.wait_for(WAITING)
    site.containers.start("held")
    assert run.terminate() == 0, run.output
    assert PENDING not in run.output
    assert site.engine.config.read_bytes() == content
    assert not site.serves_us()
    assert site.containers.enter("held") == "busybox"
    site.end("held")
    site.uninstall()
    assert not site.install_dir.exists()


@pytest.mark.parametrize("site", ["docker"], indirect=True)
def test_a_container_of_runc_with_a_device_of_nvidias_keeps_the_first_reload_waiting(site: Site) -> None:
    """The device is a made-up one; how it comes into the container's specification is docker's own doing."""
    assert isinstance(site.containers, DockerContainers)
    given = site.containers.client.containers.run(
        images.IMAGE, images.COMMAND, name="given", network_mode="none", devices=["/dev/null:/dev/nvidia0"], detach=True
    )
    content, since = site.engine.config.read_bytes(), started(site)
    run = site.installer.start("toolkit-installer", "run", "--no-daemon", *site.flags, *IDLE)
    assert run.finish() == 3, run.output
    assert "the node is not idle: given runs with a device of NVIDIA's" in run.output
    assert (site.engine.config.read_bytes(), started(site)) == (content, since)
    assert not site.install_dir.exists()
    given.remove(force=True)
    assert PENDING not in site.install(*IDLE)
    site.uninstall()
    assert site.engine.config.read_bytes() == content
