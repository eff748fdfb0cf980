"""The table of scenarios on a real Kubernetes, and the page that it shares with the table of engines."""

from __future__ import annotations

import dataclasses
import datetime as dt
from types import SimpleNamespace

from tests.support.reports.cluster_table import PROPERTY, Scenario, scenarios_of, table, with_part_of, with_scenarios

TODAY = dt.date(2026, 1, 2)
DRAINED = Scenario("a node is drained", ok=True, restarts={"containerd 1.6.20": 0, "docker 28.5.2": 0})
BOOTED = Scenario("a node is booted", ok=False, restarts={"containerd 1.6.20": None, "docker 28.5.2": 2})


def cells(lines: list[str]) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_scenario_has_a_row_and_each_engine_a_column() -> None:
    head, _, drained, booted = cells(table([DRAINED, BOOTED]))
    assert head == ["scenario", "containerd 1.6.20", "docker 28.5.2"]
    assert drained == ["a node is drained", "ok, 0x", "ok, 0x"]
    assert booted == ["a node is booted", "FAILED", "FAILED, 2x"]


def test_a_scenario_failed_where_anything_of_its_test_did() -> None:
    nodeid, recorded = "tests/e2e/test_a.py::test_an_outage[etcd]", [(PROPERTY, {"crio 1.34.0": 1})]
    call = SimpleNamespace(nodeid=nodeid, failed=False, user_properties=[])
    down = SimpleNamespace(nodeid=nodeid, failed=False, user_properties=recorded)
    other = SimpleNamespace(nodeid="tests/unit/test_b.py::test_b", failed=True, user_properties=[])
    expected = Scenario("an outage (etcd)", ok=True, restarts={"crio 1.34.0": 1})
    assert scenarios_of([call, down, other]) == [expected]
    down.failed = True
    assert scenarios_of([call, down, other]) == [dataclasses.replace(expected, ok=False)]


def test_neither_writer_of_the_page_erases_the_other_part() -> None:
    page = with_scenarios("# Engines\n\nold\n", [DRAINED], TODAY)
    assert page.startswith("# Engines\n\nold\n\n## On a real Kubernetes\n")
    again = with_scenarios(page, [BOOTED], TODAY)
    assert "a node is booted" in again
    assert "a node is drained" not in again
    assert again.count("## On a real Kubernetes") == 1
    rewritten = with_part_of("# Engines\n\nnew\n", again)
    assert rewritten == again.replace("old", "new")
    assert with_part_of("# Engines\n\nnew\n", "# Engines\n\nold\n") == "# Engines\n\nnew\n"
