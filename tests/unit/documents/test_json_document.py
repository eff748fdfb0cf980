"""daemon.json as text: what it means, and what an edit leaves alone."""

from __future__ import annotations

import decimal
import json
import math
import pathlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.documents.json_texts import DOCUMENTS, KEYS, encodable, objects
from toolkit_installer.documents import json_document
from toolkit_installer.documents.changes import (
    Change,
    DocumentError,
    EditMismatchError,
    Remove,
    Set,
    apply_changes,
    is_same,
)
from toolkit_installer.documents.json_document import edit, line_of, parse
from toolkit_installer.documents.json_text import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Sequence

CASES = sorted((pathlib.Path(__file__).parents[2] / "data/documents/json").iterdir())
NVIDIA = {"path": "/usr/local/nvidia/toolkit/nvidia-container-runtime", "args": []}


def changes_of(case: pathlib.Path) -> list[Change]:
    stored = json.loads((case / "changes.json").read_text())
    return [Set(tuple(c[1]), c[2]) if c[0] == "set" else Remove(tuple(c[1])) for c in stored]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_edit_gives_what_a_person_has_looked_at(case: pathlib.Path) -> None:
    result = edit((case / "in.json").read_bytes(), changes_of(case))
    assert result.decode().splitlines(keepends=True) == (case / "out.json").read_bytes().decode().splitlines(
        keepends=True
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_second_edit_changes_nothing(case: pathlib.Path) -> None:
    content = (case / "out.json").read_bytes()
    assert edit(content, changes_of(case)) is content


# What is refused


@pytest.mark.parametrize(
    "content, line, words",
    [
        (b'{\n  "a": 1,\n}', 2, "a comma before"),
        (b"[1,\n2,]", 2, "a comma before"),
        (b'{\n  // why\n  "a": 1\n}', 2, "a comment"),
        (b'{\n  "a": 1 # why\n}', 2, "a comment"),
        (b'{"a": /* x */ 1}', 1, "a comment"),
        (b'{"a": 1}\n{"b": 2}\n', 2, "two documents"),
        (b'{"a": 1}\n}\n', 2, "expected the end of the document"),
        (b"[]", 1, "not an object"),
        (b'"runtimes"', 1, "not an object"),
        (b"null", 1, "not an object"),
        (b'{"a": 1,\n\n', 1, "cut off"),
        (b'{\n"a": {\n"b": 1\n', 3, "the object opened on line 2"),
        (b'{\n"a": [\n1', 3, "the array opened on line 2"),
        (b'{"a"', 1, "cut off"),
        (b'{"a": ', 1, "cut off"),
        (b'{"a": "b\n"}', 1, "not closed"),
        (b'{"a": "b', 1, "not closed"),
        (b'{"a": "\x07"}', 1, "control character (U+0007)"),
        (b'{"a": "\t"}', 1, "control character"),
        (b'{"a": "C:\\dir"}', 1, "unknown escape"),
        (b'{"a": "\\u12"}', 1, "unknown escape"),
        (b'{\n"a": NaN}', 2, "NaN is no JSON number"),
        (b'{"a": -Infinity}', 1, "-Infinity is no JSON number"),
        (b'{"a": 01}', 1, "expected"),
        (b'{"a": +1}', 1, "expected a value"),
        (b'{"a": .5}', 1, "expected a value"),
        (b'{"a": 1.}', 1, "expected"),
        (b'{"a": tru}', 1, "expected a value"),
        (b"{'a': 1}", 1, "a key in double quotes"),
        (b"{a: 1}", 1, "a key in double quotes"),
        (b'{"a" 1}', 1, 'expected ":"'),
        (b'{"a": 1 "b": 2}', 1, 'expected ","'),
        (b'{,"a": 1}', 1, "a key in double quotes"),
        (b'{{ template "base" . }}', 1, "a key in double quotes"),
        (b'{"a": 1}\n\xff', 2, "byte 0xff"),
        (b'{\n"a": "\xc3\x28"}', 2, "byte 0xc3"),
        (b'{"a": 1}\n\0', 2, "a NUL byte"),
        ('{"a": 1}'.encode("utf-16"), 1, "UTF-16"),
        (b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}', 1, "expected a value"),
        ('{"a":\u00a01}'.encode(), 1, "expected a value"),
        (b'{"a": ' + b"9" * 5000 + b"}", 1, "a number of 5000 characters"),
        (b'{"a": 1e' + b"9" * 30 + b"}", 1, "absurd exponent"),
    ],
)
def test_a_broken_file_is_refused_with_line_and_column(content: bytes, line: int, words: str) -> None:
    for use in (parse, lambda c: edit(c, [Set(("x",), 1)]), lambda c: line_of(c, ("a",))):
        with pytest.raises(DocumentError) as caught:
            use(content)
        assert words in caught.value.reason
        assert "column" in caught.value.reason
        assert caught.value.line == line


def test_the_column_is_that_of_the_mistake() -> None:
    with pytest.raises(DocumentError, match=r"\(column 8\)"):
        parse(b'{\n  "a": x\n}')


@pytest.mark.parametrize("nest", ['{"a":', "["])
def test_nesting_too_deep_is_refused_and_no_recursion_error(nest: str) -> None:
    deep = f'{{"x": {nest * 100_000}'.encode()
    with pytest.raises(DocumentError, match="levels deep"):
        parse(deep)


def test_nesting_up_to_the_limit_is_read_and_edited() -> None:
    deep = b'{"a":' * (MAX_DEPTH - 1) + b"{}" + b"}" * (MAX_DEPTH - 1)
    assert edit(edit(deep, [Set(("b",), 1)]), [Remove(("b",))]) == deep
    lists = MAX_DEPTH - 1
    assert edit(b'{"a":%b%b}' % (b"[" * lists, b"]" * lists), [Remove(("a",))]) == b"{}"
    with pytest.raises(DocumentError, match="levels deep"):
        edit(b'{"a":%b%b}' % (b"[" * MAX_DEPTH, b"]" * MAX_DEPTH), [Remove(("a",))])


@settings(deadline=None)
@given(st.binary(max_size=40) | st.text('{}[]",:\\u0041 \n1e.-#/tn', max_size=40).map(str.encode))
def test_no_bytes_lead_to_anything_but_a_table_or_a_document_error(content: bytes) -> None:
    try:
        table = parse(content)
    except DocumentError as error:
        assert error.line is not None  # noqa: PT017 - either outcome is right
    else:
        assert isinstance(table, dict)


# What is understood


@pytest.mark.parametrize("content", [b"", b" \r\n\t", b"\xef\xbb\xbf", b"{}", b"\xef\xbb\xbf{}\n"])
def test_an_empty_file_is_an_empty_table(content: bytes) -> None:
    assert parse(content) == {}
    assert line_of(content, ("a",)) is None


def test_numbers_keep_their_exact_value() -> None:
    table = parse(b'{"a": 12345678901234567890123, "b": 1e400, "c": 0.10, "d": 1e999999999999999, "e": -0}')
    assert table["a"] == 12345678901234567890123
    assert table["b"] == decimal.Decimal("1e400")
    assert table["c"] == decimal.Decimal("0.1")
    assert math.isfinite(table["d"].adjusted())


def test_half_a_surrogate_pair_is_read_and_set() -> None:
    content = b'{"a": "\\ud800", "b": 1}'
    result = edit(content, [Set(("c",), parse(content)["a"])])
    assert result == b'{"c": "\\ud800", "a": "\\ud800", "b": 1}'


def test_line_of_names_the_line_of_the_key() -> None:
    content = b'\xef\xbb\xbf{\r\n  "a":\r\n   {"\\u0062": [\r\n1], "c": {\r\n"d": 1}}}'
    assert line_of(content, ("a",)) == 2
    assert line_of(content, ("a", "b")) == 3
    assert line_of(content, ("a", "c", "d")) == 5
    assert line_of(content, ("a", "b", "x")) is None
    assert line_of(content, ("x",)) is None


# What is edited


def test_an_edit_without_effect_gives_the_same_bytes() -> None:
    content = b'{ "a" : 1e3 ,\r\n\t"b":{"c":"\\u00e9"}}  '
    assert edit(content, [Set(("b", "c"), "é"), Remove(("z",)), Remove(("a", "z"))]) == content


def test_a_member_can_be_set_and_removed_within_one_edit() -> None:
    content = b'{\n  "a": 1\n}\n'
    assert edit(content, [Set(("x", "y"), 1), Set(("z",), 2), Remove(("x",)), Set(("q",), 3)]) == (
        b'{\n  "z": 2,\n  "q": 3,\n  "a": 1\n}\n'
    )


def test_only_the_leaf_that_differs_is_replaced() -> None:
    content = b'{\n "runtimes": {"nvidia": {"path" :"/old",\n   "args": [ ]  }}}'
    edited = edit(content, [Set(("runtimes", "nvidia"), {"path": "/new", "args": []})])
    assert edited == content.replace(b"/old", b"/new")


def test_a_table_is_set_to_exactly_what_was_asked_for() -> None:
    content = b'{\n    "nvidia": {\n        "path": "/old",\n        "extra": 1e3\n    }\n}\n'
    edited = edit(content, [Set(("nvidia",), {"path": "/new", "args": []})])
    assert edited == b'{\n    "nvidia": {\n        "args": [],\n        "path": "/new"\n    }\n}\n'


def test_a_table_whose_members_all_go_keeps_its_layout() -> None:
    content = b'{\n\t"nvidia": {\n\t\t"a": 1,\n\t\t"b": 2\n\t}\n}\n'
    assert edit(content, [Set(("nvidia",), {"c": 3})]) == b'{\n\t"nvidia": {\n\t\t"c": 3\n\t}\n}\n'


def test_values_of_all_types_are_spelt_as_json() -> None:
    value = {
        "s": 'q"\\\n\x1b',
        "f": 1.5,
        "d": decimal.Decimal("1e3"),
        "n": None,
        "t": True,
        "l": [1, {"x": []}],
        "o": {},
    }
    edited = edit(b"{}", [Set(("v",), value)])
    assert parse(edited)["v"] == {**value, "f": decimal.Decimal("1.5")}
    assert b"\x1b" not in edited


@pytest.mark.parametrize("value", [math.nan, math.inf, decimal.Decimal("NaN"), object()])
def test_a_value_that_json_cannot_say_is_an_error_of_the_caller(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        edit(b"{}", [Set(("v",), value)])


def test_an_edit_that_goes_wrong_is_caught_before_anybody_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_document, "remove", lambda *_: None)
    with pytest.raises(EditMismatchError, match="not mean"):
        edit(b'{"a": 1}', [Remove(("a",))])


def test_an_edit_that_breaks_the_syntax_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_document, "render", lambda *_: "{")
    with pytest.raises(EditMismatchError, match="cannot be parsed"):
        edit(b"", [Set(("a",), 1)])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_of_a_large_file_stays_and_the_edit_is_quick(end: str) -> None:
    members = [f'  "key-{n}": {{{end}    "path": "/usr/bin/{n}", "weights": [{n}, 1e3]{end}  }}' for n in range(7000)]
    content = ("{" + end + f",{end}".join(members) + end + "}").encode()
    assert len(content) > 400_000
    start = time.process_time()
    result = edit(content, [Set(("runtimes", "nvidia"), NVIDIA), Set(("default-runtime",), "nvidia")])
    assert time.process_time() - start < 2
    assert result.endswith(content[1:])
    assert edit(result, [Remove(("runtimes",)), Remove(("default-runtime",))]) == content


