"""Which keys a value belongs to, in each syntax, and that line ends and punctuation stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from toolkit_installer.documents import walk


class Recorder:
    """Notes each value with its keys, and replaces it."""

    def __init__(self) -> None:
        self.values: list[tuple[str, str]] = []

    def key(self, name: str) -> str:
        return name

    def scalar(self, value: str, path: Sequence[str]) -> str:
        self.values.append((".".join(path), value))
        return "x"

    bare = scalar

    def prose(self, text: str) -> str:
        self.values.append(("", text))
        return "x"

    def comment(self, text: str) -> str:
        return "x" if text else text

    def command(self, text: str, *, program: bool = True) -> str:  # noqa: ARG002  # as the protocol has it
        self.values.append(("command", text))
        return "x"


@pytest.mark.parametrize(
    "text, values, made",
    [
        ('{"a": {"b": "v"},\n "c": 1}', [("a.b", "v"), ("c", "1")], '{"a": {"b": "x"},\n "c": x}'),
        ("[t.u]\nk = 'v'\nn = 5\n", [("t.u.k", "v"), ("t.u.n", "5")], "[t.u]\nk = 'x'\nn = x\n"),
        ("a:\n  b: v\n  c: w\nd: u\n", [("a.b", "v"), ("a.c", "w"), ("d", "u")], "a:\n  b: x\n  c: x\nd: x\n"),
        ("NAME=some words\n", [("NAME", "some words")], "NAME=x\n"),
        ('[t]\nk = { i = "v" }\n', [("t.k.i", "v")], '[t]\nk = { i = "x" }\n'),
        ('{"a": "v\n', [("a", "v")], '{"a": "x\n'),
    ],
    ids=["json", "toml", "yaml", "environment", "inline-table", "broken"],
)
def test_a_value_belongs_to_the_keys_that_lead_to_it(text: str, values: list[tuple[str, str]], made: str) -> None:
    recorder = Recorder()
    assert walk.mask_document(text, recorder) == made
    assert recorder.values == values


def test_a_fragment_belongs_to_the_keys_that_it_was_below() -> None:
    recorder = Recorder()
    assert walk.mask_fragment('"v"', ("a", "b"), recorder) == '"x"'
    assert recorder.values == [("a.b", "v")]


@pytest.mark.parametrize(
    "token, made", [('"v"', '"V"'), ("'v'", "'V'"), ("v", "V"), ('"\\u0076"', '"V"'), ('"v', '"V')]
)
def test_a_replaced_text_keeps_its_quotes(token: str, made: str) -> None:
    assert walk.replace_text(token, str.upper) == made
