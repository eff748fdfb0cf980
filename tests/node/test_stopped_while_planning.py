"""A run that plans with a large file of somebody else's ends within a second of its signal, and changes nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from tests.support.fake_node import CONFIG_TOML, CRIO_SITE, DAEMON_JSON, FakeNode, Run

_SIZE = 4_000_000
"""Bytes. A file may have 4 MiB."""
_ENOUGH_SECONDS = 2.0
"""Of processor time: all is imported by then, and the file is being read."""
_MOST_SECONDS = 1.0
_TICK = 1 / os.sysconf("SC_CLK_TCK")

FILES = {
    "docker-lists": ("docker", DAEMON_JSON, '{"x": [' + "[]," * (_SIZE // 3) + "[]]}"),
    "docker-names": ("docker", DAEMON_JSON, "{" + ",".join(f'"k{n:06}": 1' for n in range(_SIZE // 13)) + "}"),
    "containerd-tables": ("containerd", CONFIG_TOML, "".join(f"[a.k{n:06}]\n" for n in range(_SIZE // 12))),
    "containerd-lines": ("containerd", CONFIG_TOML, "version = 2\n" + "#\n" * (_SIZE // 2)),
    "crio-names": ("crio", CRIO_SITE, "[crio.runtime]\n" + "".join(f"k{n:06} = 1\n" for n in range(_SIZE // 12))),
}


def processor_seconds(run: Run) -> float:
    """Return the processor time that a run has taken so far. Raises OSError if it is gone."""
    with open(f"/proc/{run.pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ProcessLookupError
    return (int(fields[11]) + int(fields[12])) * _TICK


@pytest.mark.parametrize("name", FILES)
def test_a_signal_ends_a_run_that_plans_with_a_large_file_within_a_second(node: FakeNode, name: str) -> None:
    engine, path, content = FILES[name]
    node.write(path, content)
    before = {place: entry for place, entry in node.snapshot().items() if not place.startswith("/run")}
    run = node.start("--no-daemon", engine=engine)
    run.wait_for("Starting")
    with contextlib.suppress(OSError):
        while processor_seconds(run) < _ENOUGH_SECONDS:
            time.sleep(0.01)
    begun = last = processor_seconds(run)
    run.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(OSError):
        while last < begun + 10 * _MOST_SECONDS:
            last = processor_seconds(run)
            time.sleep(0.01)
    assert last - begun < _MOST_SECONDS
    assert run.finish() == 128 + signal.SIGTERM
    assert {place: entry for place, entry in node.snapshot().items() if not place.startswith("/run")} == before