# What holds for all documents

PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map(tuple)
CHANGES = st.lists(st.builds(Set, PATHS, VALUES) | st.builds(Remove, PATHS), max_size=5)


def layered(content: bytes, keys: Sequence[str], depth: int) -> tuple[str, ...]:
    """Return a path of that many keys, none of them in the way, whose first is absent."""
    table = parse(content)
    assume(keys[0] not in table)
    return tuple(keys[:depth])


@settings(deadline=None)
@given(DOCUMENTS, CHANGES)
def test_an_edit_means_what_the_changes_mean(content: bytes, changes: list[Change]) -> None:
    exact = [Set(c.path, json_document._exact(c.value)) if isinstance(c, Set) else c for c in changes]
    assert is_same(parse(edit(content, changes)), apply_changes(parse(content), tuple(exact)))


@settings(deadline=None)
@given(DOCUMENTS, CHANGES)
def test_what_an_edit_writes_has_no_effect_the_second_time(content: bytes, changes: list[Change]) -> None:
    once = edit(content, changes)
    if changes and all(a.path[0] != b.path[0] for i, a in enumerate(changes) for b in changes[:i]):
        assert edit(once, changes) == once


@settings(deadline=None)
@given(DOCUMENTS, st.lists(st.text(max_size=4), min_size=3, max_size=3), st.integers(1, 3), VALUES)
def test_removing_what_was_inserted_gives_the_bytes_back(
    content: bytes, keys: list[str], depth: int, value: Any
) -> None:
    path = layered(content, keys, depth)
    inserted = edit(content, [Set(path, value)])
    assert inserted != content
    assert edit(inserted, [Remove(path[:1])]) == content


