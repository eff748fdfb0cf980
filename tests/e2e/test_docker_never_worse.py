"""A live dockerd never offers a handler whose executable is gone, and gets its exact bytes back."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.node import faults
from tests.node.faults import Outcome, Plan
from tests.support.fake_node import FakeNode

if TYPE_CHECKING:
    from tests.support.engines.daemons import DockerEngine


class Machine(FakeNode):
    """This machine, as the peer's flags name it, in place of a fake node."""

    def __init__(self, docker: DockerEngine, folder: Path, payload: Path) -> None:
        super().__init__(Path("/"), payload)
        self.folder = folder
        self.flags = [
            *("--runtime", "docker", "--config", str(docker.config), "--socket", str(docker.socket)),
            *("--toolkit-install-dir", str(folder / "nvidia"), "--pid-file", str(folder / "pid" / "toolkit.pid")),
        ]

    def arguments(self, command: str, *more: str, engine: str = "docker", log_format: str = "logfmt") -> list[str]:
        assert engine == "docker"
        source = ["--toolkit-source-root", str(self.payload)] if command == "run" else []
        return [command, *self.flags, "--log-format", log_format, *source, *more]

    def run(self, command: str, *more: str, plan: Plan | None = None) -> Outcome:
        return faults.run(self, self.folder, command, *more, plan=plan)


@pytest.fixture
def machine(docker: DockerEngine, folder: Path, payload: Path) -> Machine:
    return Machine(docker, folder, payload)


def dangling(docker: DockerEngine) -> list[str]:
    """Return the handlers that the live dockerd offers and cannot run."""
    return [name for name, path in docker.handlers().items() if os.path.isabs(path) and not os.path.exists(path)]


def test_a_dockerd_that_is_not_to_be_reloaded_keeps_the_binaries_that_it_offers(
    docker: DockerEngine, machine: Machine
) -> None:
    assert machine.run("run", "--no-daemon", "--restart-mode", "none").code == 0
    docker.restart()
    assert docker.default_handler() == "nvidia"
    assert machine.run("uninstall").code == 0
    assert dangling(docker) == []


def test_a_dockerd_that_is_too_busy_to_answer_keeps_the_binaries_that_it_offers(
    docker: DockerEngine, machine: Machine
) -> None:
    assert machine.run("run", "--no-daemon", "--restart-mode", "signal").code == 0
    os.kill(docker.pid, signal.SIGSTOP)
    try:
        machine.run("uninstall", "--reload-timeout", "5")
    finally:
        os.kill(docker.pid, signal.SIGCONT)
    assert dangling(docker) == []


def test_killed_in_a_rollback_the_transitional_file_is_not_taken_for_somebodys_edit(
    docker: DockerEngine, machine: Machine
) -> None:
    # somebody's key that dockerd refuses: no reload succeeds any more, and the handlers are never served
    document = json.loads(docker.config.read_bytes()) | {"no-such-key": 1}
    document.pop("default-runtime", None)
    broken = json.dumps(document).encode()
    docker.config.write_bytes(broken)
    flags = ("--no-daemon", "--restart-mode", "signal", "--reload-timeout", "1", "--reload-budget", "9/600")
    machine.run("run", *flags)  # what it leaves for the budget makes the next two alike
    whole = machine.run("run", *flags)
    if whole.code != 5:
        pytest.skip("this dockerd validates the file: the change is refused before it is made")
    back = [number for number, call in enumerate(whole.calls) if call == "signal"][1]
    assert machine.run("run", *flags, plan=Plan(back)).code == -9
    assert docker.config.read_bytes() != broken
    machine.run("uninstall")
    assert docker.config.read_bytes() == broken
