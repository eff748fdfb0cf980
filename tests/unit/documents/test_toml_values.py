from __future__ import annotations

import datetime as dt
import tomllib
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from toolkit_installer.documents.changes import is_same
from toolkit_installer.documents.toml_text import write, write_key

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
SCALARS = (
    TEXT
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=ZONES)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8)


@hypothesis.given(VALUES)
def test_a_value_reads_back_as_it_was(value: Any) -> None:
    text = write(value)
    assert "\n" not in text
    assert is_same(tomllib.loads(f"value = {text}")["value"], value)


@hypothesis.given(TEXT)
def test_a_key_reads_back_as_it_was_even_in_a_header(key: str) -> None:
    assert tomllib.loads(f"[a.{write_key(key)}]") == {"a": {key: {}}}


@pytest.mark.parametrize(
    "value,text",
    [
        (True, "true"),
        ("/usr/bin/a b", '"/usr/bin/a b"'),
        ('say "no"\\\n\x7f', r'"say \"no\"\\\n\u007f"'),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, {"b.c": 2.0}]}, '{ a = [1, { "b.c" = 2.0 }] }'),
        (float("-inf"), "-inf"),
        (dt.datetime(1979, 5, 27, 7, 32, tzinfo=dt.UTC), "1979-05-27T07:32:00+00:00"),
    ],
)
def test_values_are_written_the_usual_way(value: Any, text: str) -> None:
    assert write(value) == text


@pytest.mark.parametrize(
    "key,text", [("runc", "runc"), ("io.x", '"io.x"'), ("", '""'), ('a"b', "'a\"b'"), ("a\"'b", '"a\\"\'b"')]
)
def test_a_key_needs_escapes_only_where_nothing_else_is_left(key: str, text: str) -> None:
    assert write_key(key) == text


@pytest.mark.parametrize("value", [None, b"bytes", (1, 2), {"a": None}, [object()]])
def test_a_value_that_toml_does_not_know_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="TOML has no value of type"):
        write(value)


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        {"\ud800": 1},
        dt.time(1, tzinfo=dt.UTC),
        dt.datetime(2000, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=1))),
    ],
)
def test_a_value_that_toml_cannot_hold_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"surrogates|zone"):
        write(value)
