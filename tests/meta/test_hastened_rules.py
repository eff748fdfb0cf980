"""The rules that the tests' Prometheus evaluates are the shipped ones, with every time divided by one number."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support import prometheus
from tests.support.prometheus import HASTE, durations, hastened

TIMES = re.compile(r"\d+(ms|s|m|h|d|w|y)\b")


def leaves(document: Any, place: str = "") -> dict[str, str]:
    """Return all that a document says, by where it says it."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    found: dict[str, str] = {}
    for key, value in items:
        below = f"{place}/{key}"
        found |= leaves(value, below) if isinstance(value, dict | list) else {below: str(value)}
    return found


def test_nothing_but_times_differs_and_each_of_them_by_the_same_factor() -> None:
    shipped, ours = leaves(prometheus.rules()), leaves(prometheus.hastened_rules())
    assert shipped.keys() == ours.keys()
    changed = {place for place in shipped if shipped[place] != ours[place]}
    assert {place.rpartition("/")[2] for place in changed} == {"interval", "for", "expr"}
    for place in changed:
        assert TIMES.sub("TIME", shipped[place]) == TIMES.sub("TIME", ours[place])
        assert durations(shipped[place]) == [each * HASTE for each in durations(ours[place])] != []


def test_no_time_of_a_rule_is_left_as_it_is() -> None:
    for place, text in leaves(prometheus.rules()).items():
        if place.endswith(("/interval", "/for", "/expr")):
            assert len(durations(text)) == len(TIMES.findall(text)), f"{place}: {text}"


@pytest.mark.parametrize(
    "shipped, ours",
    [
        ("5m", "5000ms"),
        ("15s", "250ms"),
        ("increase(a_total[1h]) > 2", "increase(a_total[60000ms]) > 2"),
        ("rate(a5m[10m]) < 0.5", "rate(a5m[10000ms]) < 0.5"),
    ],
)
def test_only_what_is_a_time_is_shortened(shipped: str, ours: str) -> None:
    assert hastened(shipped) == ours


def test_a_time_that_cannot_be_shortened_exactly_is_refused() -> None:
    with pytest.raises(ValueError, match="100ms"):
        hastened("100ms")
