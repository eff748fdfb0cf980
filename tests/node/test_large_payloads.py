"""A large payload costs as much more as it is larger: its files are read once, and few folders are flushed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import payloads
from tests.support.fake_node import TOOLKIT, FakeNode
from tests.support.warm_start import SCRIPTS

PADDING = 4 << 20
"""Bytes by which each program and library is longer."""


def padded(payload: Path) -> int:
    """Make a payload's programs and libraries longer; return by how much all together."""
    files = [path for path in payload.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".toml"]
    for path in files:
        with path.open("ab") as stream:
            stream.write(os.urandom(PADDING))
    assert len(files) > 5
    return PADDING * len(files)


def bytes_read(node: FakeNode, *more: str) -> int:
    """Install, and return how many bytes the program read, had copied or hashed (proc_pid_io(5): rchar)."""
    command = [str(SCRIPTS / "toolkit-installer"), *node.arguments("run", "--no-daemon"), *more]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        counts = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
        assert process.wait() == 0
    return int(counts["rchar"])


@pytest.mark.real_start
def test_a_first_install_reads_each_payload_file_once_and_a_later_one_none(node: FakeNode, tmp_path: Path) -> None:
    small = FakeNode(tmp_path / "small", node.payload)
    for folder in ("etc/docker", "run", "usr/local"):
        (small.root / folder).mkdir(parents=True)
    node.payload = payloads.build(tmp_path / "large")
    more = padded(node.payload)
    assert bytes_read(node) - bytes_read(small) < 1.1 * more
    times = {path: path.stat().st_ctime_ns for path in node.place(TOOLKIT).rglob("*")}
    assert bytes_read(node) - bytes_read(small) < PADDING / 2
    # what is installed is compared with what is to be: both are read, and nothing is written
    assert 1.9 * more < bytes_read(node, "--verify-payload") - bytes_read(small) < 2.1 * more
    assert {path: path.stat().st_ctime_ns for path in node.place(TOOLKIT).rglob("*")} == times
