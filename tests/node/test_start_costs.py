"""How many regular expressions a command compiles, and how often it looks at all processes of the node.

Each pattern takes a tenth of a millisecond, each look at a node's processes one or more. More of them is a decision.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_node import FakeNode

MOST_PATTERNS = {"first": 30, "run": 32, "status": 12}
LOOKS = {"first": 3, "run": 3, "status": 1}
"""One of them is for another installer that runs: its PID file may be at any path."""
STARTED = Path(__file__).with_name("counting_start.py")


def counted(node: FakeNode, file: Path, command: str, *more: str) -> tuple[list[str], int]:
    """Run a command; return the patterns that it compiled, and how often it looked at all processes."""
    arguments = node.arguments(command, *more, engine="containerd")
    done = subprocess.run(
        [sys.executable, STARTED, file, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = file.read_text().splitlines()
    return [line for line in lines if line.startswith("re ")], lines.count("proc")


def test_a_first_install(node: FakeNode, tmp_path: Path) -> None:
    patterns, looks = counted(node, tmp_path / "counts", "run", "--no-daemon")
    assert len(patterns) <= MOST_PATTERNS["first"], "\n".join(patterns)
    assert looks == LOOKS["first"]


@pytest.mark.parametrize("command, more", [("run", ("--no-daemon",)), ("status", ())])
def test_a_command_on_a_node_that_is_right(node: FakeNode, tmp_path: Path, command: str, more: tuple[str, ...]) -> None:
    node.do("run", "--no-daemon", engine="containerd")
    patterns, looks = counted(node, tmp_path / "counts", command, *more)
    assert len(patterns) <= MOST_PATTERNS[command], "\n".join(patterns)
    assert looks == LOOKS[command]
