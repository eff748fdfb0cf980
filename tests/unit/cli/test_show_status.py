"""How people and machines are shown the status of a node, and its illnesses.

`STATUS_FILES=write pytest …` writes the expected texts anew, to be read before use.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import msgspec
import pytest

from tests.unit.reporting.node_statuses import (
    CASES,
    DIFFERENCE,
    GIVEN,
    LIVE,
    SILENT,
    but,
    engine,
    toolkit,
)
from toolkit_installer.cli import show_status
from toolkit_installer.planning.installed import Damage
from toolkit_installer.reporting import status_verdict
from toolkit_installer.reporting.diagnosis_form import TITLES, Diagnosis, Finding, Illness
from toolkit_installer.reporting.status_verdict import (
    FileHealth,
    Health,
    LiveHealth,
)

ROOT = pathlib.Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "status"
SHOWN = (
    "one-handler-without-devices",
    "low-level-runtime-gone",
    "another-installer",
    "toolkit-alone",
    "whole",
    "bare-with-gpu",
    "bare-without-gpu",
    "driver-broken",
    "engine-reads-another",
    "engine-serves-not",
    "engine-silent",
    "killed-waiting",
    "drift-told",
    "plugin-connected",
    "plugin-lost",
    "reload-pending",
    "run-rejected",
    "run-mistyped",
    "failed-and-mended",
    "run-refused-and-mended",
    "receipt-gone",
    "file-broken",
    "handler-gone",
    "engine-masked",
    "engine-failed",
    "engine-stopped",
    "driver-hangs",
)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", SHOWN)
def test_people_are_shown_what_was_read_and_found_good(name: str, width: int) -> None:
    lines = show_status.status_lines(status_verdict.judge_node(CASES[name][0]), width)
    difference = {line.expandtabs(4) for line in DIFFERENCE.splitlines()}
    assert all(len(line) <= width or " " not in line.strip() or line[9:] in difference for line in lines)
    text = "".join(f"{line}\n" for line in lines)
    file = DATA / f"{name}-{width}.txt"
    if os.environ.get("STATUS_FILES") == "write":
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize(
    "seen, says",
    [
        pytest.param({}, "nvidia is given it", id="gpu-and-driver"),
        pytest.param({"has_gpu": False, "driver": None}, "finds none: the node shows no NVIDIA GPU", id="no-gpu"),
        pytest.param({"has_gpu": None, "driver": None}, "would be given it, if the node has one", id="unknown"),
    ],
)
def test_nothing_is_given_on_a_node_without_a_gpu(seen: dict[str, Any], says: str) -> None:
    health = status_verdict.judge_node(but(method=GIVEN, **seen))
    assert any(line.endswith(says) for line in show_status.status_lines(health, None))


def test_the_default_is_the_live_engines_where_it_answers() -> None:
    def shown(live: LiveHealth, state: str = "as written") -> str:
        lines = show_status.status_lines(status_verdict.judge_node(but(engines=engine(live, state))), None)
        return next(line for line in lines if line.startswith("Handler:"))

    assert "nvidia (default) ->" in shown(msgspec.structs.replace(LIVE, default="nvidia"))
    assert "default" not in shown(msgspec.structs.replace(LIVE, default="runc"))
    assert "nvidia (default in its files) ->" in shown(SILENT)
    assert "default" not in shown(SILENT, "changed by somebody else")


def test_a_path_is_never_torn_however_narrow_the_terminal_is() -> None:
    place = f"/etc/containerd/{'very-' * 30}long.toml"
    found = but(engines=engine(files=(FileHealth(place, "missing"),)))
    for width in (20, 80):
        assert any(
            f"{place}:" in line.split() for line in show_status.status_lines(status_verdict.judge_node(found), width)
        )


def test_in_a_pipe_each_fact_is_one_line() -> None:
    health = status_verdict.judge_node(CASES["driver-broken"][0])
    assert any(len(line) > 120 for line in show_status.status_lines(health, None))


@pytest.mark.parametrize("name", CASES)
def test_the_json_holds_all_that_is_known_and_reads_back(name: str) -> None:
    health = status_verdict.judge_node(CASES[name][0])
    text = show_status.status_json(health)
    assert msgspec.json.decode(text, type=Health) == health
    assert list(json.loads(text))[:3] == ["schema", "verdict", "reasons"]


def test_files_that_were_touched_are_one_line_and_are_not_called_damaged() -> None:
    touched = [Damage(f"{number}.real", "touched since it was put in place", certain=False) for number in range(9)]
    found = status_verdict.judge_node(but(toolkit=toolkit(*touched, Damage("a", "it is empty"))))
    shown = show_status.status_lines(found, None)
    assert [line.strip() for line in shown if "TOUCHED" in line] == [
        "TOUCHED: {0.real,1.real,2.real,3.real,4.real,5.real,6.real,7.real,8.real}: touched since it was put in place"
    ]
    assert [line.strip() for line in shown if "DAMAGED" in line] == ["DAMAGED: a: it is empty"]


ILL = Finding(Illness.LEFTOVER, "/etc/a.toml", 4, "runs a program that is gone", "every container fails", "remove it")


def test_a_diagnosis_counts_the_illnesses_and_names_the_place_of_each() -> None:
    assert show_status.diagnosis_lines(Diagnosis(1, "1", (), ())) == ["No illness found"]
    other = msgspec.structs.replace(ILL, line=None)
    lines = show_status.diagnosis_lines(Diagnosis(1, "1", (ILL, other), ("the CRI: no answer",)))
    title = TITLES[Illness.LEFTOVER]
    assert lines[:6] == [
        "2 illnesses found",
        "",
        f"/etc/a.toml:4: {title}",
        "  What:   runs a program that is gone",
        "  Causes: every container fails",
        "  Remedy: remove it",
    ]
    assert lines[6:8] == ["", f"/etc/a.toml: {title}"]
    assert lines[-2:] == ["", "Not inspected: the CRI: no answer"]


def test_a_diagnosis_as_json_has_all_fields() -> None:
    found = Diagnosis(1, "0.1.0", (ILL,), ("the CRI",))
    assert msgspec.json.decode(show_status.diagnosis_json(found), type=Diagnosis) == found


def test_what_is_printed_of_a_diagnosis_fits_the_terminal() -> None:
    long = Finding(Illness.LEFTOVER, "/etc/a.toml", 4, *(f"{word} " * 40 for word in ("what", "causes", "remedy")))
    lines = show_status.diagnosis_lines(Diagnosis(1, "1", (long,), ("the CRI: " + "no answer " * 20,)), 80)
    assert lines[0] == "1 illness found"
    assert 70 < max(map(len, lines)) <= 80
    assert lines[4].startswith(" " * len("  What:   ") + "what")
