"""`--reload-when idle` and the canary beside a hostile local user, who holds no reload up and hurts no handler."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.support import fake_processes
from tests.support.fake_node import DAEMON_JSON, PID_FILE, TOOLKIT, FakeNode
from toolkit_installer.engines.common import canaries

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user"),
    pytest.mark.usefixtures("dockerd"),
]

IDLE = ("--reload-when", "idle", "--set-as-default=false")
AT = ("--socket", SOCKET)
STRANGER = 65534
TASKS = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
CHURN = f"""
import ctypes, os, signal
os.setgroups([])
os.setresgid(*[{STRANGER}] * 3)
os.setresuid(*[{STRANGER}] * 3)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
names = (b"containerd-shim", b"conmon", b"dockerd", b"kubelet", b"containerd", b"toolkit-install")
print("ready", flush=True)
number = 0
while True:
    number += 1
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, names[number % len(names)], 0, 0, 0)
        os._exit(0)
"""


@pytest.fixture
def dockerd(node: FakeNode) -> Iterator[FakeDockerd]:
    node.write(DAEMON_JSON, "{}\n")
    with FakeDockerd(node) as engine:
        yield engine


@contextlib.contextmanager
def churn() -> Iterator[None]:
    """Have a user start processes with engines' names, which end at once, until the block is left."""
    command = [sys.executable, "-c", CHURN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def bundle(node: FakeNode) -> Path:
    """Return a bundle that says it runs through our handler."""
    place = node.place(f"/{TASKS}/train")
    place.mkdir(parents=True)
    (place / "runtime").write_text(f"{TOOLKIT}/nvidia-container-runtime")
    (place / "config.json").write_text(json.dumps({"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}}))
    return place


def waits_for(node: FakeNode) -> str:
    """Return what a reload would wait for: of this machine's own containers, too, if there are some."""
    output = node.do("plan", "--json", *AT, *IDLE).output
    return str(json.loads(output[output.index("{\n") :])["waits_for"])


@pytest.mark.parametrize("name", ["containerd-shim", "containerd-shim-", "conmon"])
def test_a_users_shim_or_monitor_does_not_keep_the_node_busy(node: FakeNode, name: str) -> None:
    words = ("-b", f"/{TASKS}/train", "-c", "train", "-r", f"{TOOLKIT}/nvidia-container-runtime")
    place = bundle(node)
    with fake_processes.process(Path("/"), name, *words, folder=str(place)) as pid:
        said = waits_for(node)
        assert "train" in said or str(pid) in said, "of root's it is believed"
    with fake_processes.process(Path("/"), name, *words, folder=str(place), user=STRANGER) as pid:
        said = waits_for(node)
    assert "train" not in said
    assert str(pid) not in said


def test_processes_that_come_and_go_by_the_thousands_hold_up_nothing(node: FakeNode) -> None:
    with churn():
        assert "cannot be looked at" not in waits_for(node)
        done = node.do("run", "--no-daemon", *AT)
        assert done.process.returncode == 0, done.output
        assert node.do("uninstall").process.returncode == 0
    assert node.read(DAEMON_JSON) == b"{}\n"


def folders(node: FakeNode) -> list[Path]:
    return [node.place(path) for path in (PID_FILE, "/run/nvidia/toolkit-installer.reloads")]


def link(place: Path, target: Path) -> None:
    place.symlink_to(target)


def file(place: Path, _target: Path) -> None:
    place.write_text('{"boot": "", "reloads": []}')


@pytest.mark.parametrize("what", [link, file])
def test_what_a_user_put_where_the_run_writes_is_not_followed(
    node: FakeNode, tmp_path: Path, what: Callable[[Path, Path], None]
) -> None:
    """The folder is root's; what is in it may be from a time when it was everybody's."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    for place in folders(node):
        place.parent.mkdir(parents=True, exist_ok=True)
        what(place, theirs)
        os.chown(place, STRANGER, STRANGER, follow_symlinks=False)
    run = node.do("run", "--no-daemon", *AT)
    assert run.process.returncode in (0, 3), run.output
    assert "Traceback" not in run.output
    assert theirs.read_text() == "theirs"
    if run.process.returncode:
        assert node.read(DAEMON_JSON) == b"{}\n"
        assert str(PID_FILE) in run.output
    for place in folders(node):
        with contextlib.suppress(FileNotFoundError):
            place.unlink()
    assert node.do("run", "--no-daemon", *AT).process.returncode == 0


def test_a_folder_that_everybody_may_write_to_is_refused(node: FakeNode) -> None:
    folder = node.place(PID_FILE).parent
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    run = node.do("run", "--no-daemon", *AT)
    assert run.process.returncode == 3
    assert "writable by everybody" in run.output
    assert node.read(DAEMON_JSON) == b"{}\n"
    shutil.rmtree(folder)


def test_the_canarys_process_is_not_looked_for_in_one_that_has_its_number_by_now() -> None:
    """A user whose process got the number sees to it that no device is found: that is no fault of the handler's."""
    with fake_processes.process(Path("/"), "canary", user=STRANGER) as pid:
        assert canaries.describe_missing_gpus(pid) == ""
