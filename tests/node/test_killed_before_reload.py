"""A run is killed between its change and the reload: it has noted which process has not read the change."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.node.engines.live import SOCKET, FakeDockerd
from tests.node.instants import stopping
from tests.support.fake_node import DAEMON_JSON, FakeNode
from toolkit_installer.node.processes import inspect_process

RECEIPT = "/usr/local/nvidia/.toolkit-installer/receipt.json"
SWAPPED = "unlink .daemon.json.toolkit-installer.swap"
"""What a run does right after it has put the new file in the place of the old one."""
ONCE = ("run", "--no-daemon", "--socket", SOCKET)


@pytest.fixture
def dockerd(node: FakeNode) -> Iterator[FakeDockerd]:
    node.write(DAEMON_JSON, b'{\n  "debug": true\n}\n', 0o600)
    with FakeDockerd(node) as engine:
        yield engine


def test_a_killed_run_has_noted_which_process_had_not_read_the_change(node: FakeNode, dockerd: FakeDockerd) -> None:
    with stopping(node, SWAPPED, *ONCE) as killed:
        killed.process.kill()
        killed.process.wait()
    (record,) = json.loads(node.read(RECEIPT))["engines"]
    process = inspect_process(dockerd.pid)
    assert process is not None
    assert record["unread_by"] == list(process.identity)
    assert record["reload_due"]
    assert node.do(*ONCE).process.returncode == 0
    (record,) = json.loads(node.read(RECEIPT))["engines"]
    assert record["unread_by"] is None
    assert not record["reload_due"]
