"""What a run tells the cluster when it is told to stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.support.api_server import DAEMON_SET, DAEMON_SET_PATH, NODE, NODE_PATH, Server, serving
from toolkit_installer.kubernetes.node_state import NodeState, Reason
from toolkit_installer.lifecycle.node_report import NodeReport
from toolkit_installer.settings import ReportSettings, Taint

TAINT = Taint("nvidia.com/toolkit", "", "NoSchedule")
READY = NodeState(Reason.SERVING, "docker nvidia")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as serves:
        serves.cluster.objects[NODE_PATH]["spec"].pop("taints")
        pod = serves.cluster.objects[DAEMON_SET_PATH]["spec"]["template"]["spec"]
        pod["tolerations"] = [{"operator": "Exists"}]
        yield serves


def report(server: Server, *, stopping: bool, retaint: bool) -> NodeReport:
    node: Any = SimpleNamespace(services=SimpleNamespace(is_stopping=lambda: stopping))
    settings = ReportSettings(NODE, "127.0.0.1", server.port, str(server.account), DAEMON_SET, "x/Ready", TAINT)
    return NodeReport(msgspec.structs.replace(settings, retaint=retaint), node)


@pytest.mark.parametrize(
    "stopping, retaint, tainted", [(True, True, True), (False, True, False), (True, False, False)], ids=str
)
def test_a_node_that_goes_down_is_tainted_before_the_next_boot_and_no_other(
    server: Server, *, stopping: bool, retaint: bool, tainted: bool
) -> None:
    told = report(server, stopping=stopping, retaint=retaint)
    told.tell(READY, None)
    assert not server.cluster.objects[NODE_PATH]["spec"].get("taints")
    told.leave()
    found = server.cluster.objects[NODE_PATH]["spec"].get("taints") or []
    assert [each["key"] for each in found] == ([TAINT.key] if tainted else [])
    reasons = [each["reason"] for each in server.cluster.objects[NODE_PATH]["status"]["conditions"]]
    assert reasons[-1] == ("Installing" if tainted else "Serving")
