"""The table of what was seen on a real Kubernetes, one row a scenario and one column a node: for docs/compatibility.md.

The page has two writers, `make compatibility` and this one: each keeps the other's part.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.support.reports.compatibility import aligned

PROPERTY = "cluster"
"""The name under which a test records how often each node's engine was restarted."""
_HEADING = "\n## On a real Kubernetes\n"


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One scenario: how often each engine, by its name and version, was restarted; None: that cannot be told."""

    name: str
    ok: bool
    restarts: Mapping[str, int | None]


def scenarios_of(reports: Iterable[Any]) -> list[Scenario]:
    """Return what pytest's reports carry, in the order of the run; ok is where nothing of its test failed."""
    failed, recorded = set(), {}
    for report in reports:
        if getattr(report, "failed", False):
            failed.add(report.nodeid)
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY:
                recorded[report.nodeid] = value
    return [Scenario(_words(nodeid), nodeid not in failed, value) for nodeid, value in recorded.items()]


def _words(nodeid: str) -> str:
    test, _, _group = nodeid.rpartition("::test_")[2].partition("@")
    return test.replace("_", " ").replace("[", " (").replace("]", ")")


def table(scenarios: Sequence[Scenario]) -> list[str]:
    """Return the lines of the table."""
    engines = list(dict.fromkeys(engine for each in scenarios for engine in each.restarts))
    rows = [["scenario", *engines]]
    rows += [[each.name, *(_cell(each, engine) for engine in engines)] for each in scenarios]
    return aligned(rows)


def _cell(scenario: Scenario, engine: str) -> str:
    restarts = scenario.restarts.get(engine)
    said = "ok" if scenario.ok else "FAILED"
    return said if restarts is None else f"{said}, {restarts}x"


def with_scenarios(page: str, scenarios: Sequence[Scenario], today: dt.date) -> str:
    """Return the page with this table in place of an older one."""
    wrote = f"`make e2e-cluster ARGS='--compatibility docs/compatibility.md'` wrote this table on {today.isoformat()}."
    return page.partition(_HEADING)[0] + _HEADING + _PART.format(wrote=wrote, table="\n".join(table(scenarios)))


def with_part_of(page: str, old: str) -> str:
    """Return a page that was written anew with the table that an older one had."""
    _, heading, part = old.partition(_HEADING)
    return page + heading + part


_PART = """
{wrote}

Each row is a test: its sentence, whether it held, and how often the engine of each node was restarted meanwhile (2x: to
install, and to give the node back; docker is only signalled). What the scenarios are, and what is compared before and
after each, is described in [kubernetes.md](kubernetes.md#what-was-seen-on-a-real-cluster).

{table}
"""
