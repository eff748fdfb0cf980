"""plan, status and uninstall on a fake node, and what a run refuses or adapts to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node import fake_gpus
from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.faults import run
from tests.support import payloads
from tests.support.fake_node import (
    CONFIG_TOML,
    DAEMON_JSON,
    DOCKER,
    NOTHING_TO_DO,
    PID_FILE,
    STORE,
    TOOLKIT,
    Entry,
    FakeNode,
)
from toolkit_installer.planning import toolkit_users

NOBODY = 65534


def lasting(node: FakeNode) -> dict[str, Entry]:
    """Return the snapshot without /run."""
    return {path: entry for path, entry in node.snapshot().items() if not path.startswith("/run/")}


def status(node: FakeNode) -> dict[str, Any]:
    shown = node.do("status", "--json")
    assert shown.process.returncode == 0, shown.output
    facts: dict[str, Any] = json.loads(shown.output)
    return facts


def test_uninstall_makes_a_waiting_run_clean_up_and_leave(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    before = node.snapshot()
    waiting = node.waiting("--cleanup", "never")  # the order to clean up counts for more
    asked = node.do("uninstall")
    assert asked.process.returncode == 0, asked.output
    assert waiting.finish() == 0
    assert node.snapshot() == before


def test_uninstall_after_a_killed_wait_gives_everything_back(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    before = node.snapshot()
    waiting = node.waiting()
    assert waiting.stop(signal.SIGKILL) == -signal.SIGKILL
    assert node.read(PID_FILE) == f"{waiting.pid}\n".encode()
    done = node.do("uninstall")
    assert done.process.returncode == 0, done.output
    assert not node.exists(PID_FILE)
    assert lasting(node) == {path: entry for path, entry in before.items() if not path.startswith("/run/")}


def test_uninstall_after_a_run_was_killed_while_it_installs_gives_everything_back(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    before = lasting(node)
    waiting = node.start("--debug")
    waiting.wait_for("nvidia-container-cli.real")
    waiting.stop(signal.SIGKILL)
    assert node.exists(TOOLKIT)
    done = node.do("uninstall")
    assert done.process.returncode == 0, done.output
    assert lasting(node) == before


def test_uninstall_of_nothing_changes_nothing(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    done = node.do("uninstall")
    assert done.process.returncode == 0
    assert "Nothing is installed" in done.output
    assert node.snapshot() == before


def test_uninstall_can_leave_the_toolkit_and_a_later_run_takes_it_over(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, DOCKER)
    run(node, tmp_path, "run", "--no-daemon")
    done = run(node, tmp_path, "uninstall", "--keep-toolkit")
    assert done.code == 0, done.output
    assert "Cleaned up, but for the toolkit's files, which stay" in done.output
    assert node.read(DAEMON_JSON) == DOCKER
    assert node.place(f"{TOOLKIT}/nvidia-container-runtime.real").is_file()
    assert not node.exists(STORE)
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    assert node.broken_runtimes() == []


def test_status_tells_absent_installed_running_and_drift(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    assert status(node)["installed"] is False
    assert node.snapshot() == before
    waiting = node.waiting()
    installed = status(node)
    assert (installed["installed"], installed["state"], installed["running_pid"]) == (True, "installed", waiting.pid)
    assert installed["toolkit"] == {"folder": TOOLKIT, "files": 19, "missing": [], "damaged": [], "version": "1.19.0"}
    (engine,) = installed["engines"]
    assert engine["name"] == "docker"
    assert engine["default"] == "nvidia"
    assert engine["handlers"]["nvidia"] == f"{TOOLKIT}/nvidia-container-runtime"
    assert [file["state"] for file in engine["files"]] == ["as written"]
    node.place(DAEMON_JSON).write_bytes(b"{}")
    node.place(f"{TOOLKIT}/nvidia-ctk").unlink()
    drifted = status(node)
    assert drifted["toolkit"]["missing"] == ["nvidia-ctk"]
    assert [file["state"] for file in drifted["engines"][0]["files"]] == ["changed by somebody else"]
    assert waiting.stop() == 0
    assert node.read(DAEMON_JSON) == b"{}"


def test_plan_shows_the_diff_and_writes_nothing(node: FakeNode) -> None:
    node.write(DAEMON_JSON, b'{\n  "registry-token": "hunter2"\n}\n')
    stamps, before = node.stamps(), node.snapshot()
    shown = node.do("plan")
    assert shown.process.returncode == 0, shown.output
    assert f"+++ {DAEMON_JSON}" in shown.output
    assert '+  "default-runtime": "nvidia"' in shown.output
    assert "copy   nvidia-container-runtime.real" in shown.output
    assert "hunter2" not in shown.output
    assert (node.stamps(), node.snapshot()) == (stamps, before)


def first_line(node: FakeNode, *more: str) -> str:
    shown = node.do("plan", *more)
    assert shown.process.returncode == 0, shown.output
    lines = [line for line in shown.output.splitlines() if not line.startswith("time=")]
    return lines[0]


def test_plan_begins_with_what_is_written_and_what_becomes_of_the_engine(node: FakeNode, tmp_path: Path) -> None:
    assert first_line(node) == (
        "19 files installed, 1 file of the engine edited, docker is not reloaded, "
        "nvidia becomes the default runtime of docker."
    )
    run(node, tmp_path, "run", "--no-daemon", "--set-as-default=false")
    assert first_line(node, "--set-as-default=false") == "Nothing to do: the node is as it should be."
    node.place(f"{TOOLKIT}/nvidia-ctk").unlink()
    assert first_line(node, "--set-as-default=false") == "1 file installed."


def planned(node: FakeNode, *more: str) -> tuple[int, dict[str, Any]]:
    shown = node.do("plan", "--json", *more)
    text = "\n".join(line for line in shown.output.splitlines() if not line.startswith("time="))
    return shown.process.returncode, json.loads(text)


def test_plan_for_machines_says_what_would_be_done_and_no_secret(node: FakeNode) -> None:
    node.write(DAEMON_JSON, b'{\n  "registry-token": "hunter2"\n}\n')
    code, plan = planned(node)
    assert (code, plan["schema"], plan["stops"], plan["nothing_to_do"]) == (0, 1, None, False)
    assert "nvidia-container-runtime.real" in plan["install"]
    (engine,) = plan["engines"]
    (file,) = engine["files"]
    assert (engine["name"], file["path"]) == ("docker", DAEMON_JSON)
    assert "nvidia-container-runtime" in file["diff"]
    assert "hunter2" not in json.dumps(plan)
    assert node.do("run", "--no-daemon").process.returncode == 0
    assert planned(node)[1]["nothing_to_do"] is True


def test_plan_for_machines_says_that_a_node_without_a_gpu_is_left_alone(node: FakeNode) -> None:
    fake_gpus.show_sysfs(node)
    assert "to be left alone" in planned(node, "--without-gpu", "idle")[1]["summary"]


def test_plan_shows_the_configuration_of_the_toolkit(node: FakeNode) -> None:
    shown = node.do("plan").output
    assert f"+++ {TOOLKIT}/.config/nvidia-container-runtime/config.toml" in shown
    assert '+root = "/run/nvidia/driver"' in shown
    assert node.do("run", "--no-daemon").process.returncode == 0
    again = node.do("plan", "--nvidia-container-runtime.log-level", "debug").output
    assert '+log-level = "debug"' in again
    assert '-log-level = "info"' in again


def test_plan_names_the_instance_that_would_stop_a_run_and_exits_as_it_would(node: FakeNode) -> None:
    waiting = node.waiting()
    node.place(f"{TOOLKIT}/nvidia-ctk").unlink()
    shown = node.do("plan")
    assert shown.process.returncode == 4
    assert f"`run` would stop before it does any of this: another instance is running with PID {waiting.pid}" in (
        shown.output
    )
    assert "1 file installed." in shown.output
    assert f"PID {waiting.pid}" in planned(node)[1]["stops"]
    assert waiting.stop() == 0


def test_plan_names_the_budget_that_would_stop_a_run_and_exits_as_it_would(node: FakeNode, tmp_path: Path) -> None:
    with FakeDockerd(node):
        flags = ("--socket", SOCKET, "--reload-budget", "1/600")
        assert run(node, tmp_path, "run", "--no-daemon", *flags).code == 0
        node.write(DAEMON_JSON, b"{}")
        shown = node.do("plan", *flags)
        assert shown.process.returncode == 3
        assert "`run` would stop before it does any of this: the engine was reloaded 1 times" in shown.output
        assert f"+++ {DAEMON_JSON}" in shown.output


@pytest.mark.parametrize("command", [("run", "--no-daemon"), ("plan",)], ids=["run", "plan"])
def test_a_required_live_engine_that_is_down_stops_the_run_before_any_change(
    node: FakeNode, command: tuple[str, ...]
) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    done = node.do(*command, "--require-live")
    assert done.process.returncode == 5
    assert "docker does not answer on its socket: dockerd does not answer: there is no such socket" in done.output
    assert "nothing was changed" in done.output
    assert node.snapshot() == before


def test_an_engine_that_has_to_be_live_has_to_take_the_change_over(node: FakeNode, tmp_path: Path) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    with FakeDockerd(node):
        live = ("--socket", SOCKET, "--require-live")
        refused = run(node, tmp_path, "run", "--no-daemon", *live, "--restart-mode", "none")
        assert refused.code == 5
        assert "docker would not serve the handlers, as it is not reloaded" in refused.output
        assert node.snapshot().keys() - before.keys() <= {SOCKET}
        assert run(node, tmp_path, "run", "--no-daemon", *live).code == 0


def test_an_engine_that_does_not_run_is_said_not_to_serve_yet_and_why(node: FakeNode) -> None:
    done = node.do("run", "--no-daemon")
    assert done.process.returncode == 0
    assert (
        'it serves the handlers after its next restart" event=not-reloaded engine=docker '
        "socket=/var/run/docker.sock serves=false "
        'reason="dockerd does not answer: there is no such socket"'
    ) in done.output


def test_a_changed_toolkit_file_is_repaired_by_the_next_run_and_no_other_is_touched(
    node: FakeNode, tmp_path: Path
) -> None:
    run(node, tmp_path, "run", "--no-daemon")
    stamps = node.stamps()
    wrapper = f"{TOOLKIT}/nvidia-container-runtime"
    good = node.read(wrapper)
    node.place(wrapper).write_bytes(b"#!/bin/sh\nexit 1\n")
    done = run(node, tmp_path, "run", "--no-daemon")
    assert NOTHING_TO_DO not in done.output
    assert node.read(wrapper) == good
    changed = {path for path, stamp in node.stamps().items() if stamps[path] != stamp}
    assert changed == {wrapper, TOOLKIT, STORE, f"{STORE}/receipt.json"}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "payload"
    shutil.rmtree(tmp_path / "payload", ignore_errors=False)


def test_an_incomplete_payload_exits_7_lists_all_that_is_missing_and_changes_nothing(
    node: FakeNode, made: Path
) -> None:
    lacking = ("nvidia-container-cli", "libnvidia-container.so.1")
    node.payload = payloads.build(made, without=lacking)
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    done = node.do("run")
    assert done.process.returncode == 7
    assert all(name in done.output for name in lacking)
    assert node.snapshot() == before


def test_a_payload_of_2021_gets_one_handler_and_goes_again(node: FakeNode, made: Path) -> None:
    node.payload = payloads.build(made, generation=payloads.Generation.Y2021)
    before = node.snapshot()
    waiting = node.waiting()
    assert set(node.docker()["runtimes"]) == {"nvidia"}
    assert node.broken_runtimes() == []
    assert waiting.stop() == 0
    assert node.snapshot() == before


def test_an_upgrade_replaces_what_changed_and_removes_what_no_longer_belongs(
    node: FakeNode, made: Path, tmp_path: Path
) -> None:
    before = lasting(node)
    run(node, tmp_path, "run", "--no-daemon")
    node.payload = payloads.build(made, version="1.20.0")
    stamps = node.stamps()
    done = run(node, tmp_path, "run", "--no-daemon")
    assert done.code == 0, done.output
    names = set(os.listdir(node.place(TOOLKIT)))
    assert "libnvidia-container.so.1.20.0" in names
    assert "libnvidia-container.so.1.19.0" not in names
    assert b"1.20.0" in node.read(f"{TOOLKIT}/nvidia-container-runtime.real")
    assert node.stamps()[DAEMON_JSON] == stamps[DAEMON_JSON]
    assert run(node, tmp_path, "uninstall").code == 0
    assert lasting(node) == before


def test_a_downgrade_to_2021_takes_the_handlers_back_that_are_no_longer_there(
    node: FakeNode, made: Path, tmp_path: Path
) -> None:
    before = lasting(node)
    run(node, tmp_path, "run", "--no-daemon")
    node.payload = payloads.build(made, generation=payloads.Generation.Y2021)
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    assert set(node.docker()["runtimes"]) == {"nvidia"}
    assert node.broken_runtimes() == []
    assert run(node, tmp_path, "uninstall").code == 0
    assert lasting(node) == before


@pytest.mark.parametrize("target", ["../../opt/docker/daemon.json", "/opt/docker/daemon.json"])
def test_a_symlinked_configuration_stays_a_symlink_and_its_target_is_edited(node: FakeNode, target: str) -> None:
    node.write("/opt/docker/daemon.json", DOCKER, 0o640)
    node.place(DAEMON_JSON).symlink_to(target)
    before = node.snapshot()
    waiting = node.waiting()
    assert os.readlink(node.place(DAEMON_JSON)) == target
    assert b"nvidia" in node.read("/opt/docker/daemon.json")
    assert waiting.stop() == 0
    assert node.snapshot() == before


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_an_unprivileged_user_can_install_on_a_node_that_is_theirs(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = FakeNode(open_folder / "node", payloads.build(open_folder / "payload"))
    node.write(CONFIG_TOML, b"version = 2\n# mine\n")
    for folder in ("run", "usr/local"):
        node.place(folder).mkdir(parents=True)
    scratch = open_folder / "scratch"
    scratch.mkdir()
    user = os.geteuid()
    if user == 0:
        user = NOBODY
        for place in (scratch, node.root, *node.root.rglob("*")):
            os.chown(place, user, user)
    before = node.snapshot()
    # what root's containers on this machine, which this user may not look at, mean has a test of its own
    monkeypatch.setattr(toolkit_users, "_find_watched", list)
    # a fork, not a process of its own: the interpreter may lie where only its owner can start it
    done = run(node, scratch, "run", "--no-daemon", engine="containerd", user=user)
    assert done.code == 0, done.output
    assert node.broken_runtimes() == []
    assert {entry.owner[0] for entry in node.snapshot().values()} == {user}
    assert run(node, scratch, "uninstall", engine="containerd", user=user).code == 0
    assert node.snapshot() == before


@pytest.mark.parametrize(
    "engine, path, content",
    [
        ("docker", DAEMON_JSON, b'{\n"runtimes": {\n  "x": 7\n}}'),
        ("containerd", CONFIG_TOML, b"version = 2\n[plugins]\n'io.containerd.grpc.v1.cri' = 5\n"),
    ],
)
def test_bad_input_exits_3_names_file_and_line_and_changes_nothing(
    node: FakeNode, engine: str, path: str, content: bytes
) -> None:
    node.write(path, content)
    before = node.snapshot()
    done = node.do("run", engine=engine)
    assert done.process.returncode == 3
    assert path in done.output
    assert "line=3" in done.output
    assert "Traceback" not in done.output
    assert node.snapshot() == before


def test_a_node_of_an_older_installer_is_taken_over_and_its_entries_never_come_back(node: FakeNode) -> None:
    old = {"path": f"{TOOLKIT}/nvidia-container-runtime", "args": []}
    left = {"default-runtime": "nvidia", "debug": True, "runtimes": {"nvidia": old, "nvidia-experimental": old}}
    node.write(DAEMON_JSON, json.dumps(left))
    waiting = node.waiting()
    assert node.broken_runtimes() == []
    assert waiting.stop() == 0
    assert node.docker().get("runtimes", {}) == {}
    assert "default-runtime" not in node.docker()
    assert node.docker()["debug"] is True


def test_a_handmade_handler_of_the_same_name_returns_as_it_was_written(node: FakeNode) -> None:
    content = b'{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "/opt/nv",   "runtimeArgs": ["-v"]}}}'
    node.write(DAEMON_JSON, content)
    waiting = node.waiting()
    assert node.docker()["runtimes"]["nvidia"]["path"] == f"{TOOLKIT}/nvidia-container-runtime"
    assert waiting.stop() == 0
    assert node.read(DAEMON_JSON) == content


def test_uninstall_finds_a_run_that_has_another_pid_file(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    before = node.snapshot()
    waiting = node.waiting("--pid-file", "/run/nvidia/toolkit/toolkit.pid")
    assert status(node)["running_pid"] == waiting.pid
    asked = node.do("uninstall")
    assert asked.process.returncode == 0, asked.output
    assert waiting.finish() == 0
    assert node.snapshot() == before


def test_uninstall_removes_the_pid_file_of_a_dead_run_elsewhere(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    before = node.snapshot()
    waiting = node.waiting("--pid-file", "/run/nvidia/toolkit/toolkit.pid")
    waiting.stop(signal.SIGKILL)
    asked = node.do("uninstall")
    assert asked.process.returncode == 0, asked.output
    assert node.snapshot() == before


def test_a_file_that_became_a_folder_is_reported_as_drift_not_as_a_failure(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    node.waiting()
    node.place(DAEMON_JSON).unlink()
    node.place(DAEMON_JSON).mkdir()
    (file,) = status(node)["engines"][0]["files"]
    assert file["state"].startswith("unreadable: is a folder")


def test_a_cleanup_that_fails_says_that_the_node_is_still_configured_and_what_to_run(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER, 0o600)
    before = node.snapshot()
    waiting = node.waiting()
    written = node.read(DAEMON_JSON)
    node.place(DAEMON_JSON).write_bytes(written + b"{")
    assert waiting.stop() != 0
    assert "the node is STILL configured" in waiting.output
    assert "run `toolkit-installer uninstall`" in waiting.output
    node.place(DAEMON_JSON).write_bytes(written)
    done = node.do("uninstall")
    assert done.process.returncode == 0, done.output
    assert lasting(node) == {path: entry for path, entry in before.items() if not path.startswith("/run/")}