@settings(deadline=None)
@given(DOCUMENTS, VALUES, VALUES)
def test_removing_inside_an_object_of_the_file_gives_the_bytes_back(content: bytes, one: Any, two: Any) -> None:
    table = parse(content)
    outer = next((key for key, value in table.items() if isinstance(value, dict)), None)
    assume(outer is not None)
    first, second = (str(outer), "new one"), (str(outer), "new two")
    inserted = edit(content, [Set(first, one), Set(("new",), two), Set(second, two)])
    assert edit(inserted, [Remove(second), Remove(first), Remove(("new",))]) == content
    assert edit(inserted, [Remove(first), Remove(("new",)), Remove(second)]) == content


@settings(deadline=None)
@given(
    objects().filter(lambda text: text.replace("\r", "").replace("\t", "").replace(" ", "").startswith("{\n")), VALUES
)
def test_an_insertion_leaves_every_line_as_it_was(text: str, value: Any) -> None:
    content = encodable(text)
    assume("new" not in parse(content))
    lines = content.split(b"\n")
    result = edit(content, [Set(("new",), value), Set(("new 2",), value)]).split(b"\n")
    assert result[0] == lines[0]
    assert result[len(result) - len(lines) + 1 :] == lines[1:]


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5), st.sampled_from([2, 4, "\t"]), st.data())
def test_a_removal_of_a_whole_line_leaves_the_others(
    table: dict[str, Any], indent: int | str, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(list(table)))
    content = json.dumps(table, indent=indent).encode()
    rest = {k: v for k, v in table.items() if k != key}
    expected = json.dumps(rest, indent=indent).encode() if rest else b"{\n}"
    assert edit(content, [Remove((key,))]) == expected
