"""The canary on real engines: a handler that the engine serves and that starts no container is taken back."""

from __future__ import annotations

import itertools
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of
from tests.support.engines import images
from tests.support.engines.containers import PodContainers
from toolkit_installer.engines.api import get_adapter
from toolkit_installer.errors import ExitCode
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.program import Installer
    from tests.e2e.sites import Site
    from tests.support.engines.crio import CrioEngine

CANARY = "--verify-with-canary"
BROKEN = "#!/bin/sh\necho 'libc.so.6: version GLIBC_2.99 not found' >&2\nexit 1\n"


def run(site: Site, *more: object) -> tuple[int, str]:
    started = site.installer.start("toolkit-installer", "run", "--no-daemon", *site.flags, CANARY, *more)
    return started.finish(), started.output


def test_a_container_is_started_through_each_handler_and_nothing_of_it_stays(site: Site) -> None:
    code, output = run(site)
    assert code == 0, output
    handlers = re.search(r"event=canary .*handlers=(\S+)", output)
    assert handlers is not None, output
    assert set(handlers[1].strip('"').split(",")) == {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert {"create", "start", "delete"} <= site.asked_of_the_runtime()
    assert site.journal.read_text().count(" create ") >= 3
    assert not site.containers.are_there()
    assert "event=canary" not in site.install(CANARY), "nothing was reloaded"


def test_a_program_that_does_not_run_on_this_node_is_seen_and_taken_back(site: Site) -> None:
    """The engine serves its handlers all the same."""
    before = state_of(site.engine.config)
    (site.folder / "low-level-runtime").write_text(BROKEN)
    code, output = run(site)
    assert code == ExitCode.ENGINE_REJECTED, output
    assert "a container does not start through nvidia: " in output
    assert "its old configuration is back" in output
    assert state_of(site.engine.config) == before
    assert not site.serves_us()
    assert not site.containers.are_there()
    assert not site.install_dir.exists()
    site.install()
    assert site.serves_us(), "without the canary nobody sees it"


@pytest.mark.parametrize("site", ["containerd"], indirect=True)
def test_where_no_container_starts_at_all_the_handlers_are_not_to_blame(site: Site) -> None:
    """The engine has lost the image that keeps pods' namespaces, and nobody is there to pull it from."""
    environment = {"PATH": site.engine.path}
    command = ["ctr", "--address", str(site.engine.socket), "--namespace", "k8s.io", "images", "rm", "--sync"]
    subprocess.run([*command, images.PAUSE], check=True, capture_output=True, timeout=60, env=environment)
    code, output = run(site)
    assert code == 0, output
    assert "event=canary-impossible" in output
    assert images.PAUSE in output
    assert site.serves_us()
    assert not site.containers.are_there()


@pytest.mark.parametrize("site", ["containerd"], indirect=True)
def test_an_image_that_somebody_has_made_is_not_started_however_small_it_is(site: Site, folder: Path) -> None:
    """Whoever may create pods brings images to the node, and the canary runs in the node's own network."""
    program, saved, renamed = (folder / name for name in ("a-users", "saved.tar", "renamed.tar"))
    program.write_text("")
    saved.write_bytes(images.archive({"bin/busybox": program}))
    images.renamed(saved, renamed, "registry.example/a-users:1")
    environment = {"PATH": site.engine.path}
    command = ["ctr", "--address", str(site.engine.socket), "--namespace", "k8s.io", "images"]
    for more in (["import", renamed], ["label", "registry.example/a-users:1", "io.cri-containerd.pinned=pinned"]):
        subprocess.run([*command, *more], check=True, capture_output=True, timeout=60, env=environment)
    site.install()
    with subprocess.Popen([*command[:-1], "events"], stdout=subprocess.PIPE, text=True, env=environment) as events:
        try:
            adapter = get_adapter(EngineName.CONTAINERD)
            trials = adapter.try_handlers(Node("/"), str(site.engine.socket), 60, {"nvidia": False})
            assert (trials.faults, trials.unknown) == ({}, "")
            assert events.stdout is not None
            told = [*itertools.takewhile(lambda line: "/containers/delete" not in line, events.stdout)]
        finally:
            events.terminate()
    created = [line for line in told if "/containers/create" in line]
    # the container that keeps the pod's namespaces, and the canary; both of the one image that has two names
    assert [images.IMAGE in line or images.PAUSE in line for line in created] == [True, True], created


def test_the_canary_uses_crios_own_image_and_reports_an_unknown_handler(
    crio: CrioEngine, installer: Installer, folder: Path, payload: Path, cgroup: str
) -> None:
    """This CRI-O is in no unit, so no run would restart it: its adapter is called."""
    with PodContainers(crio, cgroup) as pods:
        flags = ("--config", crio.config, "--socket", crio.socket, "--restart-mode", "none")
        where = ("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload)
        own = ("--pid-file", folder / "pid" / "toolkit.pid")
        done = installer.start("toolkit-installer", "run", "--no-daemon", "--runtime", "crio", *flags, *where, *own)
        assert done.finish() == 0, done.output
        crio.restart()
        (folder / "nvidia/toolkit/nvidia-container-runtime.cdi").write_text(BROKEN)
        asked = {"nvidia": False, "nvidia-legacy": True, "nvidia-cdi": False, "absent": False}
        trials = get_adapter(EngineName.CRIO).try_handlers(Node("/"), str(crio.socket), 60, {"runc": False, **asked})
        assert trials.unknown == ""
        assert set(trials.faults) == {"nvidia-legacy", "nvidia-cdi", "absent"}
        assert "has no device of NVIDIA's in its /dev" in trials.faults["nvidia-legacy"]
        assert "GLIBC_2.99" in trials.faults["nvidia-cdi"]
        assert "runtime handler absent" in trials.faults["absent"]
        assert not pods.are_there()
