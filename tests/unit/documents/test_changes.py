"""Changes of parsed documents: what they make, what they leave alone, and when two values are the same."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from typing import Any

import pytest

from toolkit_installer.documents import changes
from toolkit_installer.documents.changes import (
    ABSENT,
    Change,
    Remove,
    Set,
    apply_changes,
    is_same,
    line_at,
    lookup,
    merge_tables,
)

DOCUMENT: dict[str, Any] = {"a": {"b": {"c": 1}}, "list": [{"x": 1}], "text": "t"}


@pytest.mark.parametrize(
    "change, made",
    [
        (Set(("a", "b", "c"), 2), {**DOCUMENT, "a": {"b": {"c": 2}}}),
        (Set(("a", "new", "d"), 2), {**DOCUMENT, "a": {"b": {"c": 1}, "new": {"d": 2}}}),
        (Set(("text", "below"), 2), {**DOCUMENT, "text": {"below": 2}}),
        (Remove(("a", "b", "c")), {**DOCUMENT, "a": {"b": {}}}),
        (Remove(("a", "absent", "c")), DOCUMENT),
        (Remove(("text", "below")), DOCUMENT),
    ],
    ids=["set", "set-below-new", "set-below-text", "remove", "remove-absent", "remove-below-text"],
)
def test_a_change_makes_a_new_document_and_leaves_the_old_one(change: Change, made: dict[str, Any]) -> None:
    before = copy.deepcopy(DOCUMENT)
    assert apply_changes(DOCUMENT, (change,)) == made
    assert before == DOCUMENT


@pytest.mark.parametrize("path", [("absent",), ("a", "absent"), ("text", "below"), ("list", "x")])
def test_what_a_document_does_not_have_is_absent(path: tuple[str, ...]) -> None:
    assert lookup(DOCUMENT, path) is ABSENT
    assert not ABSENT


def test_tables_merge_and_those_below_a_whole_path_replace_each_other() -> None:
    base, over = {"t": {"r": {"x": 1, "y": 1}, "s": 1}}, {"t": {"r": {"x": 2}}}
    assert merge_tables(base, over) == {"t": {"r": {"x": 2, "y": 1}, "s": 1}}
    assert merge_tables(base, over, whole=("t",)) == {"t": {"r": {"x": 2}, "s": 1}}
    assert base == {"t": {"r": {"x": 1, "y": 1}, "s": 1}}


@pytest.mark.parametrize(
    "left, right, same",
    [
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (float("nan"), float("nan"), True),
        (0.0, -0.0, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ({"a": [True]}, {"a": [1]}, False),
    ],
)
def test_values_are_the_same_if_their_types_are_too(left: object, right: object, *, same: bool) -> None:
    assert is_same(left, right) is same


def test_lines_are_counted_from_one() -> None:
    assert [line_at("a\nb\n", offset) for offset in range(4)] == [1, 1, 2, 2]


def test_substitutes_for_digests_hold_inside_their_block_alone() -> None:
    real = changes.sha256(b"masked")
    with contextlib.suppress(KeyError), changes.substitute_digests({real: "of the node's file"}):
        assert changes.sha256(b"masked") == "of the node's file"
        assert changes.sha256(b"other") == hashlib.sha256(b"other").hexdigest()
        raise KeyError
    assert changes.sha256(b"masked") == real
