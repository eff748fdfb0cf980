"""File systems on which a toolkit would be of no use: found before anything is changed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.faults import run
from tests.support.fake_node import FakeNode


@pytest.fixture
def node(folder: Path, payload: Path) -> FakeNode:
    root = folder / "node"
    for place in ("etc/docker", "run", "usr/local/nvidia"):
        (root / place).mkdir(parents=True)
    node = FakeNode(root, payload)
    node.write("/etc/docker/daemon.json", b"{}\n")
    return node


@pytest.fixture(params=["noexec", "ro"])
def mounted(request: pytest.FixtureRequest, node: FakeNode) -> Iterator[str]:
    place = node.place("/usr/local/nvidia")
    option: str = request.param
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", place], check=True)
    yield option
    subprocess.run(["umount", place], check=True)


def test_a_folder_in_which_nothing_can_be_written_or_executed_is_refused_before_anything_is_changed(
    node: FakeNode, mounted: str, folder: Path
) -> None:
    before = node.snapshot()
    refused = run(node, folder, "run", "--no-daemon")
    assert refused.code == 3
    assert {"noexec": "mounted noexec", "ro": "mounted read-only"}[mounted] in refused.output
    assert "/usr/local/nvidia/toolkit" in refused.output
    assert node.snapshot() == before
