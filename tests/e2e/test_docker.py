"""The whole job on a live dockerd: `docker info` before, during and after."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.file_states import lost_lines, state_of, traces_of_writing
from tests.e2e.program import WAITING, Installer
from tests.support import wiping

if TYPE_CHECKING:
    from tests.support.engines.daemons import DockerEngine

RELOADED = "Reloaded configuration"
OWN_ALIASES = {"io.containerd.runc.v2", "io.containerd.runtime.v1.linux"}
"""What dockerd 20.10 lists besides runc from its start to the first reload that names `runtimes`."""


@pytest.fixture
def install_dir(folder: Path) -> Path:
    return folder / "nvidia"


@pytest.fixture
def flags(docker: DockerEngine, folder: Path, install_dir: Path, payload: Path) -> list[object]:
    """Return the peer's flags, as a docker node has them."""
    docker.config.chmod(0o640)
    os.chown(docker.config, 0, 12)
    return [
        *("--runtime", "docker", "--config", docker.config, "--socket", docker.socket, "--restart-mode", "signal"),
        *("--toolkit-install-dir", install_dir, "--toolkit-source-root", payload),
        *("--pid-file", folder / "pid" / "toolkit.pid"),
    ]


def test_a_dockerd_with_a_wiped_command_line_is_refused_until_its_file_is_named(
    docker: DockerEngine, installer: Installer, flags: list[object]
) -> None:
    wiping.wipe(docker.pid, "dockerd")
    before, at = state_of(docker.config), flags.index("--config")
    refused = installer.start("toolkit-installer", "run", "--no-daemon", *flags[:at], *flags[at + 2 :])
    assert refused.finish() == 3, refused.output
    assert f"dockerd (PID {docker.pid}) has wiped its command line" in refused.output
    assert state_of(docker.config) == before
    plan = installer.start("toolkit-installer", "plan", *flags)
    assert plan.finish() == 0, plan.output
    assert "flags of its own that contradict its files cannot be seen" in plan.output


def test_docker_serves_the_handlers_until_the_installer_is_told_to_stop(
    docker: DockerEngine, installer: Installer, flags: list[object], install_dir: Path
) -> None:
    before = state_of(docker.config)
    assert set(docker.handlers()) - OWN_ALIASES == {"runc"}

    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)

    toolkit = install_dir / "toolkit"
    handlers = {name: path for name, path in docker.handlers().items() if name not in OWN_ALIASES}
    assert handlers == {
        "runc": "runc",
        "nvidia": str(toolkit / "nvidia-container-runtime"),
        "nvidia-cdi": str(toolkit / "nvidia-container-runtime.cdi"),
        "nvidia-legacy": str(toolkit / "nvidia-container-runtime.legacy"),
    }
    assert docker.default_handler() == "nvidia"
    assert all(os.access(path, os.X_OK) for name, path in handlers.items() if name != "runc")
    assert docker.alive(), "dockerd did not survive the reload"

    assert run.terminate() == 0, run.output
    assert state_of(docker.config) == before
    assert set(docker.handlers()) - OWN_ALIASES == {"runc"}
    assert docker.default_handler() == "runc"
    assert docker.alive(), "dockerd did not survive the cleanup"
    assert docker.starts == 1


def test_dockers_own_aliases_of_runc_stay_while_installed_and_after(
    docker: DockerEngine, installer: Installer, flags: list[object], request: pytest.FixtureRequest
) -> None:
    aliases = OWN_ALIASES & set(docker.handlers())
    if aliases:
        reason = "dockerd 20.10 drops its own aliases at a reload, until its next start"
        request.applymarker(pytest.mark.xfail(reason=reason))
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    assert aliases <= set(docker.handlers())
    assert run.terminate() == 0, run.output
    assert aliases <= set(docker.handlers())


def test_what_the_operator_wrote_stays_in_daemon_json_while_installed(
    docker: DockerEngine, installer: Installer, flags: list[object]
) -> None:
    before = docker.config.read_text()
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    after = docker.config.read_text()
    assert lost_lines(before, after) == []
    assert json.loads(before).items() <= json.loads(after).items()
    assert set(json.loads(after)) - set(json.loads(before)) == {"runtimes", "default-runtime"}
    assert stat.S_IMODE(docker.config.stat().st_mode) == 0o640
    assert docker.config.stat().st_gid == 12


