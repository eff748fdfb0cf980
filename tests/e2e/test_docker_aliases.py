"""A dockerd whose default runtime is one of its own aliases: no signal of ours may end it, whatever its release does.

dockerd 20.10 forgets its aliases at a SIGHUP that names `runtimes`, and panics where its default was one of them; 26
and 28 keep them. Each step is done on each, and the daemon's process and its containers must outlive all of them.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import state_of
from tests.e2e.program import WAITING, Installer
from tests.e2e.sites import wait_for
from tests.support.built.releases import Suite
from tests.support.engines import containers
from tests.support.engines.containers import DockerContainers
from tests.support.engines.daemons import DockerEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.built.releases import Release

ALIASES = ("io.containerd.runc.v2", "io.containerd.runtime.v1.linux")
CASES = [(ALIASES[0], "true"), (ALIASES[0], "false"), (ALIASES[1], "false")]
HANDLERS = {"nvidia", "nvidia-cdi", "nvidia-legacy"}
RELOADED = "Reloaded configuration"
TEXT = '{\n  "log-level": "info",\n  "default-runtime": "%s"\n}\n'
PLAIN = '{\n  "log-level": "info"\n}\n'
FORGETS_BEFORE = 25


@pytest.fixture(params=[None, *Suite], ids=["own", *Suite])
def docker(request: pytest.FixtureRequest, release: Callable[[Suite], Release], folder: Path) -> Iterator[DockerEngine]:
    if missing := DockerEngine.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    suite: Suite | None = request.param
    with DockerEngine(folder / "engine", release(suite) if suite is not None else None) as engine:
        yield engine


@pytest.fixture
def install_dir(folder: Path) -> Path:
    return folder / "nvidia"


@pytest.fixture
def flags(docker: DockerEngine, folder: Path, install_dir: Path, payload: Path) -> list[object]:
    return [
        *("--runtime", "docker", "--config", docker.config, "--socket", docker.socket, "--reload-budget", "9/600"),
        *("--toolkit-install-dir", install_dir, "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def start(docker: DockerEngine, text: str) -> int:
    """Start dockerd on a file; return its process."""
    docker.config.write_text(text)
    docker.start()
    return docker.pid


def forgets(docker: DockerEngine) -> bool:
    """Tell whether this release forgets its aliases at a signal."""
    return int(str(docker.info()["ServerVersion"]).split(".")[0]) < FORGETS_BEFORE


def lives(docker: DockerEngine, pid: int) -> bool:
    """Tell whether the very process still serves, and never panicked."""
    return docker.alive() and docker.pid == pid and docker.answers() and docker.log_count("panic") == 0


def edit(docker: DockerEngine, alias: str) -> dict[str, object]:
    """Make the alias the default in the file, as somebody does who restarts dockerd later."""
    document: dict[str, object] = json.loads(docker.config.read_bytes()) | {"default-runtime": alias}
    docker.config.write_text(json.dumps(document, indent=4))
    return document


@pytest.mark.parametrize("alias, default", CASES)
def test_an_alias_that_dockerd_would_lose_is_refused_or_else_kept(
    docker: DockerEngine, installer: Installer, flags: list[object], install_dir: Path, alias: str, default: str
) -> None:
    pid = start(docker, TEXT % alias)
    before = state_of(docker.config)
    asked = [*flags, f"--set-as-default={default}"]
    plan = installer.start("toolkit-installer", "plan", *asked)
    code = plan.finish()
    if forgets(docker):
        assert code == 3, plan.output
        run = installer.start("nvidia-toolkit", *asked)
        assert run.finish() == 3, run.output
        for output in (plan.output, run.output):
            assert f"{docker.config}" in output
            assert "line=3" in output or ":3: " in output
            assert alias in output
            assert "--restart-mode systemd --allow-restart" in output
            assert "--restart-mode none" in output
        assert not install_dir.exists()
        assert docker.log_count(RELOADED) == 0
    else:
        assert code == 0, plan.output
        run = installer.start("nvidia-toolkit", *asked)
        run.wait_for(WAITING)
        assert set(docker.handlers()) >= HANDLERS
        assert docker.default_handler() == ("nvidia" if default == "true" else alias)
        assert run.terminate() == 0, run.output
    assert state_of(docker.config) == before
    assert docker.default_handler() == alias
    assert HANDLERS.isdisjoint(docker.handlers())
    assert lives(docker, pid)


@pytest.mark.parametrize("alias, default", CASES)
def test_an_alias_that_became_the_default_does_not_end_dockerd_at_cleanup(
    docker: DockerEngine,
    installer: Installer,
    flags: list[object],
    install_dir: Path,
    cgroup: str,
    alias: str,
    default: str,
) -> None:
    if missing := containers.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    pid = start(docker, PLAIN)
    with DockerContainers(docker, cgroup) as running:
        running.start("witness", "runc")
        run = installer.start("toolkit-installer", "run", *flags, f"--set-as-default={default}")
        run.wait_for(WAITING)
        edit(docker, alias)
        assert run.terminate() == 0, run.output
        assert lives(docker, pid)
        assert running.enter("witness")
        assert json.loads(docker.config.read_bytes()) == {"log-level": "info", "default-runtime": alias}
        if forgets(docker):
            assert "restart it, so that it forgets the handlers" in run.output
            assert set(docker.handlers()) >= HANDLERS
            assert all(os.access(docker.handlers()[name], os.X_OK) for name in HANDLERS)
            docker.restart()
            again = installer.start("toolkit-installer", "uninstall", *flags)
            assert again.finish() == 0, again.output
        assert HANDLERS.isdisjoint(docker.handlers())
        assert docker.default_handler() == alias
        assert not install_dir.exists(), run.output
        assert docker.log_count("panic") == 0


@pytest.mark.parametrize("alias", ALIASES)
def test_a_change_after_somebody_made_an_alias_the_default_does_not_end_dockerd(
    docker: DockerEngine, installer: Installer, flags: list[object], alias: str
) -> None:
    pid = start(docker, PLAIN)
    first = installer.start("nvidia-toolkit", *flags, "--no-daemon", "--set-as-default=false")
    assert first.finish() == 0, first.output
    edit(docker, alias)
    edited = state_of(docker.config)
    second = installer.start("nvidia-toolkit", *flags, "--no-daemon", "--runtime-name", "gpu")
    code = second.finish()
    assert lives(docker, pid)
    if forgets(docker):
        assert code == 3, second.output
        assert state_of(docker.config) == edited
    else:
        assert code == 0, second.output
        assert docker.default_handler() == "gpu"
    last = installer.start("toolkit-installer", "uninstall", *flags)
    assert last.finish() == 0, last.output
    assert json.loads(docker.config.read_bytes()) == {"log-level": "info", "default-runtime": alias}
    assert lives(docker, pid)


@pytest.mark.parametrize("alias, default", CASES)
def test_an_alias_that_only_the_live_dockerd_has_for_its_default_does_not_end_it(
    docker: DockerEngine, installer: Installer, flags: list[object], alias: str, default: str
) -> None:
    pid = start(docker, TEXT % alias)
    docker.config.write_text(PLAIN)
    before = state_of(docker.config)
    os.kill(docker.pid, signal.SIGHUP)
    wait_for(lambda: docker.log_count(RELOADED) == 1)
    assert docker.default_handler() == alias, "a signal takes back no default"
    run = installer.start("nvidia-toolkit", *flags, f"--set-as-default={default}")
    run.wait_for(WAITING)
    assert set(docker.handlers()) >= HANDLERS
    assert run.terminate() == 0, run.output
    assert state_of(docker.config) == before
    assert HANDLERS.isdisjoint(docker.handlers())
    assert lives(docker, pid)


def test_a_docker_that_its_user_restarts_is_never_signalled_and_the_trap_is_reported(
    docker: DockerEngine, installer: Installer, flags: list[object], install_dir: Path
) -> None:
    alias = ALIASES[0]
    pid = start(docker, TEXT % alias)
    before = state_of(docker.config)
    flags = [*flags, "--restart-mode", "none", "--set-as-default=false"]
    run = installer.start("nvidia-toolkit", *flags, "--no-daemon")
    assert run.finish() == 0, run.output
    assert ("systemctl reload docker" in run.output) == forgets(docker)
    assert lives(docker, pid)
    docker.restart()
    pid = docker.pid
    assert set(docker.handlers()) >= HANDLERS
    assert docker.default_handler() == alias
    back = installer.start("toolkit-installer", "uninstall", *flags)
    assert back.finish() == 0, back.output
    assert lives(docker, pid)
    assert docker.log_count(RELOADED) == 0
    assert state_of(docker.config) == before
    docker.restart()
    assert installer.start("toolkit-installer", "uninstall", *flags).finish() == 0
    assert not install_dir.exists()


def test_an_alias_that_the_file_itself_defines_is_kept_by_every_release(
    docker: DockerEngine, installer: Installer, flags: list[object]
) -> None:
    alias = ALIASES[0]
    text = {"runtimes": {alias: {"path": "runc"}}, "default-runtime": alias}
    pid = start(docker, json.dumps(text))
    before = state_of(docker.config)
    run = installer.start("nvidia-toolkit", *flags, "--set-as-default=false")
    run.wait_for(WAITING)
    assert set(docker.handlers()) >= HANDLERS
    assert docker.default_handler() == alias
    assert run.terminate() == 0, run.output
    assert state_of(docker.config) == before
    assert docker.default_handler() == alias
    assert HANDLERS.isdisjoint(docker.handlers())
    assert lives(docker, pid)
