"""What a reload touches is said before it is done, of whatever engine; a node that is right is asked nothing of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.node import faults
from tests.node.engines.live import SOCKET, FakeContainerd, FakeDockerd
from tests.support.fake_node import CONFIG_TOML, DAEMON_JSON, NOTHING_TO_DO, FakeNode
from toolkit_installer.node import processes
from toolkit_installer.node.programs import CompletedProgram, ProgramError
from toolkit_installer.node.services import Services

IMPACT = "event=reload-impact"
UNITS = {
    "containerd.service": "ActiveState=active\nRequiredBy=kubelet.service down.service\n",
    "kubelet.service": "ActiveState=active\nRequiredBy=\n",
    "down.service": "ActiveState=inactive\nRequiredBy=\n",
}
ASKED = "RequiredBy"


class Containerd(FakeContainerd):
    """A containerd with units that depend on its own; what its systemd is asked lies in a file, as its state does."""

    def __init__(self, node: FakeNode, failure: str = "") -> None:
        self.failure = failure
        self.questions = node.root.parent / "questions"
        self.questions.write_text("")
        super().__init__(node)

    def _run(self, command: list[str], **more: object) -> CompletedProgram:
        if "show" not in command or ASKED not in command[2]:
            return super()._run(command, **more)
        with self.questions.open("a") as questions:
            questions.write(f"{' '.join(command[4:])}\n")
        if self.failure:
            raise ProgramError(self.failure)
        return CompletedProgram(0, "\n".join(UNITS[unit] for unit in command[4:]).encode(), "")

    def asked(self) -> list[str]:
        return self.questions.read_text().splitlines()


@pytest.fixture
def containerd(node: FakeNode) -> Containerd:
    node.write(CONFIG_TOML, "version = 2\n")
    return Containerd(node)


def do(engine: FakeContainerd, folder: Path, command: str, *more: str) -> str:
    with engine.inside():
        done = faults.run(engine.node, folder, command, *more, engine="containerd")
    assert done.code == 0, done.output
    return done.output


def told(output: str) -> str:
    (line,) = [line for line in output.splitlines() if IMPACT in line]
    return line.partition(IMPACT)[2]


def planned(output: str) -> Any:
    (engine,) = json.loads(output[output.index("{\n") :])["engines"]
    return engine["impact"]


def test_a_plan_names_the_units_that_a_restart_takes_along(containerd: Containerd, tmp_path: Path) -> None:
    shown = do(containerd, tmp_path, "plan")
    reload, *touched = shown[shown.index("  Reload by") :].splitlines()[:4]
    assert reload == "  Reload by systemd of containerd.service: its configuration changes."
    assert touched == [
        "  containerd is restarted, and its containers keep running.",
        "  With it systemd restarts kubelet.service (Requires=containerd.service).",
        "  How many containers run now is unknown.",  # the made engine has no process that could be looked at
    ]
    impact = planned(do(containerd, tmp_path, "plan", "--json"))
    assert impact["units"] == [{"name": "kubelet.service", "setting": "Requires", "of": "containerd.service"}]
    assert (impact["restarts"], impact["containers_keep_running"], impact["running"]) == (True, True, None)
    assert len(impact["unknown"]) == 1


def test_the_impact_is_reported_before_each_reload_and_never_queried_without_one(
    containerd: Containerd, tmp_path: Path
) -> None:
    first = do(containerd, tmp_path, "run", "--no-daemon")
    assert first.index(IMPACT) < first.index("event=reloading ")
    assert told(first).startswith(
        " engine=containerd restarts=true containers_keep_running=true units=kubelet.service kubelet_in_unit=false "
        "running=unknown through_handlers=unknown "
    )
    assert containerd.asked() == ["containerd.service", "kubelet.service down.service"]

    again = do(containerd, tmp_path, "run", "--no-daemon")
    assert NOTHING_TO_DO in again
    assert IMPACT not in again
    assert "is restarted" not in do(containerd, tmp_path, "plan")
    assert len(containerd.asked()) == 2

    last = do(containerd, tmp_path, "uninstall")
    assert "units=kubelet.service" in told(last)
    assert last.index(IMPACT) < last.index("event=reloading ")


def test_a_systemd_that_does_not_answer_stops_no_run(node: FakeNode, tmp_path: Path) -> None:
    node.write(CONFIG_TOML, "version = 2\n")
    containerd = Containerd(node, "systemctl show did not end within 10 s")
    said = do(containerd, tmp_path, "run", "--no-daemon")
    assert "units=unknown" in told(said)
    assert "event=configured" in said


@contextlib.contextmanager
def dockerd(node: FakeNode, **says: object) -> Iterator[FakeDockerd]:
    node.write(DAEMON_JSON, "{}\n")
    with FakeDockerd(node, **says) as engine:
        yield engine


@pytest.mark.parametrize(
    "says, running, unknown",
    [
        ({"ContainersRunning": 0}, 0, []),
        ({"ContainersRunning": 3}, 3, ["3 containers run, and 0 of them are seen from here"]),
        ({"ContainersRunning": "three"}, 0, []),  # then those count that are seen
    ],
)
def test_a_signal_to_docker_touches_no_container_and_no_unit(
    node: FakeNode, says: dict[str, object], running: int, unknown: list[str]
) -> None:
    with dockerd(node, **says):
        impact = planned(node.do("plan", "--json", "--socket", SOCKET).output)
    assert (impact["restarts"], impact["containers_keep_running"], impact["units"]) == (False, True, [])
    assert (impact["running"], impact["unknown"]) == (running, unknown)


def test_a_run_tells_of_a_signal_to_docker_too(node: FakeNode) -> None:
    with dockerd(node, ContainersRunning=0):
        said = node.do("run", "--no-daemon", "--socket", SOCKET).output
        assert told(said).startswith(" engine=docker restarts=false containers_keep_running=true units=none ")
        assert "running=0 through_handlers=0" in told(said)
        assert IMPACT not in node.do("run", "--no-daemon", "--socket", SOCKET).output


@pytest.mark.parametrize(
    "says, words, keeps",
    [
        ({"LiveRestoreEnabled": True}, "containers keep running", True),
        ({"LiveRestoreEnabled": False}, "its containers END, as live-restore is off", False),
        ({}, "its containers end unless live-restore is on", None),
    ],
)
def test_a_plan_to_restart_docker_says_what_becomes_of_its_containers(
    node: FakeNode, tmp_path: Path, says: dict[str, object], words: str, *, keeps: bool | None
) -> None:
    with (
        dockerd(node, **says) as engine,
        engine.inside(),
        mock.patch.object(processes, "_unit", return_value="docker.service"),
        mock.patch.object(Services, "knows", return_value=True),
    ):
        given = ("--restart-mode", "systemd", "--allow-restart", "--socket", SOCKET)
        text, told = (faults.run(node, tmp_path, "plan", *given, *more).output for more in ((), ("--json",)))
    assert f"docker will be RESTARTED ({words})" in text
    impact = planned(told)
    assert (impact["restarts"], impact["containers_keep_running"], impact["units"]) == (True, keeps, None)
