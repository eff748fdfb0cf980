"""Edits of TOML as text: the golden ones are tests/data/documents/toml/<case>/{in.toml,changes.json,out.toml}."""

from __future__ import annotations

import difflib
import json
import pathlib
import random
import time
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit_installer.documents import toml_document, toml_edit, toml_text
from toolkit_installer.documents.changes import (
    Change,
    Path,
    Remove,
    Set,
    Table,
    is_same,
)
from toolkit_installer.documents.toml_edit import Splice, apply_splices

if TYPE_CHECKING:
    from collections.abc import Sequence


CRI = 'plugins."io.containerd.grpc.v1.cri"'
CONTAINERD = ("plugins", "io.containerd.grpc.v1.cri", "containerd")
HANDLERS = ("nvidia", "nvidia-cdi", "nvidia-legacy")
OPTIONS = {"BinaryName": "/usr/local/nvidia/toolkit/nvidia-container-runtime", "SystemdCgroup": True}
RUNTIME = {"runtime_type": "io.containerd.runc.v2", "options": OPTIONS}


def edit(text: str, *changes: Change) -> str:
    return toml_document.edit(text.encode(), changes, marker="ours").decode()


@pytest.mark.parametrize(
    "text,changes,expected",
    [
        ("a = 3 # three\n", [Set(("a", "b"), 1)], "a = { b = 1 } # three\n"),
        ("[a]\n[a.b]\nc = 1\n", [Set(("a",), 1)], "a = 1\n"),
        ("[a.b]\nc = 1\n", [Remove(("a", "b"))], "\n# ours\n[a]\n"),
        ("[x]\na.b.c = 1\n", [Remove(("x", "a", "b"))], "[x]\n\n# ours\n[x.a]\n"),
        ("x.a.b.c = 1\n", [Remove(("x", "a", "b", "c"))], "x.a.b = {}\n"),
        ("[a]\nb = 1\n", [Set(("a",), {})], "[a]\n"),
        ("", [Set(("a",), {})], "# ours\n[a]\n"),
        ("", [Set(("a b", "c.d"), {"e": {"f": {}}})], '# ours\n["a b"."c.d".e.f]\n'),
        ("[[a]]\nb = 1\n[a.c]\n[[a]]\n", [Set(("a",), {"b": 1})], "\n# ours\n[a]\n  b = 1\n"),
        ("[[a]]\nb = 1\n", [Set(("a",), [1])], "a = [1]\n"),
        ("a = { }\n", [Set(("a", "b"), 1)], "a = { b = 1 }\n"),
        ("a = {b=1}\n", [Remove(("a", "b"))], "a = {}\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Set(("a", "b", "f"), 4)], "a = { b.c = 1, d = 2, b.e = 3, b.f = 4 }\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Remove(("a", "b"))], "a = { d = 2 }\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Set(("a", "b"), {})], "a = { d = 2, b = {} }\n"),
        ("a = { b.c = 1, d = 2, b.e = 3 }\n", [Set(("a", "d"), 5)], "a = { b.c = 1, d = 5, b.e = 3 }\n"),
        ("a = { b = 1, c = 2, d = 3 }\n", [Remove(("a", "d")), Remove(("a", "c"))], "a = { b = 1 }\n"),
        ("a = { b = [1] }\n", [Set(("a", "b"), [1, {"c": 2}])], "a = { b = [1, { c = 2 }] }\n"),
    ],
)
def test_unusual_forms_are_edited_where_they_stand(text: str, changes: Sequence[Change], expected: str) -> None:
    assert edit(text, *changes) == expected


@pytest.mark.parametrize(
    "text,new,expected",
    [
        ("[]", ["a"], '["a"]'),
        ("[ ]", ["a"], '["a" ]'),
        ("[\n]", ["a"], '[\n  "a",\n]'),
        ("[\n  # none\n]", ["a"], '[\n  # none\n  "a",\n]'),
        ('["a", ]', ["a", "b"], '["a", "b", ]'),
        ('["a",\n "b"]', ["a", "b", "c"], '["a",\n "b",\n "c"]'),
        ('[\n  "a", # c\n]', ["a", "b", "c"], '[\n  "a", # c\n  "b",\n  "c",\n]'),
        ('["a", "b", "c"]', ["b", "d"], '["b", "d"]'),
        ('["a", "b", "c"]', ["a"], '["a"]'),
        ('["a", "b", "c", "d"]', ["a", "d"], '["a", "d"]'),
        ('["a", "b", ]', ["a"], '["a", ]'),
        ('["a", "b"]', [], "[]"),
        ('[\n  "a",\n  "b"\n]', ["a"], '[\n  "a"\n]'),
        ('[\n  "a", # a\n  "b", # b\n]', ["b"], '[\n  # a\n  "b", # b\n]'),
        ('[\n  "a" # a\n  , "b"\n]', ["b"], '[\n   # a\n   "b"\n]'),
        ('["a", # a\n "b"]', ["a"], '["a" # a\n ]'),
        ('[["a"], ["b"]]', [["b"]], '[["b"]]'),
    ],
)
def test_array_elements_come_and_go_in_the_layout_that_is_there(text: str, new: list[Any], expected: str) -> None:
    assert edit(f"a = {text}\n", Set(("a",), new)) == f"a = {expected}\n"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "# only a comment",
        "version = 2",
        "version = 2\r\n\r\n",
        f"version = 2\n[{CRI}.containerd]\n  default_runtime_name = 'runc'  # why\n",
        f"[{CRI}.containerd.runtimes.runc]\n  runtime_type = 'x'\n  ",
        f"[{CRI}]\ncontainerd.runtimes.runc.runtime_type = 'x'\n# end\n",
        f"plugins = {{ {CRI.partition('.')[2]} = {{ containerd = {{}} }} }}\n",
        "# ours\n",
        "text = '''\n# ours\n'''",
    ],
)
def test_what_an_edit_added_the_next_takes_away_byte_for_byte(content: str) -> None:
    before = toml_document.parse(content.encode())
    added = edit(
        content, *(Set((*CONTAINERD, "runtimes", name), RUNTIME) for name in HANDLERS), Set(("imports",), ["/a.toml"])
    )
    assert added != content
    changes = [Set((key,), value) for key, value in before.items()]
    gone = [Remove((key,)) for key in ("plugins", "imports") if key not in before]
    assert edit(added, *changes, *gone) == content


