"""Many nodes put together: those that fare alike are one group, and no others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolkit_installer.cli.replay import lines
from toolkit_installer.cli.show_plan import Planned, PlannedEngine, PlannedFile, PlannedMethod
from toolkit_installer.fleet.forecast import Fleet, Impact, Outcome, OutcomeGroup, Refusal
from toolkit_installer.reporting.diagnosis_form import Finding, Illness

ENGINE = PlannedEngine("containerd", (), (PlannedFile("/etc/a", "+x"),), "systemd", "containerd.service", "why", None)
PLANNED = Planned(
    schema=1,
    version="1",
    summary="1 file",
    stops=None,
    nothing_to_do=False,
    gpus=(),
    toolkit_folder="/toolkit",
    engines=(ENGINE,),
    method=PlannedMethod("handlers", "of all engines", ()),
)
UNTOUCHED = Impact()


def outcome(node: str, impact: Impact = UNTOUCHED, **changed: Any) -> Outcome:
    planned = msgspec.to_builtins(msgspec.structs.replace(PLANNED, **changed))
    return Outcome(node, f"{node}.capture", planned=planned, impact=impact)


def grouped(*outcomes: Outcome) -> list[list[str]]:
    fleet = Fleet()
    for each in outcomes:
        fleet.add(each)
    return [group.nodes for group in fleet.summary("1").groups]


def test_what_differs_from_node_to_node_and_is_no_change_parts_nobody() -> None:
    said = msgspec.structs.replace(PLANNED.method or PlannedMethod("", "", ()), why="of another engine")
    assert grouped(outcome("a"), outcome("b", gpus=("an L4",), method=said, version="2")) == [["a", "b"]]


@pytest.mark.parametrize(
    "changed",
    [
        {"method": PlannedMethod("cdi", "it reads them", ())},
        {"engines": (msgspec.structs.replace(ENGINE, reload="signal"),)},
        {"engines": (msgspec.structs.replace(ENGINE, files=(PlannedFile("/etc/a", "+y"),)),)},
        {"install": ("nvidia-ctk",)},
        {"waits_for": "Sat 02:00-04:00"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_nodes_that_fare_otherwise_are_told_apart(changed: dict[str, Any]) -> None:
    assert sorted(grouped(outcome("a"), outcome("b", **changed))) == [["a"], ["b"]]


def test_each_nodes_fate_is_the_worst_that_becomes_of_it() -> None:
    fleet = Fleet()
    fleet.add(outcome("restarted", Impact(reloads=1, restarts=1)))
    fleet.add(outcome("reloaded", Impact(reloads=1)))
    fleet.add(outcome("changed"))
    fleet.add(outcome("converged", nothing_to_do=True))
    fleet.add(Outcome("refused", "x", refusal=Refusal("no", None, 3, "x")))
    assert [fate.outcome for fate in fleet.results] == [fate.node for fate in fleet.results]


def test_damaged_captures_are_one_group_though_each_reason_names_its_file() -> None:
    fleet = Fleet()
    for name in ("a", "b"):
        file = f"/captures/{name}.capture"
        fleet.add(Outcome(name, file, refusal=Refusal(f"{file}: is damaged: it ends too soon", None, 3, "x")))
    (group,) = fleet.summary("1").refusals
    assert (group.nodes, group.reason) == (["a", "b"], "the capture is damaged: it ends too soon")


def test_illnesses_are_counted_by_nodes_also_of_those_that_refuse() -> None:
    missing = Finding(Illness.NO_RUNTIME, "/etc/a", 3, "what", "causes", "remedy")
    left = msgspec.structs.replace(missing, illness=Illness.LEFTOVER)
    fleet = Fleet()
    fleet.add(msgspec.structs.replace(outcome("a"), illnesses=(missing, missing)))
    refused = Outcome("b", "b.capture", refusal=Refusal("no", None, 3, "x"), illnesses=(missing, left))
    fleet.add(refused)
    fleet.add(msgspec.structs.replace(outcome("c"), illnesses=()))
    fleet.add(outcome("older"))
    summary = fleet.summary("1")
    assert [(each.illness, each.nodes, each.findings) for each in summary.illnesses] == [
        ("no-runtime", ["a", "b"], 3),
        ("leftover", ["b"], 1),
    ]
    assert summary.undiagnosed == ("older",)
    shown = [line for line in lines(summary) if isinstance(line, str)]
    assert "2 nodes ILL: a low-level runtime is missing (no-runtime)" in shown
    assert "The captures of 1 node do not say what illnesses they have: older" in shown


def test_groups_with_one_summary_are_told_apart_by_their_engines() -> None:
    other = (msgspec.structs.replace(ENGINE, notes=("x",)),)
    fleet = Fleet()
    fleet.add(msgspec.structs.replace(outcome("a"), systems=("containerd 1.7.24",)))
    fleet.add(msgspec.structs.replace(outcome("b", engines=other), systems=("containerd 2.1.4 of k3s",)))
    titles = sorted(group.title for group in fleet.summary("1").groups)
    assert titles == ["1 file (containerd 1.7.24)", "1 file (containerd 2.1.4 of k3s)"]
    assert {fate.group.title for fate in fleet.results if isinstance(fate.group, OutcomeGroup)} == set(titles)


def test_groups_that_no_engine_tells_apart_name_a_line_of_their_files() -> None:
    fleet = Fleet()
    for name, added in (("a", "+x"), ("b", "+y")):
        file = PlannedFile("/etc/a", f"--- a\n+++ b\n common\n{added}\n")
        fleet.add(outcome(name, engines=(msgspec.structs.replace(ENGINE, files=(file,)),)))
    assert sorted(group.title for group in fleet.summary("1").groups) == ["1 file (with x)", "1 file (with y)"]


def test_groups_that_nothing_tells_apart_are_numbered() -> None:
    fleet = Fleet()
    for name, notes in (("a", ("x",)), ("b", ("y",))):
        fleet.add(outcome(name, engines=(msgspec.structs.replace(ENGINE, notes=notes),)))
    titles = sorted(group.title for group in fleet.summary("1").groups)
    assert titles == ["1 file (variant 1)", "1 file (variant 2)"]


def test_a_summary_that_is_the_only_one_says_no_more() -> None:
    fleet = Fleet()
    fleet.add(msgspec.structs.replace(outcome("a"), systems=("containerd 1.7.24",)))
    assert [group.title for group in fleet.summary("1").groups] == ["1 file"]
