"""JSON text as a tree: it keeps every character, and says in words what is no JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.documents.json_texts import DOCUMENTS
from toolkit_installer.documents import json_text
from toolkit_installer.documents.changes import DocumentError
from toolkit_installer.documents.json_text import (
    MAX_DEPTH,
    MAX_EXPONENT,
    MAX_NUMBER,
    Object,
    Raw,
    explain_error,
    scan,
    scan_value,
)

DUPLICATES = {
    # a text with a key twice: both lines, and what the hint says
    b'{\n"runtimes": {"a": {}},\n"mtu": 1,\n"runtimes": {"b": {}}}': (
        "lines 2 and 4",
        "merge the two objects into one",
    ),
    b'{\n"debug": true,\n"debug": false}': ("lines 2 and 3", "keep the last of the two"),
    b'{"runtimes": {\n"a": {"path": "/a"},\n"a": {"path": "/b"}}}': ("lines 2 and 3", "keep the last of the two"),
    b'{\n"runtimes": {"a": {}},\n"runtimes": null}': ("lines 2 and 3", "keep the last of the two"),
    b'{"a": [{"b": 1,\n"\\u0062": 2}]}': ("lines 1 and 2", "keep the last of the two"),
    b'{"features": {}, "features": {}}': ("line 1", "merge the two objects into one"),
}


@pytest.mark.parametrize("content", DUPLICATES)
def test_a_key_that_stands_twice_is_named_with_both_lines(content: bytes) -> None:
    lines, hint = DUPLICATES[content]
    with pytest.raises(DocumentError, match=f"stands twice in one object, on {lines}") as caught:
        scan(content.decode())
    assert hint in str(caught.value.hint)
    assert caught.value.line == int(lines.split()[-1])
    assert "not valid JSON" not in caught.value.reason  # dockerd takes it


@pytest.mark.parametrize("ending", ["}", "}\n", "]", " \n]]\n", "\t} \n"], ids=repr)
def test_a_surplus_comma_is_reported_the_same_by_each_version_of_python(ending: str) -> None:
    text = f'{{\n  "a": 1,{ending}'
    comma, after = text.index(","), len(text) - len(ending.lstrip())
    told = (("Illegal trailing comma before end of object", comma), ("Expecting property name enclosed in", after))
    for message, place in told:
        error = explain_error(text, json.JSONDecodeError(message, text, place))
        assert error.line == 2
        assert error.reason == f'not valid JSON: a comma before "{ending.strip()[0]}" (column {comma - 1})'
        assert error.hint == "remove the comma"


def members(value: json_text.Value) -> list[json_text.Member]:
    """Return all members below an object."""
    if not isinstance(value, Object):
        return []
    return [found for member in value.members for found in (member, *members(member.value))]


@settings(max_examples=30)
@given(DOCUMENTS)
def test_the_tree_of_a_document_is_its_text_again(content: bytes) -> None:
    text = content.decode()
    document = scan(text)
    assert document.text() == text
    for member in members(document.root):
        assert text.startswith(member.name, member.offset)
        assert json.loads(member.name) == member.key
        assert (member.before + member.after).strip() == ""
        assert member.colon.strip() == ":"


@settings(max_examples=30)
@given(DOCUMENTS)
def test_the_members_of_an_object_are_those_that_a_parser_finds(content: bytes) -> None:
    def compare(found: Object, parsed: dict[str, object]) -> None:
        assert [member.key for member in found.members] == list(parsed)
        for member in found.members:
            assert found.find(member.key) is member
            value = parsed[member.key]
            if isinstance(value, dict):
                assert isinstance(member.value, Object)
                compare(member.value, value)
            else:
                assert isinstance(member.value, Raw)
                assert json.loads(member.value.text) == value

    root = scan(content.decode()).root
    compare(root, json.loads(content))
    assert root.find("never") is None


@pytest.mark.parametrize("text", ["1", "-0.5e3", '"a, b"', '"\\""', "[ ]", '[{"a": [1, 2]}, "]"]', "null"])
def test_a_value_that_is_no_object_is_kept_as_it_is_spelt(text: str) -> None:
    value = scan_value(text)
    assert isinstance(value, Raw)
    assert value.text == text


@pytest.mark.parametrize("text, column", [("[]", 1), (" 1", 2), ('\n"a"', 1)])
def test_a_document_that_is_no_object_is_refused_where_it_begins(text: str, column: int) -> None:
    with pytest.raises(DocumentError, match=rf"the top level is not an object \(column {column}\)"):
        scan(text)


@pytest.mark.parametrize("word", json_text.NO_NUMBERS)
def test_what_the_parser_takes_for_a_number_is_none_of_json(word: str) -> None:
    assert json.loads(word) is not None
    with pytest.raises(DocumentError, match=rf"{word} is no JSON number \(column 3\)") as caught:
        scan(f'{{"a":\n [{word}]}}')
    assert caught.value.line == 2
    assert scan(f'{{"a": "{word}"}}').root.find("a") is not None


@pytest.mark.parametrize(
    "number, fault",
    [
        ("1" * MAX_NUMBER, ""),
        ("1" * (MAX_NUMBER + 1), f"a number of {MAX_NUMBER + 1} characters"),
        ("1e" + "9" * MAX_EXPONENT, ""),
        ("1E-" + "9" * (MAX_EXPONENT + 1), "a number with an absurd exponent"),
    ],
    ids=["long", "too-long", "large", "too-large"],
)
def test_a_number_is_refused_beyond_the_limits_only(number: str, fault: str) -> None:
    assert json_text.number_fault(number) == fault


@pytest.mark.parametrize("opening, closing", [('{"a":', "}"), ("[", "]")])
def test_nesting_is_refused_beyond_the_limit_only(opening: str, closing: str) -> None:
    scan_value(opening * (MAX_DEPTH - 1) + "[]" + closing * (MAX_DEPTH - 1))
    with pytest.raises(DocumentError, match=f"nested more than {MAX_DEPTH} levels deep"):
        scan_value(opening * MAX_DEPTH + "[]" + closing * MAX_DEPTH)


def test_an_error_at_the_end_is_placed_at_the_last_character() -> None:
    error = json_text.error_at('{\n  "a": 1,\n\n', 13, "cut off")
    assert (error.line, error.reason) == (2, "not valid JSON: cut off (column 10)")


def test_a_name_that_may_be_a_secret_is_not_repeated() -> None:
    with pytest.raises(DocumentError) as caught:
        scan('{"a=hunter22": 1, "a=hunter22": 2}')
    assert "hunter22" not in caught.value.reason


TEXTS = st.text('ab"\\\né{[,', max_size=2)
NESTED = st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2))


@given(st.dictionaries(TEXTS, NESTED, max_size=3), st.data())
def test_a_document_that_ends_too_early_is_said_to_be_cut_off(table: dict[str, object], data: st.DataObject) -> None:
    whole = json.dumps(table, indent=1, ensure_ascii=False)
    text = whole[: data.draw(st.integers(1, len(whole) - 1))]
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    error = explain_error(text, caught.value)
    assert "cut off" in error.reason or "a string that is not closed" in error.reason
    assert error.line is not None
    assert 1 <= error.line <= text.count("\n") + 1
