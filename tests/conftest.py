"""What holds for every test."""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import quick, warm_start
from tests.support.reports import cluster_table, compatibility
from tests.support.reports.cluster_table import Scenario
from tests.support.reports.compatibility import Result
from toolkit_installer.node import reading

# A slow machine is no failure: nothing here depends on the clock.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")

_INSTANTS = "instants"
_E2E = Path(__file__).with_name("e2e")


@pytest.fixture(autouse=True)
def _real_start(request: pytest.FixtureRequest) -> Iterator[None]:
    anew = request.node.get_closest_marker("real_start") is not None or request.path.is_relative_to(_E2E)
    with warm_start.from_scratch() if anew else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def _nothing_read_yet() -> None:
    """Have no test hide values in words because another one has read them."""
    for known in (reading.cached_files, reading.cached_commands, reading.cached_environments):
        known.clear()


@pytest.fixture
def few(request: pytest.FixtureRequest) -> quick.Few:
    """Return what chooses among a test's many attempts: all, or a few with --quick."""
    return quick.few if request.config.getoption("quick") else quick.all_of


@pytest.fixture
def count_instants(request: pytest.FixtureRequest) -> Callable[[int, Sequence[str]], None]:
    """Return what a test calls with how many instants it tried, and those of them that left a node broken."""
    # not by record_property, which warns where a file for CI is written (--junitxml) as well
    properties = request.node.user_properties
    return lambda tried, broken: properties.append((_INSTANTS, (tried, len(broken))))


def pytest_configure(config: pytest.Config) -> None:
    """Put the files of tests into memory where the worker has made room for them there (tests/support/setup/worker)."""
    if (folder := os.environ.pop("TESTS_IN_MEMORY", None)) is not None:
        config.option.basetemp = os.path.join(folder, "tests")
    if hasattr(config, "workerinput"):
        atexit.register(_end_at_once)
    if config.getoption("rest"):
        config.option.loadscopereorder = False  # pytest-xdist's: the order is the one below


def _end_at_once() -> None:
    """End a worker whose results have been sent: the kernel takes its memory back as one piece.

    Python would look at each of a million objects for garbage, and take each apart: a second, for which all wait.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor ever at what was collected: it stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take whether the sweeps are tried in part, and the file that is to hold the table of engines."""
    parser.addoption(
        "--quick", action="store_true", help="of the sweeps, and of rules for all inputs, a part: quick.py"
    )
    parser.addoption("--rest", action="store_true", help="only what --quick leaves out, or tries in part")
    parser.addoption("--rare", action="store_true", help="only what --rest leaves out too: quick.py")
    parser.addoption("--compatibility", type=Path, metavar="FILE", help="write what was seen on which engine, a page")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out with --quick what only `make test-all` runs, with --rest all else; named files are run whole."""
    rest = config.getoption("rest")
    rare = config.getoption("rare")
    if not (config.getoption("quick") or rest or rare) or config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    if rare:
        chosen_ones = {item.nodeid for item in quick.rare(items)}
        left_out = [item for item in items if item.nodeid not in chosen_ones]
    else:
        left_out = quick.rest(items) if rest else quick.exhaustive(items)
    if wrong := quick.find_faults(items):
        raise pytest.UsageError("tests/support/quick.py: " + "; ".join(wrong))
    chosen = set(left_out)
    items[:] = [item for item in items if item not in chosen]
    config.hook.pytest_deselected(items=left_out)
    if rest:
        # The great sweeps, which are in groups, want processors, and others wait for much: those come first while
        # make e2e, beside which this is run, wants processors as well. Towards its end it waits.
        items.sort(key=lambda item: item.get_closest_marker("xdist_group") is not None)
    for item in items if config.getoption("quick") else ():
        quick.limit(item)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show what the tests counted: also where some failed, and where other processes ran them."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    _show_instants(terminalreporter, reports)
    results = compatibility.results_of(reports)
    if results:
        terminalreporter.section("every engine")
        for line in [*compatibility.table(results), "", *compatibility.resolution(results)]:
            terminalreporter.write_line(line)
    scenarios = cluster_table.scenarios_of(reports)
    if scenarios:
        terminalreporter.section("a real Kubernetes")
        for line in cluster_table.table(scenarios):
            terminalreporter.write_line(line)
    if page := config.getoption("compatibility"):
        _write(page, results, scenarios)


def _write(page: Path, results: Sequence[Result], scenarios: Sequence[Scenario]) -> None:
    """Write those parts of the page that were seen, and keep the others."""
    today = dt.datetime.now(tz=dt.UTC).date()
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if results:
        text = cluster_table.with_part_of(compatibility.page(results, today), text)
    if scenarios:
        text = cluster_table.with_scenarios(text, scenarios, today)
    if results or scenarios:
        page.write_text(text, encoding="utf-8")


def _show_instants(terminalreporter: Any, reports: Iterable[Any]) -> None:
    """Show for each file of tests how many instants it tried, and their sum."""
    counted = [(report.nodeid, value) for report in reports for name, value in _properties(report) if name == _INSTANTS]
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
