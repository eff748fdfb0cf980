"""From start to clean exit, through the command line: the node afterwards is the node before."""

from __future__ import annotations

import os
import signal
import stat

import pytest

from tests.support.fake_node import (
    CONFIG_TOML,
    DAEMON_JSON,
    DROP_IN,
    NOTHING_TO_DO,
    PID_FILE,
    STORE,
    TOOLKIT,
    WAITING,
    FakeNode,
)

DOCKER = b"""{
\t"log-driver": "json-file",

\t"log-opts": { "max-size": "10m" },   "big": 12345678901234567890123, "small": 1e3
}"""

VERSION_2 = b"""\
version = 2
# what the operator thinks
[plugins."io.containerd.grpc.v1.cri"]\r
  sandbox_image = "registry.k8s.io/pause:3.9" # pinned
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
\t[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
[debug]
level = "info"\
"""

VERSION_3 = b"""\
version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  options = { SystemdCgroup = true }
"""

CASES = pytest.mark.parametrize(
    "engine, path, content, mode",
    [
        ("docker", DAEMON_JSON, DOCKER, 0o640),
        ("docker", DAEMON_JSON, None, 0),
        ("containerd", CONFIG_TOML, VERSION_2, 0o600),
        ("containerd", CONFIG_TOML, VERSION_3, 0o644),
        ("containerd", CONFIG_TOML, None, 0),
    ],
    ids=["docker", "docker-no-file", "containerd-2", "containerd-3", "containerd-no-file"],
)


@CASES
def test_after_a_stop_every_byte_mode_owner_and_absence_is_back(
    node: FakeNode, engine: str, path: str, content: bytes | None, mode: int
) -> None:
    if content is not None:
        node.write(path, content, mode)
        if os.geteuid() == 0:
            os.chown(node.place(path), 4321, 1234)
    before = node.snapshot()
    run = node.waiting(engine=engine)
    installed = node.snapshot()
    assert set(node.named_runtimes()) >= {"nvidia", "nvidia-cdi", "nvidia-legacy"}
    assert node.broken_runtimes() == []
    if content is not None:
        assert (installed[path].mode, installed[path].owner) == (before[path].mode, before[path].owner)
        assert set(content.splitlines()) - set(node.read(path).splitlines()) <= {content.splitlines()[0], b"}"} | {
            b'  default_runtime_name = "runc"',
            b'level = "info"',
            DOCKER.splitlines()[-2],
        }
    assert not node.exists(DROP_IN)
    assert run.stop() == 0
    assert node.snapshot() == before


