"""Paths are found in a text in whatever way its format may write them, and with their lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents import mentions

PATH = "/usr/local/nvidia/toolkit/nvidia-container-runtime"


def found(text: str) -> list[tuple[str, int]]:
    return [(each.path, each.line) for each in mentions.find_mentions(text.encode(), PATH.__eq__)]


ESCAPES = {
    "JSON": "\\/",
    "four digits": "\\u002f",
    "eight digits": "\\U0000002F",
    "two digits": "\\x2f",
    "octal": "\\057",
    "doubled": "/",
}


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
@pytest.mark.parametrize(
    "text",
    [
        'hooks:\n- path: "%s"\n',
        '[Service]\nExecStart=/usr/bin/dockerd "--add-runtime=nvidia=%s"\n',
        '{{ x }}\na = "%s"',
    ],
    ids=["YAML", "unit", "template"],
)
def test_an_escaped_path_is_found_on_its_line(text: str, escape: str) -> None:
    assert found(text % PATH.replace("/", escape)) == [(PATH, 2)]


@given(st.sets(st.integers(0, len(PATH) - 1)), st.sampled_from(["\\u%04x", "\\U%08x", "\\x%02x", "\\%03o"]))
def test_whichever_characters_are_escaped_the_path_is_found(escaped: set[int], how: str) -> None:
    text = "".join(how % ord(each) if at in escaped else each for at, each in enumerate(PATH))
    assert found(f'- "{text}"') == [(PATH, 1)]


@pytest.mark.parametrize("at", [4, 11, len(PATH) - 3])
def test_a_path_that_goes_on_in_the_next_line_is_found_on_its_first(at: int) -> None:
    assert found(f'a:\n- path: "{PATH[:at]}\\\n     {PATH[at:]}"\nb:\n') == [(PATH, 2)]


def test_a_path_beneath_a_continued_line_is_found_on_its_own() -> None:
    assert found(f"ExecStart=/usr/bin/dockerd \\\n  --add-runtime \\\n  nvidia={PATH} \\\n  --debug\n") == [(PATH, 3)]


def test_a_comment_that_ends_in_a_backslash_does_not_hide_the_next_line() -> None:
    assert found(f"# comment \\\n{PATH}\n") == [(PATH, 2)]


def test_a_key_that_is_there_twice_hides_nothing() -> None:
    text = f'{{"runtimes": {{"a": {{"path": "{PATH}"}}}},\n "runtimes": {{"b": {{"path": "runc"}}}}}}'
    assert found(text) == [(PATH, 1)]
    assert ("path", PATH) in list(mentions.find_strings(text.encode()))


@given(
    st.recursive(st.text() | st.integers() | st.none(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_every_text_of_a_json_document_is_looked_at(document: object) -> None:
    seen = []
    mentions.find_mentions(json.dumps([document, PATH]).encode(), lambda path: bool(seen.append(path)))  # type: ignore[func-returns-value]
    assert PATH in seen


@given(st.binary())
def test_no_text_is_too_odd_to_be_looked_at(content: bytes) -> None:
    mentions.find_mentions(content, lambda _: True)
    list(mentions.find_strings(content))


@pytest.mark.parametrize("escape", ["\\U00110000", "\\u00", "\\", "\\9"])
def test_what_is_no_escape_stays_as_it_is(escape: str) -> None:
    assert mentions.find_mentions(f"a /x{escape}".encode(), lambda _: True)
