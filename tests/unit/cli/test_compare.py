"""What `compare` prints of many nodes, whose captures it pairs, and which settings it plans an earlier node with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolkit_installer.cli import compare
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.errors import ExitCode
from toolkit_installer.fleet import archive
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.compare import (
    ChangeGroup,
    CompareSummary,
    CompareTotals,
    Comparison,
    DriftedFile,
    DriftGroup,
    FactGroup,
    ReasonGroup,
)
from toolkit_installer.fleet.forecast import RefusalGroup

FILE = "/etc/docker/daemon.json"
DIFF = f"--- {FILE}\n+++ {FILE}\n-oom_score = 2\n+oom_score = 3\n"
HIDDEN = "  (only what is not shown is another: secrets, or what is no text)"
NOTHING = CompareSummary(
    schema=1,
    version="0.1.0",
    nodes=CompareTotals(before=1, after=1, compared=1, unplanned=0, drifted=0, lagging=0, untold=0, unusable=0),
    unplanned=(),
    facts=(),
    drift=(),
    lagging=(),
    only_before=(),
    only_after=(),
    untold=(),
    unusable=(),
)


def texts(**changed: Any) -> list[str]:
    summary = msgspec.structs.replace(NOTHING, **changed)
    return [line.text if isinstance(line, DiffLine) else line for line in compare.lines(summary)]


def test_where_nothing_was_found_only_the_counts_are_printed() -> None:
    assert texts() == ["1 node compared: 0 with a change that nobody planned, 0 with drift, 0 behind."]


def test_all_that_was_found_is_printed_with_its_nodes() -> None:
    refused = RefusalGroup("is damaged", "capture the node again", 3, ["x.capture"])
    lines = texts(
        only_before=("gone",),
        only_after=("new", "newer"),
        unusable=(refused, msgspec.structs.replace(refused, hint=None, nodes=["y.capture", "z.capture"])),
        lagging=(ReasonGroup("nothing is installed", ("n1",)),),
        facts=(FactGroup("the GPUs", "1", "2", ("n1", "n2")),),
        unplanned=(ChangeGroup(FILE, "the plan", "no receipt names it", DIFF, ("n1",)),),
        untold=(ReasonGroup("whether it drifted", ("n3",)),),
    )
    assert lines[1:] == [
        "1 node only before: gone",
        "2 nodes only after: new, newer",
        "",
        "1 capture NOT USED: is damaged",
        "  Hint: capture the node again",
        "  x.capture",
        "",
        "2 captures NOT USED: is damaged",
        "  y.capture, z.capture",
        "",
        "1 node BEHIND: nothing is installed",
        "  n1",
        "",
        "2 nodes UNPLANNED: the GPUs: 1 before, 2 after",
        "  n1, n2",
        "",
        f"1 node UNPLANNED: {FILE} is not as in the plan; no receipt names it",
        "  n1",
        *DIFF.splitlines(),
        "",
        "1 node NOT TOLD: whether it drifted",
        "  n3",
    ]


@pytest.mark.parametrize(
    "against, diff, shown",
    [
        ("what was written", DIFF, DIFF.splitlines()),
        ("what was written", "", [HIDDEN]),
        ("", "", ["  (what was written is in none of the captures, and a run would leave the file as it is)"]),
    ],
)
def test_drift_is_printed_from_what_it_is_compared_with(against: str, diff: str, shown: list[str]) -> None:
    group = DriftGroup("missing", against, diff, ("n1",))
    head, about, *rest = texts(drift=(DriftedFile(FILE, 3, (group,)),))[2:]
    assert head == f"3 nodes with DRIFT in {FILE}:"
    assert about == f"  1 node: missing{f'; from {against} to what stands there' if against else ''}: n1"
    assert rest == shown


def test_of_many_nodes_a_few_are_named() -> None:
    names = tuple(f"n{number}" for number in range(7))
    assert texts(only_before=names)[1] == "7 nodes only before: n0, n1, n2, n3, n4 and 2 more"
    assert texts(only_before=names[:5])[1] == "5 nodes only before: n0, n1, n2, n3, n4"


# --- captures ---

HEAD = Archive(
    schema=archive.SCHEMA,
    version="0.1.0",
    node="n1",
    given={},
    environment={},
    root="/",
    programs_root="/",
    whole=True,
    digests={},
    unread={},
    secrets_kept=False,
    answers={},
    key="k",
)


def head(given: Mapping[str, str], **environment: str) -> Archive:
    texts_of = {name: (text,) for name, text in given.items()}
    return msgspec.structs.replace(HEAD, given=texts_of, environment=environment)


def test_an_earlier_node_is_planned_with_the_later_settings_at_its_own_place() -> None:
    earlier = head({"node_root": "/before", "runtime": "docker"}, DRIVER_ROOT_CTR_PATH="/d/before", RUNTIME="crio")
    later = head({"node_root": "/after", "runtime": "containerd"}, DRIVER_ROOT_CTR_PATH="/d/after", NODE_ROOT="/x")
    settings = compare._settings(earlier, later)
    assert settings.node_root == "/before"
    assert settings.toolkit.driver_root_ctr_path == "/d/before"
    assert [str(name) for name in settings.runtimes] == ["containerd"]
    assert compare._settings(head({}), later).node_root is None


def write(folder: Path, name: str, node: str) -> Path:
    file = folder / name
    file.write_bytes(archive.packed(msgspec.structs.replace(HEAD, node=node), {}))
    return file


def test_captures_are_known_by_their_nodes_and_a_second_one_is_not_used(tmp_path: Path) -> None:
    files = {node: write(tmp_path, f"{node}.capture", node) for node in ("n1", "n2")}
    write(tmp_path, "n2-again.capture", "n2")
    (tmp_path / "broken.capture").write_bytes(b"no capture")
    comparison = Comparison()
    found = compare._find_captures(str(tmp_path), comparison)
    assert set(found) == set(files)
    refused = [(each.reason, each.nodes) for each in comparison.summary("0").unusable]
    assert len(refused) == 2
    assert any("is a second capture of n2" in reason for reason, _ in refused)
    assert any(nodes == [str(tmp_path / "broken.capture")] for _, nodes in refused)


def test_captures_that_cannot_be_used_are_an_error_in_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.capture").write_bytes(b"no capture")
    places = str(tmp_path / "before"), str(tmp_path / "after")
    assert compare.compare(*places, as_json=True, debug=False) == ExitCode.BAD_CONFIGURATION
    shown = json.loads(capsys.readouterr().out)
    assert (shown["nodes"]["compared"], shown["nodes"]["unusable"]) == (0, 2)
    assert compare.compare(*places, as_json=False, debug=False) == ExitCode.BAD_CONFIGURATION
    assert capsys.readouterr().out.startswith("0 nodes compared: ")
