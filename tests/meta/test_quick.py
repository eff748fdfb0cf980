"""What `make test` leaves to `make test-all`: the same tests each time, and of each sweep not all."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import RARE
from tests.support import quick

ROOT = Path(__file__).parents[2]
SWEEP = "tests/node/test_sweep.py"


def item(nodeid: str, obj: Any = None) -> Any:
    cell = nodeid.partition("[")[2].removesuffix("]")
    found = SimpleNamespace(nodeid=nodeid, obj=obj)
    if cell:
        found.callspec = SimpleNamespace(id=cell)
    return found


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "SWEEPS", {SWEEP: ("docker-*",)})
    monkeypatch.setattr(quick, "STEPS", {"tests/node/test_long.py": 3, "tests/unit/test_long.py": 4})
    monkeypatch.setattr(quick, "RARE", {SWEEP: ("*-rare",)})
    monkeypatch.setattr(quick, "HALVED", ("tests/node/test_m*.py",))
    monkeypatch.setattr(quick, "STEP", 2)


def tried(*names: str) -> list[str]:
    items = [item(name) for name in names]
    left_out = [each.nodeid for each in quick.exhaustive(items)]
    return [name for name in names if name not in left_out]


def test_of_a_sweep_the_named_cells_are_tried_and_what_has_no_cells() -> None:
    names = [f"{SWEEP}::test_it[docker-run]", f"{SWEEP}::test_it[containerd-run]", f"{SWEEP}::test_the_sweep_itself"]
    assert tried(*names) == [names[0], names[2]]


@pytest.mark.parametrize("file, every", [("node/test_long.py", 3), ("node/test_any.py", 2), ("unit/test_long.py", 4)])
def test_of_other_files_every_so_many_tests_are_tried_from_the_first_on(file: str, every: int) -> None:
    names = [f"tests/{file}::test_number_{number}" for number in range(7)]
    # between those of another file, as xdist sorts them
    mixed = [
        name for pair in zip(names, [f"tests/unit/test_x.py::test_{n}" for n in range(7)], strict=True) for name in pair
    ]
    assert [name for name in tried(*mixed) if name in names] == names[::every]


def test_what_is_left_for_later_and_what_is_tried_whole_are_all_there_is() -> None:
    @given(st.integers())
    def rule(number: int) -> None:
        assert isinstance(number, int)

    every = [item(f"{SWEEP}::test_it[{cell}]") for cell in ("docker-run", "containerd-run")]
    every += [item(f"tests/unit/test_it.py::test_{n}") for n in range(3)]
    rules = [item("tests/unit/test_it.py::test_rule", rule)]
    later = quick.exhaustive([*every, *rules])
    tried_whole = quick.whole([*every, *rules])
    assert [each.nodeid for each in later] == [f"{SWEEP}::test_it[containerd-run]"]
    assert [each for each in [*every, *rules] if each not in later and each not in tried_whole] == rules
    assert not [each for each in later if each in tried_whole]


def test_the_rest_has_all_that_is_left_but_the_rare_cells() -> None:
    cells = [item(f"{SWEEP}::test_it[{cell}]") for cell in ("docker-run", "containerd-run", "containerd-rare")]
    left = quick.rest(cells)
    assert [each for each in cells if each not in left] == cells[1:2]
    assert quick.rare(cells) == cells[2:]
    many = [item(f"tests/node/test_many.py::test_it[{number}]") for number in range(8)]
    assert quick.rare(many) == [many[3], many[7]]
    assert [each for each in many if each not in quick.rest(many)] == [many[1], many[5]]


@pytest.mark.parametrize(
    "count, expected", [(0, []), (5, [0, 1, 2, 3, 4]), (9, [0, 2, 4, 6, 8]), (100, [0, 25, 50, 74, 99])]
)
def test_of_many_attempts_some_are_tried_from_the_first_to_the_last(count: int, expected: list[int]) -> None:
    assert list(quick.few(range(count))) == expected
    assert list(quick.all_of(range(count))) == list(range(count))


def test_what_tries_few_is_tried_once_more_with_all() -> None:
    trying, other = item("tests/unit/test_it.py::test_trying"), item("tests/unit/test_it.py::test_other")
    trying.fixturenames, other.fixturenames = ["few", "tmp_path"], ["tmp_path"]
    assert quick.exhaustive([trying, other]) == []
    assert quick.whole([trying, other]) == [other]


def test_of_the_unit_tests_all_are_tried_but_of_the_files_that_are_named() -> None:
    names = [f"tests/unit/test_it.py::test_it[{number}]" for number in range(5)]
    assert tried(*names) == names


def test_a_table_that_does_not_fit_the_tests_is_found() -> None:
    fitting = [
        item(f"{SWEEP}::test_it[docker-run]"),
        item(f"{SWEEP}::test_it[docker-rare]"),
        item("tests/node/test_long.py::test_it"),
        item("tests/unit/test_long.py::test_it"),
        item("tests/node/test_many.py::test_it"),
    ]
    assert quick.find_faults(fitting) == []
    assert quick.find_faults([*fitting[:3], fitting[4]]) == ["there is no tests/unit/test_long.py"]
    assert quick.find_faults(fitting[:4]) == ["no file is 'tests/node/test_m*.py'"]
    other = item(f"{SWEEP}::test_it[crio-run]")
    assert quick.find_faults([other, *fitting[2:]]) == [
        f"{SWEEP} has no '*-rare'",
        f"{SWEEP} has no 'docker-*'",
        f"no cell of {SWEEP}::test_it is named",
    ]


@pytest.mark.parametrize("asked, expected", [(None, quick.EXAMPLES), (400, quick.EXAMPLES), (7, 7)])
def test_few_examples_are_tried_of_what_holds_for_all_inputs(asked: int | None, expected: int) -> None:
    seen = []

    @given(st.integers())
    def rule(number: int) -> None:
        seen.append(number)

    function = rule if asked is None else settings(max_examples=asked)(rule)
    quick.limit(item("tests/unit/test_it.py::test_it", function))
    function()
    assert len(seen) == expected


def test_what_is_no_rule_for_all_inputs_is_left_as_it_is() -> None:
    quick.limit(item("tests/unit/test_it.py::test_it", len))


def test_each_pattern_of_rare_e2e_tests_matches_one() -> None:
    files = dict.fromkeys(f"tests/e2e/{pattern.partition('::')[0]}" for pattern in RARE)
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-m", "rare", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found = [line.removeprefix("tests/e2e/") for line in done.stdout.splitlines() if "::" in line]
    assert [pattern for pattern in RARE if not any(fnmatchcase(name, pattern) for name in found)] == []