def test_text_that_somebody_appended_to_the_block_outlives_it() -> None:
    content = "version = 2\n"
    added = edit(content, Set(("a",), {"b": 1})) + "[foo]\n# ours\n\n# ours\n"
    assert edit(added, Remove(("a",))) == content + "[foo]\n# ours\n\n# ours\n"


def test_a_block_keeps_its_comment_while_its_first_table_stands() -> None:
    content = edit("", Set(("a",), {"x": 1}), Set(("b",), {"x": 1}))
    assert edit(content, Remove(("b",))) == "# ours\n[a]\n  x = 1\n"


def test_a_comment_that_somebody_wrote_into_the_block_survives() -> None:
    content = "# ours\n[a]\n  # why\n  b = 1 # because\n"
    assert edit(content, Remove(("a",))) == "  # why\n  # because\n"


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_file_of_3000_tables_is_edited_in_a_moment(*, interleaved: bool) -> None:
    mirrors = [
        f'\n[{CRI}.registry.mirrors."r{n}.example"]\n  endpoint = ["https://m{n}.example"]\n' for n in range(1500)
    ]
    secrets = [f'\n[{CRI}.registry.configs."r{n}.example".tls]\n  ca_file = "/{"x" * 80}/{n}"\n' for n in range(1500)]
    tables = (
        [each for pair in zip(mirrors, secrets, strict=True) for each in pair] if interleaved else mirrors + secrets
    )
    content = f'version = 2\n{"".join(tables)}\n[{CRI}.containerd]\n  default_runtime_name = "runc"\n'
    started = time.process_time()
    edited = edit(
        content,
        *(Set((*CONTAINERD, "runtimes", name), RUNTIME) for name in HANDLERS),
        Set((*CONTAINERD, "default_runtime_name"), "nvidia"),
    )
    # of the processor, whatever else the machine does: 0.4 s on one core of 2020; a quadratic search takes minutes
    assert time.process_time() - started < 5
    assert len(content) > 400_000
    assert edited.startswith(content.removesuffix('"runc"\n'))


DATA = pathlib.Path(__file__).parents[2] / "data" / "documents" / "toml"
CASES = sorted(folder.name for folder in DATA.iterdir())
MARKER = "nvidia installer"


def changes_of(case: str) -> list[Change]:
    """Read [["set", path, value], ["remove", path], …]."""
    changes: list[Change] = []
    for what, path, *value in json.loads((DATA / case / "changes.json").read_text()):
        changes.append(Set(tuple(path), *value) if what == "set" else Remove(tuple(path)))
    return changes


@pytest.mark.parametrize("case", CASES)
def test_the_edit_gives_the_text_that_a_person_approved(case: str) -> None:
    edited = toml_document.edit((DATA / case / "in.toml").read_bytes(), changes_of(case), marker=MARKER)
    expected = (DATA / case / "out.toml").read_bytes()
    assert edited == expected, "\n".join(difflib.unified_diff(lines(expected), lines(edited), "approved", "got", n=1))


def lines(content: bytes) -> list[str]:
    """Return lines that show their line ends."""
    return [repr(line)[2:-1] for line in content.splitlines(keepends=True)]


@pytest.mark.parametrize("case", CASES)
def test_an_edit_that_is_made_already_gives_the_same_bytes(case: str) -> None:
    content = (DATA / case / "out.toml").read_bytes()
    assert toml_document.edit(content, changes_of(case), marker=MARKER) == content


