"""The engine is killed, hangs or is restarted at the very instants of our reload; the program is stopped meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.failing import DOWN, HEARD, meanwhile, served, stop, until
from tests.e2e.file_states import state_of
from tests.e2e.hosts.machine import HANDLERS
from tests.e2e.program import Installer
from tests.e2e.stepping import Stepped
from tests.support.engines.daemons import PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engines.daemons import DockerEngine

SIGNALLED = "pidfd_send_signal"


@pytest.fixture(autouse=True)
def _strace() -> None:
    if shutil.which("strace", path=PATH) is None:
        pytest.skip("not installed: strace (Debian's package of that name)")


@pytest.fixture
def install_dir(folder: Path) -> Path:
    return folder / "nvidia"


@pytest.fixture
def common(folder: Path, install_dir: Path) -> list[object]:
    return ["--toolkit-install-dir", install_dir, "--pid-file", folder / "pid" / "toolkit.pid"]


@pytest.fixture
def docker_flags(docker: DockerEngine, common: list[object], payload: Path) -> list[object]:
    paths = ("--config", docker.config, "--socket", docker.socket, "--toolkit-source-root", payload)
    return [*common, "--runtime", "docker", *paths]


def at(run: Stepped, change: str, do: Callable[[], object]) -> str:
    """Do something at the first change of that kind, with the program stopped; return what it said till its end."""
    done = False
    for moment in run.moments():
        if change in moment and not done:
            do()
            done = True
    assert done, f"it never came to {change}:\n{run.output}"
    return run.output


def kill(docker: DockerEngine) -> None:
    os.kill(docker.pid, signal.SIGKILL)
    until(lambda: not docker.alive(), lambda: "it lives")


FAILURES: dict[str, Callable[[DockerEngine], None]] = {"killed": kill, "hangs": lambda docker: stop(docker.pid)}


@pytest.mark.parametrize("moment", ["daemon.json", SIGNALLED], ids=["before-the-signal", "after-the-signal"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("next_command", ["run", "uninstall"])
def test_after_an_engine_failed_amid_the_reload_the_next_command_finishes(  # the cases
    docker: DockerEngine,
    installer: Installer,
    docker_flags: list[object],
    install_dir: Path,
    *,
    moment: str,
    failure: str,
    next_command: str,
) -> None:
    before = state_of(docker.config)
    flags = ("run", *docker_flags, "--no-daemon", "--reload-timeout", 1)
    with Stepped(docker.folder, "toolkit-installer", *flags) as run:
        output = at(run, moment, lambda: FAILURES[failure](docker))
        assert run.finish() == 6, output
    assert DOWN in output
    if failure == "killed":
        assert state_of(docker.config) == before
    else:  # what it may read when it wakes up: a signal may be pending
        explicit = {"runtimes": {}, "default-runtime": "runc"}
        assert json.loads(docker.config.read_bytes()) == json.loads(before.content) | explicit
    assert (install_dir / ".toolkit-installer" / "receipt.json").exists()
    assert (install_dir / "toolkit" / "nvidia-container-runtime").exists(), "a dockerd that wakes up may name it"

    if failure == "killed":
        docker.start()
    else:
        os.kill(docker.pid, signal.SIGCONT)
    if next_command == "run":
        again = installer.start("toolkit-installer", "run", *docker_flags, "--no-daemon")
        assert again.finish() == 0, again.output
        assert served(docker) == {"runc"} | HANDLERS
    uninstall = installer.start("toolkit-installer", "uninstall", *docker_flags)
    assert uninstall.finish() == 0, uninstall.output
    assert served(docker) == {"runc"}
    assert docker.default_handler() == "runc"
    assert state_of(docker.config) == before
    assert not install_dir.exists()


def test_an_engine_that_wakes_up_before_the_deadline_is_signalled_then(
    docker: DockerEngine, docker_flags: list[object]
) -> None:
    with Stepped(docker.folder, "toolkit-installer", "run", *docker_flags, "--no-daemon") as run:

        def wake_once_it_reloads() -> None:
            until(lambda: "Reloading the engine" in run.output, lambda: run.output)
            os.kill(docker.pid, signal.SIGCONT)

        with meanwhile(wake_once_it_reloads):
            output = at(run, "daemon.json", lambda: stop(docker.pid))
        assert run.finish() == 0, output
    assert docker.log_count(HEARD) == 1
    assert served(docker) == {"runc"} | HANDLERS


@pytest.mark.parametrize("moment", ["daemon.json", SIGNALLED], ids=["before-the-signal", "after-the-signal"])
def test_a_dockerd_that_dies_and_is_started_again_amid_the_reload_serves_the_change(
    docker: DockerEngine, docker_flags: list[object], moment: str
) -> None:
    def die_and_start() -> None:
        kill(docker)
        docker.start()

    with Stepped(docker.folder, "toolkit-installer", "run", *docker_flags, "--no-daemon") as run:
        output = at(run, moment, die_and_start)
        assert run.finish() == 0, output
    assert docker.alive(), "it was signalled while it started"
    assert served(docker) == {"runc"} | HANDLERS
    if moment == SIGNALLED:
        assert "it ended and was started again" in output
