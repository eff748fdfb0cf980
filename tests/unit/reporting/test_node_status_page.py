"""The page that alerts are made by says what the cluster is told: each reason, each kind of event, and no other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from toolkit_installer.kubernetes.node_state import ConditionReason, NodeState
from toolkit_installer.reporting.cluster import EVENT_REASONS

DOCS = Path(__file__).parents[3] / "docs"


def rows(column: str) -> dict[str, str]:
    """Return what the page says of each reason, in the table whose second column has values like these."""
    page = (DOCS / "node-status.md").read_text(encoding="utf-8")
    return dict(re.findall(rf"^\| `([A-Za-z]+)` \| ({column}) \|", page, re.MULTILINE))


def test_each_event_has_the_reason_and_the_type_that_the_page_gives_it() -> None:
    told = {reason: "Warning" if warning else "Normal" for reason, warning in EVENT_REASONS.values()}
    assert told == rows("Normal|Warning")
    assert len(set(EVENT_REASONS.values())) == len(told), "no reason is of both types"


def test_each_event_comes_of_a_line_of_the_log_that_there_is() -> None:
    lines = set(re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "logs.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert lines >= EVENT_REASONS.keys()


def test_each_reason_of_the_condition_has_the_status_that_the_page_gives_it() -> None:
    page = (DOCS / "node-status.md").read_text(encoding="utf-8")
    said: Mapping[str, str] = {
        reason: status for status, reason in re.findall(r"^\| `(True|False)` \| `([A-Za-z]+)` \|", page, re.MULTILINE)
    }
    assert said == {str(reason): str(NodeState(reason).ready) for reason in ConditionReason}
