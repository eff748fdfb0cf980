"""What a start costs, as ratios within one measurement: the processor time of each command, and of Python alone."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a script, from anywhere

from tests.support import payloads
from tests.support.fake_node import SCRIPTS, FakeNode

ROUNDS = 20
YARDSTICK = "python alone"


def seconds(command: list[str]) -> float:
    """Return the processor time of a program."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime


def made_node(folder: Path) -> FakeNode:
    """Return a node on which the toolkit is installed for docker."""
    root = folder / "node"
    for name in ("etc/docker", "run", "usr/local"):
        (root / name).mkdir(parents=True)
    node = FakeNode(root, payloads.build(folder / "payload"))
    seconds([str(SCRIPTS / "toolkit-installer"), *node.arguments("run", "--no-daemon")])
    return node


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="toolkit-installer-bench-") as scratch:
        node = made_node(Path(scratch))
        program = str(SCRIPTS / "toolkit-installer")
        commands = {
            YARDSTICK: [sys.executable, "-c", "pass"],
            "--version": [program, "--version"],
            "run --help": [program, "run", "--help"],
            "status": [program, *node.arguments("status")],
            "detect": [program, *node.arguments("detect")],
            "plan": [program, *node.arguments("plan")],
            "run, nothing to do": [program, *node.arguments("run", "--no-daemon")],
        }
        figures: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                figures[name].append(seconds(command))
        unit = statistics.median(figures[YARDSTICK])
        for name, values in figures.items():
            print(f"{name:18} {statistics.median(values) / unit:5.1f} x {YARDSTICK} (median of {ROUNDS})")


if __name__ == "__main__":
    main()
