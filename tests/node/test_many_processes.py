"""A node with many processes: each is looked at a few times at most, whatever a command asks of the node."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import faults
from tests.support.fake_node import DAEMON_JSON, FakeNode

COUNT = 30
_OF_A_PROCESS = re.compile(r"/proc/(\d+)(/.*)?")


@pytest.fixture(scope="module")
def others() -> Iterator[frozenset[int]]:
    """Processes that are nothing to the program."""
    started = [subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL) for _ in range(COUNT)]
    yield frozenset(each.pid for each in started)
    for each in started:
        each.kill()
        each.wait()


def opened(node: FakeNode, folder: Path, others: frozenset[int], command: str, *more: str) -> dict[str, float]:
    """Return how often a command opens what of each of the others' folders in /proc."""
    counted = folder / "counted"
    pid = os.fork()
    if pid == 0:
        found: collections.Counter[str] = collections.Counter()

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            if event in ("open", "os.listdir", "os.scandir") and arguments and isinstance(arguments[0], str):
                match = _OF_A_PROCESS.fullmatch(arguments[0])
                if match is not None and int(match[1]) in others:
                    found[match[2] or "/"] += 1

        code = 99
        try:
            sys.addaudithook(hook)
            code = faults._child(node.arguments(command, *more), faults.Plan(), folder / "said")
            counted.write_text("".join(f"{name} {count}\n" for name, count in found.items()))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, (folder / "said").read_text()
    lines = (line.split() for line in counted.read_text().splitlines())
    return {name: int(count) / COUNT for name, count in lines}


def test_each_process_is_looked_at_a_few_times_whatever_is_asked(
    node: FakeNode, tmp_path: Path, others: frozenset[int]
) -> None:
    node.write(DAEMON_JSON, b"{}\n")
    for command, more, most in (
        ("detect", (), 3),
        ("plan", (), 3),
        ("status", (), 2),  # for another installer, and for the kubelet
        ("run", ("--no-daemon",), 3),
        ("run", ("--no-daemon", "--reload-when", "idle"), 3),
        ("status", (), 2),
        ("uninstall", (), 12),
    ):
        found = opened(node, tmp_path, others, command, *more)
        assert set(found) == {"/comm"}, (command, found)
        assert 1 <= found["/comm"] <= most, (command, found)