def test_a_stop_also_takes_back_the_extended_attributes(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    os.setxattr(node.place(DAEMON_JSON), "user.origin", b"config management \x00\xff")
    before = node.snapshot()
    run = node.waiting()
    assert os.getxattr(node.place(DAEMON_JSON), "user.origin") == b"config management \x00\xff"
    assert run.stop() == 0
    assert node.snapshot() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_interrupt_and_quit_clean_up_as_well(node: FakeNode, number: signal.Signals) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    assert node.waiting().stop(number) == 0
    assert node.snapshot() == before


def test_a_signal_before_the_work_is_done_leaves_nothing(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    before = node.snapshot()
    run = node.start()
    run.wait_for("Starting")
    assert run.stop() == 0
    assert node.snapshot() == before


def test_a_second_run_writes_nothing_and_says_so(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    assert node.do("run", "--no-daemon").process.returncode == 0
    stamps = node.stamps()
    again = node.do("run", "--no-daemon")
    assert again.process.returncode == 0
    assert NOTHING_TO_DO in again.output
    assert node.stamps() == stamps


def test_a_second_run_on_containerd_writes_nothing_and_says_so(node: FakeNode) -> None:
    node.write(CONFIG_TOML, VERSION_2)
    node.do("run", "--no-daemon", engine="containerd")
    stamps = node.stamps()
    again = node.do("run", "--no-daemon", engine="containerd")
    assert NOTHING_TO_DO in again.output
    assert node.stamps() == stamps


def test_a_second_instance_exits_4_names_the_first_and_leaves_its_pid(node: FakeNode) -> None:
    run = node.waiting()
    assert node.read(PID_FILE) == f"{run.pid}\n".encode()
    stamps, written = node.stamps(), node.place(PID_FILE).stat()
    second = node.do("run")
    assert second.process.returncode == 4
    assert f"PID {run.pid}" in second.output
    assert node.read(PID_FILE) == f"{run.pid}\n".encode()
    now = node.place(PID_FILE).stat()
    assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert node.stamps() == stamps
    assert run.stop() == 0


def test_a_second_instance_with_another_pid_file_is_kept_off_the_same_toolkit(node: FakeNode) -> None:
    run = node.waiting()
    before = node.snapshot()
    second = node.do("run", "--pid-file", "/run/other/toolkit.pid")
    assert second.process.returncode == 4
    assert node.snapshot() == before
    assert run.stop() == 0


def test_a_stale_pid_file_is_taken_over_and_gone_afterwards(node: FakeNode) -> None:
    node.write(PID_FILE, "1\nwith more after it than a PID\n")
    run = node.waiting()
    assert node.read(PID_FILE) == f"{run.pid}\n".encode()
    assert run.stop() == 0
    assert not node.exists(PID_FILE)


def test_no_daemon_leaves_everything_in_place(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    done = node.do("run", "--no-daemon")
    assert done.process.returncode == 0
    assert WAITING not in done.output
    assert node.docker()["default-runtime"] == "nvidia"
    assert node.broken_runtimes() == []
    assert not node.exists(PID_FILE)
    assert not node.exists(os.path.dirname(PID_FILE))


def test_cleanup_never_leaves_a_converged_node(node: FakeNode) -> None:
    run = node.waiting("--cleanup", "never")
    installed = {path: entry for path, entry in node.snapshot().items() if not path.startswith("/run/")}
    assert run.stop() == 0
    assert {path: entry for path, entry in node.snapshot().items() if not path.startswith("/run/")} == installed
    assert NOTHING_TO_DO in node.do("run", "--no-daemon").output


def test_an_operators_edit_meanwhile_stays_and_only_ours_goes(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    run = node.waiting()
    edited = node.read(DAEMON_JSON).replace(b'"max-size": "10m"', b'"max-size": "99m"')
    node.place(DAEMON_JSON).write_bytes(edited)
    assert run.stop() == 0
    assert node.read(DAEMON_JSON) == DOCKER.replace(b"10m", b"99m")
    assert not node.exists(TOOLKIT)


def test_hangup_after_drift_converges_again_and_cleanup_keeps_the_edit(node: FakeNode) -> None:
    edited = DOCKER.replace(b"json-file", b"journald")
    node.write(DAEMON_JSON, DOCKER)
    run = node.waiting()
    node.place(DAEMON_JSON).write_bytes(edited)
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(WAITING)
    assert node.docker()["default-runtime"] == "nvidia"
    assert node.docker()["log-driver"] == "journald"
    assert run.stop() == 0
    assert node.read(DAEMON_JSON) == edited
    assert not node.exists(STORE)


def test_hangup_on_a_converged_node_writes_nothing(node: FakeNode) -> None:
    run = node.waiting()
    stamps = node.stamps()
    run.process.send_signal(signal.SIGHUP)
    run.wait_for(NOTHING_TO_DO)
    run.wait_for(WAITING)
    assert node.stamps() == stamps
    assert run.stop() == 0


def test_a_broken_file_at_hangup_is_an_error_and_the_wait_goes_on(node: FakeNode) -> None:
    node.write(DAEMON_JSON, DOCKER)
    run = node.waiting()
    good = node.read(DAEMON_JSON)
    node.place(DAEMON_JSON).write_bytes(b'{"log-driver": ')
    run.process.send_signal(signal.SIGHUP)
    run.wait_for("Could not converge")
    run.wait_for(WAITING)
    assert node.broken_runtimes() == [] if node.read(DAEMON_JSON) == good else True
    node.place(DAEMON_JSON).write_bytes(good)
    assert run.stop() == 0
    assert node.read(DAEMON_JSON) == DOCKER


def test_the_receipt_is_for_nobody_else_to_read(node: FakeNode) -> None:
    node.write(DAEMON_JSON, b'{"registry-token": "secret"}')
    node.do("run", "--no-daemon")
    assert stat.S_IMODE(node.place(STORE).stat().st_mode) == 0o700
    for place in node.place(STORE).rglob("*"):
        assert stat.S_IMODE(place.stat().st_mode) == (0o700 if place.is_dir() else 0o600), place


def test_a_folder_that_somebody_put_a_file_into_stays_and_is_told_once(node: FakeNode) -> None:
    node.place("/etc/docker").rmdir()
    run = node.waiting()
    node.write("/etc/docker/key.json", "{}")
    assert run.stop() == 0, run.output
    assert node.read("/etc/docker/key.json") == b"{}"
    assert run.output.count("Left the folder: it is not empty") == 1, run.output
    assert not node.exists("/usr/local/nvidia")
