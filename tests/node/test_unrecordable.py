"""What a receipt cannot say is refused while planning: `plan` says so as `run` does, and neither changes anything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.node.faults import run
from tests.support.fake_node import DAEMON_JSON, NOTHING_TO_DO, FakeNode

ODD = os.fsdecode(b"\xff")
"""A byte of a name that is no UTF-8, as Python has it."""
UNREADABLE = "could not be written so that it can be read again"


def linked(path: str) -> Callable[[FakeNode], None]:
    """Return what makes a folder of the node a link to one with such a name."""

    def make(node: FakeNode) -> None:
        place = node.place(path)
        shutil.rmtree(place, ignore_errors=True)
        (place.parent / ODD).mkdir(parents=True)
        place.symlink_to(ODD)

    return make


def with_an_attribute(node: FakeNode) -> None:
    node.write(DAEMON_JSON, "{}")
    os.setxattr(node.place(DAEMON_JSON), b"user.\xff", b"1")


FOUND: dict[str, tuple[str, Callable[[FakeNode], None]]] = {
    "install folder": ("docker", linked("/usr/local/nvidia")),
    "folder above it": ("docker", linked("/usr/local")),
    "folder of the PID file": ("docker", linked("/run/nvidia")),
    "folder of the configuration": ("docker", linked("/etc/docker")),
    "folder of containerd's": ("containerd", linked("/etc/containerd")),
    "folder of CRI-O's drop-ins": ("crio", linked("/etc/crio/crio.conf.d")),
    "attribute": ("docker", with_an_attribute),
}
every_thing = pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)


@every_thing
@pytest.mark.parametrize("command", [("plan",), ("run", "--no-daemon")], ids=["plan", "run"])
def test_what_no_receipt_can_name_is_refused_before_anything_is_written(
    node: FakeNode, tmp_path: Path, found: tuple[str, Callable[[FakeNode], None]], command: tuple[str, ...]
) -> None:
    engine, make = found
    make(node)
    before, stamps = node.snapshot(), node.stamps()
    done = run(node, tmp_path, *command, engine=engine)
    assert done.code == 3, done.output
    assert UNREADABLE in done.output
    assert "receipt.json" in done.output
    assert node.snapshot() == before
    changed = {path for path, stamp in node.stamps().items() if stamp != stamps[path]}
    assert changed <= {f"/run/{ODD}"}, "the PID file's folder alone"


def test_a_node_that_is_right_needs_no_receipt_and_is_not_refused(node: FakeNode, tmp_path: Path) -> None:
    assert run(node, tmp_path, "run", "--no-daemon").code == 0
    linked("/run/nvidia")(node)
    for command in (("plan",), ("run", "--no-daemon")):
        done = run(node, tmp_path, *command)
        assert done.code == 0, done.output
        assert NOTHING_TO_DO in done.output