TEXTS = st.text("ab\n", max_size=6)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), TEXTS, st.randoms(use_true_random=False))
def test_splices_replace_their_spans_alone(parts: list[tuple[str, str, str]], rest: str, order: random.Random) -> None:
    text, expected, splices = "", "", []
    for kept, cut, put in parts:
        text += kept
        splices.append(Splice(len(text), len(text) + len(cut), put))
        text, expected = text + cut, expected + kept + put
    if all(cut for _, cut, _ in parts):  # two that share an offset keep their order
        order.shuffle(splices)
    assert apply_splices(text + rest, splices) == expected + rest


SCALARS = st.booleans() | st.integers(-9, 9) | st.text("a#,]}\n\"'", max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b.c", "d e"]), inner),
    max_leaves=10,
)


@given(VALUES, VALUES, st.sampled_from(["\n", "\r\n"]))
def test_an_edited_value_parses_to_the_new_one(old: Any, new: Any, eol: str) -> None:
    edited = toml_edit.edit_value(toml_text.write(old), old, new, eol)
    assert is_same(tomllib.loads(f"x = {edited}")["x"], new)


@given(VALUES)
def test_a_value_that_stays_keeps_its_spelling(value: Any) -> None:
    spelt = f"[ # why\n {toml_text.write(value)},\n]"
    assert toml_edit.edit_value(spelt, [value], [value], "\n") is spelt


@pytest.mark.parametrize(
    "text, changed, expected",
    [
        ("# site\n\n[t]\n", {"a": 1, "t": {}}, "# site\na = 1\n\n[t]\n"),
        ("# of t\n[t]\n", {"a": 1, "t": {}}, "a = 1\n# of t\n[t]\n"),
        ("b = 1\r\n[t]\r\n", {"b": 1, "a": 1, "t": {}}, "b = 1\r\na = 1\r\n[t]\r\n"),
        ("[t]\r\nb = 1", {"t": {"b": 1, "a": 2}}, "[t]\r\na = 2\r\nb = 1"),
        ("[t]\n\tb = 1\n", {"t": {"b": 1, "a": 2}}, "[t]\n\ta = 2\n\tb = 1\n"),
        ("\t[t]\n", {"t": {"a": 2}}, "\t[t]\n\t\ta = 2\n"),
        ("[t]\nx.y = 1\n", {"t": {"x": {"y": 1, "z": {"w": 2}}}}, "[t]\nx.y = 1\nx.z.w = 2\n"),
        ('[ "odd key" ]\n', {"odd key": {"t": {}}}, '[ "odd key" ]\n\n# ours\n["odd key".t]\n'),
    ],
    ids=("file", "table", "CRLF", "no-last-line-end", "tab", "deeper", "dotted", "spelling"),
)
def test_new_keys_stand_where_a_reader_looks_for_them(text: str, changed: Table, expected: str) -> None:
    assert toml_edit.edit_text(text, tomllib.loads(text), changed, "ours") == expected


def test_comments_that_a_new_value_has_no_place_for_move_above_it() -> None:
    text = "[t]\n  a = [ # which\n    1, # one\n  ] # end\n"
    edited = toml_edit.edit_text(text, {"t": {"a": [1]}}, {"t": {"a": 2}}, "ours")
    assert edited == "[t]\n  # which\n  # one\n  a = 2 # end\n"


def test_a_value_in_several_lines_goes_and_its_comments_stay() -> None:
    text = "a = [\r\n  1, # one\r\n] # end\r\nb = 1\r\n"
    assert toml_edit.edit_text(text, {"a": [1], "b": 1}, {"b": 1}, "ours") == "# one\r\n# end\r\nb = 1\r\n"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[x]\n\n# ours\n[a]\nb = 1\n[a.c]\n[d]\n\n[e]\n", [("a",), ("a", "c"), ("d",)]),
        ("# ours\n[a]\n# theirs\n[e]\n", [("a",)]),
        ("# ours\r\n[a]\r\n\r\n[e]\r\n# ours\r\n[f]\r\n", [("a",), ("f",)]),
        ("# ours\na = 1\n[b]\n", [("b",)]),
        ("# ours\n[[a]]\n[b]\n", [("b",)]),
        ("# ours\n\n[e]\n", []),
        ("# ours too\n[e]\n", []),
        ("a = '''\n# ours\n[e]\n'''\n[f]\n", []),
        ("[e]\n", []),
    ],
)
def test_only_tables_of_the_paragraph_below_the_marker_are_in_the_block(text: str, expected: list[Path]) -> None:
    assert [header.path for header in toml_edit.headers(text, "ours")] == expected


@pytest.mark.parametrize(
    "table, expected",
    [
        ({}, [(("a",), {})]),
        ({"b": 1}, [(("a",), {"b": 1})]),
        ({"b": {"c": 1}}, [(("a", "b"), {"c": 1})]),
        ({"b": {}, "d": [{}]}, [(("a",), {"d": [{}]}), (("a", "b"), {})]),
    ],
)
def test_a_table_gets_a_header_only_where_none_below_makes_it(table: Table, expected: list[tuple[Path, Table]]) -> None:
    assert list(toml_edit.tables(("a",), table)) == expected
