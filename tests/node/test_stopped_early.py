"""A run that leaves when its work is done, and is told to stop before: nobody may take it for done."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.faults import Plan, run
from tests.support.fake_node import DAEMON_JSON, TOOLKIT, FakeNode
from tests.support.quick import Few

pytestmark = pytest.mark.real_start

TERMINATED = 128 + signal.SIGTERM


def test_what_is_left_is_all_or_nothing_and_the_exit_code_says_which(node: FakeNode, tmp_path: Path, few: Few) -> None:
    node.write(DAEMON_JSON, '{"debug": true}')
    before = node.snapshot()
    count = len(run(node, tmp_path, "run", "--no-daemon").calls)
    assert run(node, tmp_path, "uninstall").code == 0
    assert node.snapshot() == before
    codes = []
    for at in few(range(0, count, max(1, count // 25)), most=8):
        done = run(node, tmp_path, "run", "--no-daemon", plan=Plan(stop_at=at))
        codes.append(done.code)
        if done.code == TERMINATED:
            assert node.snapshot() == before, at
        else:
            assert done.code == 0, done.output
            assert "nvidia" in node.docker()["runtimes"]
            assert node.exists(f"{TOOLKIT}/nvidia-container-runtime")
            assert run(node, tmp_path, "uninstall").code == 0
            assert node.snapshot() == before
    assert {TERMINATED, 0} == set(codes), codes


def test_a_run_that_cleans_up_when_it_is_told_to_stop_exits_0(node: FakeNode, tmp_path: Path) -> None:
    before = node.snapshot()
    stopped = run(node, tmp_path, "run", plan=Plan(stop_at=20))
    assert stopped.code == 0, stopped.output
    assert node.snapshot() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_an_engine_is_waited_for_is_no_success(node: FakeNode, number: signal.Signals) -> None:
    # a process of the engine's name that never answers: the node's own, as it has the node for its root
    socket = node.place("/var/run/docker.sock")
    socket.parent.mkdir(parents=True)
    script = "import sys,time; open('/proc/self/comm','w').write('dockerd'); print(1, flush=True); time.sleep(600)"
    command = [sys.executable, "-c", script, "-H", f"unix://{socket}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as engine:
        try:
            assert engine.stdout is not None
            assert engine.stdout.readline()
            root = ("--node-root", str(node.root))
            flags = [each for each in node.arguments("run", "--no-daemon") if each not in root]
            paths = {
                "--config": DAEMON_JSON,
                "--socket": "/var/run/docker.sock",
                "--pid-file": "/run/toolkit.pid",
                "--toolkit-install-dir": "/usr/local/nvidia",
            }
            given = [*flags, *(f"{flag}={node.place(path)}" for flag, path in paths.items())]
            started = node._started([str(Path(sys.executable).parent / "toolkit-installer"), *given])
            started.wait_for("Waiting for the engine")
            assert started.stop(number) == 128 + number
        finally:
            engine.kill()
    assert not node.exists(TOOLKIT)
