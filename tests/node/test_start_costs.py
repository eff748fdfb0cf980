"""How often a command lists all processes of the node: each time takes a millisecond or more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_node import FakeNode

LOOKS = {"first": 3, "run": 3, "status": 1}
"""One of them is for another installer that runs: its PID file may be at any path."""
STARTED = Path(__file__).with_name("counting_start.py")


def count_looks(node: FakeNode, file: Path, command: str, *more: str) -> int:
    """Run a command; return how often it listed all processes."""
    arguments = node.arguments(command, *more, engine="containerd")
    done = subprocess.run(
        [sys.executable, STARTED, file, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return file.read_text().splitlines().count("proc")


def test_a_first_install(node: FakeNode, tmp_path: Path) -> None:
    assert count_looks(node, tmp_path / "counts", "run", "--no-daemon") == LOOKS["first"]


@pytest.mark.parametrize("command, more", [("run", ("--no-daemon",)), ("status", ())])
def test_a_command_on_a_node_that_is_right(node: FakeNode, tmp_path: Path, command: str, more: tuple[str, ...]) -> None:
    node.do("run", "--no-daemon", engine="containerd")
    assert count_looks(node, tmp_path / "counts", command, *more) == LOOKS[command]
