"""What holds for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings

# A slow machine is no failure: nothing here depends on the clock.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

_INSTANTS = "instants"


@pytest.fixture
def count_instants(record_property: Callable[[str, object], None]) -> Callable[[int, Sequence[str]], None]:
    """Return what a test calls with how many instants it tried, and those of them that left a node broken."""
    return lambda tried, broken: record_property(_INSTANTS, (tried, len(broken)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show for each file of tests how many instants it tried, and their sum: also where other processes ran them."""
    counted = [
        (report.nodeid, value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in _properties(report)
        if name == _INSTANTS
    ]
    if not counted:
        return
    terminalreporter.section("every instant")
    files: dict[str, list[tuple[int, int]]] = {}
    for nodeid, value in counted:
        files.setdefault(nodeid.partition("::")[0], []).append(value)
    for name, values in [*sorted(files.items()), ("all", [value for _, value in counted])]:
        tried, broken = (sum(column) for column in zip(*values, strict=True))
        terminalreporter.write_line(f"{tried:6d} instants, {broken} broken  {name}")


def _properties(report: Any) -> Iterable[tuple[str, Any]]:
    return report.user_properties if getattr(report, "when", "") == "call" else ()
