"""Debian 13's engines, between the machine's own and the newest: docker 26 by signal, containerd 1.7 in place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import lost_lines, state_of
from tests.e2e.program import WAITING, Installer
from tests.support.built.releases import Release, Suite
from tests.support.engines.daemons import ContainerdEngine, DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parent / "data"
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
DEFAULTS = """\
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "@FOLDER@/cni"
"""


@pytest.fixture
def flags(folder: Path, payload: Path) -> list[object]:
    return [
        *("--toolkit-install-dir", folder / "nvidia", "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def assert_containerd_serves_and_forgets(
    engine: ContainerdEngine, text: str, installer: Installer, flags: list[object]
) -> None:
    engine.folder.mkdir(mode=0o700)
    engine.config.write_text(text.replace("@FOLDER@", str(engine.folder)))
    engine.start()
    before, runtimes = state_of(engine.config), engine.runtimes()
    place = ("--runtime", "containerd", "--config", engine.config, "--socket", engine.socket)
    run = installer.start("nvidia-toolkit", *flags, *place, "--restart-mode", "none")
    run.wait_for(WAITING)
    assert lost_lines(before.content.decode(), engine.config.read_text()) == []
    engine.restart()
    assert engine.handlers().keys() == {"runc"} | HANDLERS
    assert engine.default_handler() == "nvidia"
    assert engine.runtimes()["runc"]["sandboxMode"] == runtimes["runc"]["sandboxMode"] == "podsandbox"
    assert run.terminate() == 0, run.output
    assert state_of(engine.config) == before
    engine.restart()
    assert engine.runtimes() == runtimes


def test_docker_26_serves_the_handlers_until_the_installer_is_told_to_stop(
    folder: Path, release: Callable[[Suite], Release], installer: Installer, flags: list[object]
) -> None:
    with DockerEngine(folder / "engine", release(Suite.TRIXIE)) as engine:
        engine.config.write_bytes((DATA / "daemon.json").read_bytes())
        engine.start()
        before, handlers, pid = state_of(engine.config), engine.handlers().keys(), engine.pid
        run = installer.start(
            "nvidia-toolkit", *flags, "--runtime", "docker", "--config", engine.config, "--socket", engine.socket
        )
        run.wait_for(WAITING)
        assert engine.handlers().keys() == handlers | HANDLERS
        assert engine.default_handler() == "nvidia"
        assert run.terminate() == 0, run.output
        assert state_of(engine.config) == before
        assert engine.handlers().keys() == handlers
        assert engine.default_handler() == "runc"
        assert engine.alive()
        assert engine.pid == pid


def test_containerd_1_7_serves_the_handlers_until_the_installer_is_told_to_stop(
    folder: Path, release: Callable[[Suite], Release], installer: Installer, flags: list[object]
) -> None:
    with ContainerdEngine(folder / "engine", release(Suite.TRIXIE)) as engine:
        assert_containerd_serves_and_forgets(engine, (DATA / "config.toml").read_text(), installer, flags)


def test_a_containerd_1_7_that_names_no_runtimes_keeps_its_own(
    folder: Path, release: Callable[[Suite], Release], installer: Installer, flags: list[object]
) -> None:
    with ContainerdEngine(folder / "engine", release(Suite.TRIXIE)) as engine:
        assert_containerd_serves_and_forgets(engine, DEFAULTS, installer, flags)
