"""NVIDIA's own installer on the same node: whichever comes second stops, and neither loses what the other owns.

It is the real program, in a mount namespace where the made node's folders are its own, as they are in its container.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import payloads
from tests.support.fake_node import DAEMON_JSON, PID_FILE, TOOLKIT, WAITING, FakeNode, Run

PEERS_PID_FILE = "/run/nvidia/toolkit/toolkit.pid"
ELSEWHERE = "/run/elsewhere/toolkit.pid"
DOCKER = b'{\n  "log-driver": "json-file"\n}\n'
_ENTER = 'mount -n --bind "$1/run" /run && mount -n --bind "$1/usr/local" /usr/local && shift && exec "$@"'
_SOON = 10.0
"""Seconds in which damage has to show: far less than the pause between two looks at the files."""

Start = Callable[..., Run]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    root = tmp_path / "node"
    for folder in ("etc/docker", "run", "usr/local"):
        (root / folder).mkdir(parents=True)
    made = FakeNode(root, payloads.build(tmp_path / "payload"))
    made.write(DAEMON_JSON, DOCKER, 0o600)
    yield made
    made.close()


@pytest.fixture
def start(node: FakeNode, peer: Path) -> Iterator[Start]:
    """Return what starts the other installer on the node, with one of its PID files."""
    runs: list[Run] = []

    def begin(pid_file: str = PEERS_PID_FILE, *more: str) -> Run:
        flags = (
            *("--runtime", "docker", "--restart-mode", "none", "--config", str(node.place(DAEMON_JSON))),
            *("--toolkit-install-dir", "/usr/local/nvidia", "--toolkit-source-root", str(node.payload)),
            *("--driver-root", "/", "--pid-file", pid_file, *more),
        )
        enter = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", _ENTER, "sh", str(node.root)]
        runs.append(Run([*enter, str(peer), *flags]))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def gone_soon(place: Path) -> bool:
    deadline = time.monotonic() + _SOON
    while place.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not place.exists()


# --- whichever comes second ---


@pytest.mark.parametrize(
    "command, pid_file",
    [
        *(("run", each) for each in (PEERS_PID_FILE, PID_FILE, ELSEWHERE)),
        *(("plan", each) for each in (PEERS_PID_FILE, PID_FILE, ELSEWHERE)),
        # who holds our own PID file is asked to leave, whatever installer it is
        *(("uninstall", each) for each in (PEERS_PID_FILE, ELSEWHERE)),
    ],
)
def test_ours_makes_way_for_the_other_installer_and_names_it(
    node: FakeNode, start: Start, command: str, pid_file: str
) -> None:
    other = start(pid_file)
    other.wait_for(WAITING)
    before = node.snapshot()
    ours = node.do(command)
    assert ours.process.returncode == 4, ours.output
    assert f"PID {other.pid}" in ours.output
    assert "nvidia-ctk-installer" in ours.output
    assert node.snapshot() == before
    assert other.stop() == 0, other.output


@pytest.mark.parametrize("pid_file", [PEERS_PID_FILE, PID_FILE], ids=["its-own", "ours"])
@pytest.mark.parametrize("held", [PEERS_PID_FILE, PID_FILE], ids=["its-name", "our-name"])
def test_the_other_installer_makes_way_for_ours(node: FakeNode, start: Start, pid_file: str, held: str) -> None:
    before = node.snapshot()
    ours = node.waiting("--pid-file", held)
    installed = node.snapshot()
    other = start(pid_file)
    assert other.finish() == 1, other.output
    assert "already running" in other.output
    changed = {path for path, entry in node.snapshot().items() if installed.get(path) != entry}
    assert changed <= {PEERS_PID_FILE, PID_FILE}  # it truncates the file before it asks for the lock
    assert ours.stop() == 0, ours.output
    assert node.snapshot() == before


def test_two_of_ours_with_different_names_do_not_both_work(node: FakeNode) -> None:
    ours = node.waiting()
    late = node.do("run", "--pid-file", PEERS_PID_FILE)
    assert late.process.returncode == 4
    assert f"PID {ours.pid}" in late.output
    assert ours.stop() == 0


def test_the_locks_are_held_again_after_a_sleep(node: FakeNode, start: Start) -> None:
    before = node.snapshot()
    ours = node.waiting()
    node.place(f"{TOOLKIT}/nvidia-container-runtime").chmod(0o600)
    ours.wait_for("A file of the toolkit is not what was put there")
    ours.wait_for(WAITING)
    other = start()
    assert other.finish() == 1, other.output
    assert ours.stop() == 0, ours.output
    assert node.snapshot() == before


# --- both at once all the same ---


def test_damage_by_the_other_installer_shows_within_seconds(node: FakeNode, start: Start, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ours = node.waiting("--ready-file", str(ready))
    ready.touch()  # no engine answers here, so that it is not ready by itself
    start(ELSEWHERE).wait_for(WAITING)
    assert gone_soon(ready), ours.output
    ours.wait_for("A file of the toolkit is not what was put there")
    assert ours.process.poll() is None


def test_repair_does_not_fight_the_other_installer(node: FakeNode, start: Start) -> None:
    ours = node.waiting("--on-drift", "repair")
    other = start(ELSEWHERE)
    other.wait_for(WAITING)
    theirs = node.snapshot()
    ours.wait_for("Could not converge: the wait goes on")
    assert f"PID {other.pid}" in ours.output
    assert {path: entry for path, entry in node.snapshot().items() if not path.startswith("/run/")} == {
        path: entry for path, entry in theirs.items() if not path.startswith("/run/")
    }


def test_cleanup_leaves_what_the_other_installer_owns(node: FakeNode, start: Start) -> None:
    ours = node.waiting()
    other = start(ELSEWHERE)
    other.wait_for(WAITING)
    theirs = {path: entry for path, entry in node.snapshot().items() if path.startswith((TOOLKIT, "/etc/"))}
    assert ours.stop() == 0, ours.output
    after = node.snapshot()
    assert {path: after.get(path) for path in theirs} == theirs
    assert node.docker()["runtimes"]["nvidia"]["path"] == f"{TOOLKIT}/nvidia-container-runtime"
    assert "Left to another installer" in ours.output
    assert "The node is as it was" not in ours.output
    assert other.stop() == 0, other.output
    # an edit of an administrator's looks the same: the record is kept until the other installer has gone
    done = node.do("uninstall")
    assert done.process.returncode == 0, done.output
    assert not node.exists("/usr/local/nvidia/.toolkit-installer")
