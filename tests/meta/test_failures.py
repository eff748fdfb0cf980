"""The list of what failed, which is read from a log's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.reports import failures

pytest_plugins = ["pytester"]


def reported(pytester: pytest.Pytester, test: str) -> Path:
    """Return the report of a real run of one file of tests."""
    pytester.makepyfile(test)
    pytester.runpytest("--junitxml=report.xml", "-p", "no:randomly")
    return pytester.path / "report.xml"


def test_a_failed_test_is_named_with_the_first_line_of_its_reason(pytester: pytest.Pytester) -> None:
    report = reported(pytester, "def test_it():\n    raise ValueError('first line\\nsecond line')")
    (line,) = failures.failures(report)
    assert line.endswith("::test_it: ValueError: first line")


def test_a_test_that_could_not_be_set_up_counts_as_failed(pytester: pytest.Pytester) -> None:
    report = reported(
        pytester, "import pytest\n@pytest.fixture\ndef it():\n    assert 0, 'no engine'\ndef test_it(it):\n    pass"
    )
    (line,) = failures.failures(report)
    assert "::test_it: " in line
    assert "no engine" in line


def test_nothing_is_printed_where_all_passed_or_nothing_ran(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reported(pytester, "import pytest\ndef test_it():\n    pass\ndef test_not():\n    pytest.skip('no')")
    capsys.readouterr()
    failures.main([str(report), str(report.with_name("not-there.xml"))])
    assert capsys.readouterr().out == ""