def test_a_second_instance_leaves_the_first_one_alone(
    docker: DockerEngine, installer: Installer, flags: list[object], folder: Path
) -> None:
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    pid_file = folder / "pid" / "toolkit.pid"
    assert pid_file.read_text().strip() == str(run.pid)

    second = installer.start("nvidia-toolkit", *flags)
    assert second.finish() == 4, second.output
    assert str(run.pid) in second.output
    assert pid_file.read_text().strip() == str(run.pid)

    assert run.terminate() == 0, run.output
    assert not pid_file.exists()
    assert docker.default_handler() == "runc"


def test_a_second_run_writes_and_reloads_nothing_and_uninstall_reverts(
    docker: DockerEngine, installer: Installer, flags: list[object], install_dir: Path
) -> None:
    before = state_of(docker.config)
    first = installer.start("nvidia-toolkit", *flags, "--no-daemon")
    assert first.finish() == 0, first.output
    assert docker.default_handler() == "nvidia"
    traces, reloads = traces_of_writing(docker.config, install_dir), docker.log_count(RELOADED)
    assert reloads > 0, "the log no longer tells of reloads, and what follows would prove nothing"

    second = installer.start("nvidia-toolkit", *flags, "--no-daemon")
    assert second.finish() == 0, second.output
    assert traces_of_writing(docker.config, install_dir) == traces
    assert docker.log_count(RELOADED) == reloads

    uninstall = installer.start("toolkit-installer", "uninstall", *flags)
    assert uninstall.finish() == 0, uninstall.output
    assert state_of(docker.config) == before
    assert set(docker.handlers()).isdisjoint({"nvidia", "nvidia-cdi", "nvidia-legacy"})
    assert docker.default_handler() == "runc"
    assert not (install_dir / "toolkit").exists()
    assert docker.alive()


def test_uninstall_sends_a_waiting_run_home(
    docker: DockerEngine, installer: Installer, flags: list[object], folder: Path
) -> None:
    before = state_of(docker.config)
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    uninstall = installer.start("toolkit-installer", "uninstall", *flags)
    assert uninstall.finish() == 0, uninstall.output
    assert run.finish() == 0, run.output
    assert state_of(docker.config) == before
    assert docker.default_handler() == "runc"
    assert not (folder / "pid" / "toolkit.pid").exists()


def test_a_daemon_json_that_was_not_there_is_gone_again(
    docker: DockerEngine, installer: Installer, flags: list[object]
) -> None:
    docker.config.unlink()
    run = installer.start("nvidia-toolkit", *flags)
    run.wait_for(WAITING)
    assert docker.default_handler() == "nvidia"
    assert run.terminate() == 0, run.output
    assert not docker.config.exists()
    assert docker.default_handler() == "runc"


def test_a_file_that_dockerd_rejects_comes_back_and_dockerd_goes_on(
    docker: DockerEngine, installer: Installer, flags: list[object], install_dir: Path
) -> None:
    # what an operator may leave for the next restart to trip over: dockerd keeps its old settings on SIGHUP
    docker.config.write_text('{"no-such-directive": true, ' + docker.config.read_text().lstrip()[1:])
    before, handlers, pid = state_of(docker.config), docker.handlers(), docker.pid

    run = installer.start("nvidia-toolkit", *flags, "--reload-timeout", 2)
    code = run.finish()
    # dockerd finds it itself where it can validate (23.0 and later): then nothing was written at all
    release = int(str(docker.info()["ServerVersion"]).split(".")[0])
    assert code == (3 if release >= 23 else 5), run.output
    assert str(docker.config) in run.output
    assert state_of(docker.config) == before
    assert not install_dir.exists()
    assert docker.alive()
    assert docker.pid == pid
    assert docker.handlers().keys() - OWN_ALIASES == handlers.keys() - OWN_ALIASES
    assert docker.default_handler() == "runc"
