"""A large file costs little more than a small one, in order or not."""

from __future__ import annotations

import resource
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.program import SCRIPTS
from tests.node.corpus import HANDLERS, Site, containerd_table
from tests.support import payloads

MIRRORS = 'plugins."io.containerd.grpc.v1.cri".registry.mirrors'
RUNTIMES = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes'


def in_order(tables: int) -> bytes:
    """Return a file of so many tables, one registry mirror after the other."""
    mirrors = [
        f'[{MIRRORS}."r{n:04}.example.org"]\n  endpoint = ["https://mirror-{n:04}.example.org"] # {n}\n\n'
        for n in range(tables)
    ]
    return ("version = 2\n" + "".join(mirrors)).encode()


def interleaved(tables: int) -> bytes:
    """Return a file of so many tables in which mirrors, runtimes and their options take turns."""
    third = tables // 3
    parts = ["version = 2\n"]
    for n in range(third):
        parts += [
            f'[{MIRRORS}."r{n:04}.example.org"]\n  endpoint = ["https://mirror-{n:04}.example.org"]\n',
            f'[{RUNTIMES}.r{(n * 7) % third:04}]\n  runtime_type = "io.containerd.runc.v2" # {n}\n',
            f'[{RUNTIMES}.r{(n * 11) % third:04}.options]\n  SystemdCgroup = true\n  BinaryName = "/opt/site/r{n}"\n',
        ]
    return "".join(parts).encode()


def processor_seconds(folder: Path, content: bytes, payload: Path) -> float:
    """Install on a node with this file, check the result, and return the processor time that the program took."""
    site = Site(folder / "node", "containerd")
    site.build(content)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(SCRIPTS / "nvidia-ctk-installer"), *site.flags(payload), "--no-daemon"]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    runtimes = containerd_table(tomllib.loads(site.config.read_text()))["runtimes"]
    assert runtimes.keys() >= HANDLERS.keys()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("made", [in_order, interleaved])
def test_three_thousand_tables_cost_little_more_than_none(made: Callable[[int], bytes], tmp_path: Path) -> None:
    payload = payloads.build(tmp_path / "payload")
    large = made(3000)
    assert len(large) > 250_000
    small_seconds = min(processor_seconds(tmp_path / f"small-{n}", b"version = 2\n", payload) for n in range(2))
    large_seconds = min(processor_seconds(tmp_path / f"large-{n}", large, payload) for n in range(2))
    print(f"{len(large) // 1000} kB: {large_seconds:.2f} s; an empty file: {small_seconds:.2f} s")  # noqa: T201  # the figure
    assert large_seconds < 5 * small_seconds
