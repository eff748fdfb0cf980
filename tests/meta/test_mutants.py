"""What `make mutants` counts, what it leaves out, and how it reads what pytest says."""

from __future__ import annotations

import pytest

from tests.mutants import run
from tests.mutants.run import Mutant

FIRST = Mutant("toolkit_installer/a.py", "x = 1", "x = 2", "x = 2\n")
SECOND = Mutant("toolkit_installer/b.py", "x = 1", "x = 2", "x = 2\n")


def entry(reason: str) -> str:
    return (
        f'[[mutant]]\npath = "{FIRST.path}"\nbefore = "{FIRST.before}"\nafter = "{FIRST.after}"\nreason = "{reason}"\n'
    )


def test_what_the_memory_names_is_not_counted_and_another_takes_its_place() -> None:
    known = run.remembered(entry("Nothing reads it."))
    assert list(known.values()) == ["Nothing reads it."]
    assert run.sample([FIRST, SECOND], known, 1) == [SECOND]
    assert run.sample([FIRST, SECOND], {}, 1) == [FIRST]


def test_an_equivalent_mutant_has_a_reason() -> None:
    with pytest.raises(ValueError, match="has no reason"):
        run.remembered(entry(" "))


def test_the_memory_can_be_read() -> None:
    run.remembered(run.MEMORY.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "killed, tried, sufficient", [(97, 100, True), (96, 100, False), (32, 33, False), (0, 0, True)]
)
def test_97_of_100_are_enough(killed: int, tried: int, *, sufficient: bool) -> None:
    assert run.enough(killed, tried) is sufficient


def test_the_test_that_noticed_is_named_without_its_reason() -> None:
    assert run.why("F\nFAILED tests/unit/test_a.py::test_b - AssertionError\n1 failed\n", 1) == (
        "FAILED tests/unit/test_a.py::test_b"
    )
    assert run.why("cannot import conftest", 4) == "pytest exited with 4: cannot import conftest"
    assert run.why("", -9) == "pytest exited with -9: "


def test_a_survivor_is_shown_as_a_difference() -> None:
    assert "-x = 1\n+x = 2\n" in run.diff("x = 1\n", FIRST)


class Scripted(run.Copy):
    """A copy in which these fail, one run after the other; nothing is run."""

    def __init__(self, *failures: str | None) -> None:
        self.left = list(failures)
        self.asked: list[tuple[str, ...]] = []

    def failure(self, *arguments: str) -> str | None:
        self.asked.append(arguments)
        return self.left.pop(0)


def test_a_test_that_fails_again_by_itself_kills() -> None:
    copy = Scripted("FAILED tests/a.py::b", "FAILED tests/a.py::b")
    assert copy.failure_twice("--quick") == "FAILED tests/a.py::b"
    assert copy.asked == [("--quick",), ("tests/a.py::b",)]


def test_a_flaky_test_kills_no_mutant_and_the_other_tests_are_run_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = Scripted("FAILED tests/a.py::b", None, None)
    assert copy.failure_twice("--quick") is None
    assert copy.asked[-1] == ("--quick", "--deselect", "tests/a.py::b")
    assert "tests/a.py::b failed once, and not again" in capsys.readouterr().out


@pytest.mark.parametrize("failed", ["ERROR tests/unit/test_a.py", "no end after 1200 s", "pytest exited with 4: "])
def test_what_names_no_test_is_not_tried_twice(failed: str) -> None:
    assert Scripted(failed).failure_twice("--quick") == failed


def test_tests_that_have_the_rarer_words_of_a_mutant_come_first() -> None:
    mutant = Mutant("toolkit_installer/reporting/metrics.py", "return listener", "return None", "")
    files = {
        "tests/node/test_all.py": "toolkit_installer lifecycle",
        "tests/node/test_metrics_address.py": "toolkit_installer lifecycle: who is the listener?",
        "tests/node/test_metrics_file.py": "toolkit_installer lifecycle",
        "tests/node/test_zones.py": "",
    }
    assert run.likely(mutant, files) == [
        "tests/node/test_metrics_address.py",
        "tests/node/test_metrics_file.py",
        "tests/node/test_all.py",
        "tests/node/test_zones.py",
    ]
