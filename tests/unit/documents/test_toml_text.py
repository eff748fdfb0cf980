""""""

from __future__ import annotations

import datetime as dt
import tomllib
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from toolkit_installer.documents.changes import is_same
from toolkit_installer.documents.toml_text import StatementKind, comments, items, scan, split_key, write, write_key

DOCUMENT = """# top
version = 2 # two
[ plugins . 'io.x' . "a\\u002eb" ]  # [no.header]
  text = \"\"\"
[no.header]
key = 1\"\"\"\"\"
  list = [ # [
    "]", ']', # ]
    { "}" = '}' }]
[[many.times]]
a.b."c.d" = 1979-05-27 07:32:00 # then
"""


def test_statements_have_their_keys_values_and_lines() -> None:
    found = [
        (statement.kind, statement.path, DOCUMENT[statement.value_start : statement.value_end])
        for statement in scan(DOCUMENT)
    ]
    table = ("plugins", "io.x", "a.b")
    assert found == [
        (StatementKind.KEY_VALUE, ("version",), "2"),
        (StatementKind.TABLE, table, ""),
        (StatementKind.KEY_VALUE, (*table, "text"), '"""\n[no.header]\nkey = 1"""""'),
        (StatementKind.KEY_VALUE, (*table, "list"), "[ # [\n    \"]\", ']', # ]\n    { \"}\" = '}' }]"),
        (StatementKind.ARRAY_TABLE, ("many", "times"), ""),
        (StatementKind.KEY_VALUE, ("many", "times", "a", "b", "c.d"), "1979-05-27 07:32:00"),
    ]
    assert [DOCUMENT[each.start : each.end].count("\n") for each in scan(DOCUMENT)] == [1, 1, 3, 3, 1, 1]


@pytest.mark.parametrize("text", ["", "\n", " \t", "# only", "\r\n# a\r\n  # b"])
def test_a_text_without_statements_has_none(text: str) -> None:
    assert list(scan(text)) == []


@pytest.mark.parametrize(
    "value",
    [
        '""',
        '""""""',
        '""""quotes""""',
        '"""a"""""',
        "''''x'''''",
        '"\\"#\\\\"',
        "'\\'",
        "2000-01-01",
        "-nan",
        "0x_f",
        "[[],[{}]]",
        '{ a = "}", b.c = [1] }',
    ],
)
@pytest.mark.parametrize("rest", ["", " # c", "\n", "\r\nb = 1\n"])
def test_a_value_ends_where_it_ends(value: str, rest: str) -> None:
    text = f"a = {value}{rest}"
    statement = next(iter(scan(text)))
    assert text[statement.value_start : statement.value_end] == value


def test_thousands_of_brackets_are_no_trouble() -> None:
    nested = "[" * 50_000 + "]" * 50_000
    assert [statement.value_end for statement in scan(f"a = {nested}")] == [100_004]


@pytest.mark.parametrize(
    "value,texts,commas",
    [
        ("[]", [], 0),
        ("[ # none\n]", [], 0),
        ('["a", "b" , [1, 2],]', ['"a"', '"b"', "[1, 2]"], 3),
        ("[ 1 # ,\n , 2 ]", ["1", "2"], 1),
        ("{ a = 1, b.'c d' = { e = 2 } }", ["a = 1", "b.'c d' = { e = 2 }"], 1),
    ],
)
def test_the_items_of_a_value_have_spans_and_commas(value: str, texts: list[str], commas: int) -> None:
    found = items(value)
    assert [value[item.start : item.end] for item in found] == texts
    assert [value[item.comma] for item in found if item.comma is not None] == [","] * commas


def test_the_keys_of_members_are_decoded() -> None:
    assert [item.path for item in items("{ a . \"b\\n\" = 1, 'c.d' = 2 }")] == [("a", "b\n"), ("c.d",)]


def test_a_number_sign_in_a_string_is_no_comment() -> None:
    assert comments('["#", # one\n\'#\', """\n# in\n""", # two #\r\n]') == ["# one", "# two #"]


def test_a_key_is_split_at_dots_outside_of_quotes_only() -> None:
    assert split_key("""a . "b.c" .'d.e'.1""") == (("a", '"b.c"', "'d.e'", "1"), ("a", "b.c", "d.e", "1"))


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
