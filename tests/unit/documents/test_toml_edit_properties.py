"""Rules of the TOML editor that hold for every document and every change."""

from __future__ import annotations

import collections
import random
import tomllib
from typing import TYPE_CHECKING, Any

import hypothesis
from hypothesis import strategies as st

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Change, Path, Remove, Set, Table, apply_changes, is_same, lookup
from toolkit_installer.documents.toml_text import StatementKind, comments, scan, write, write_key

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = "ours"
SETTINGS = hypothesis.settings(max_examples=50, deadline=None)

KEYS = ("a", "b", "c-1", "io.x.y", "it's", 'q"q', "a]b", "h#h", "e=e", "ü", "")
SCALARS: tuple[Any, ...] = (
    1,
    -7,
    1.5,
    True,
    "text",
    "# no comment",
    "[no.header]",
    'say "x"',
    "two\nlines",
    "",
    [],
    ["x", 1, ["y"]],
)
COMMENTS = ("# plain", "#", "# [table]", '# key = "value', "#\ttab")


class Renderer:
    """Writes a table as TOML in a form that `choose` picks at every turn."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.sections: list[str] = []

    def document(self, table: Table) -> str:
        self.section("", (), table)
        root, *others = self.sections
        ordered = "".join([root, *others])
        self.choose.shuffle(others)
        shuffled = "".join([root, *others])
        text = shuffled if is_toml(shuffled) else ordered
        if self.choose.random() < 0.2:
            text = text.replace("\n", "\r\n")
        return text.rstrip("\r\n") if self.choose.random() < 0.2 else text

    def section(self, header: str, path: Path, table: Table) -> None:
        number = len(self.sections)
        self.sections.append("")
        indent = self.choose.choice(("", "", "  ", "\t"))
        lines = [f"{indent}{header}{self.trailing()}"] if header else []
        for key, value in table.items():
            lines += self.lines("", (*path, key), value, indent)
        self.sections[number] = "".join(f"{line}\n" for line in lines)

    def lines(self, dotted: str, path: Path, value: Any, indent: str) -> Iterator[str]:
        key = dotted + self.spelt(path[-1])
        form = self.choose.random()
        if self.choose.random() < 0.2:
            yield self.choose.choice(("", f"{indent}{self.choose.choice(COMMENTS)}"))
        if isinstance(value, dict) and form < 0.5:
            headers = self.choose.random() < 0.7 or not any(isinstance(each, dict) and each for each in value.values())
            if headers or not value or not all(isinstance(each, dict) for each in value.values()):
                self.section(f"[{'.'.join(map(self.spelt, path))}]", path, value)
            else:
                for name, each in value.items():  # the table itself gets no header
                    self.section(f"[{'.'.join(map(self.spelt, (*path, name)))}]", (*path, name), each)
        elif isinstance(value, dict) and value and form < 0.8:
            for name, each in value.items():
                yield from self.lines(f"{key}.", (*path, name), each, indent)
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value) and form < 0.6:
            for each in value:
                self.section(f"[[{'.'.join(map(self.spelt, path))}]]", path, {k: v for k, v in each.items() if v != {}})
        else:
            yield f"{indent}{key}{self.choose.choice((' = ', '=', ' =  '))}{self.value(value)}{self.trailing()}"

    def spelt(self, key: str) -> str:
        styles = [write_key(key), write(key)]
        if "'" not in key:
            styles.append(f"'{key}'")
        return self.choose.choice(styles)

    def value(self, value: Any) -> str:
        if isinstance(value, list) and value and self.choose.random() < 0.5:
            inner = ",\n ".join(f"{self.value(each)}" for each in value)
            return f"[ # {self.choose.randrange(9)}\n {inner}{self.choose.choice(('', ','))}\n]"
        if isinstance(value, str) and "'''" not in value and self.choose.random() < 0.3:
            return f"'''\n{value}'''" if not value.endswith("'") else write(value)
        return write(value)

    def trailing(self) -> str:
        return self.choose.choice(("", "", "", f" {self.choose.choice(COMMENTS)}"))


def is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


TABLES = st.recursive(
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(SCALARS), max_size=3),
    lambda inner: st.dictionaries(
        st.sampled_from(KEYS), st.sampled_from(SCALARS) | inner | st.lists(inner, max_size=2), max_size=4
    ),
    max_leaves=12,
)


def paths(table: Table, prefix: Path = ()) -> Iterator[Path]:
    for key, value in table.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from paths(value, (*prefix, key))


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    text = Renderer(random.Random(draw(st.integers(0, 2**32)))).document(draw(TABLES))  # noqa: S311  # no secret
    hypothesis.assume(is_toml(text))
    return text.encode()


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, list[Change]]:
    content = draw(documents())
    known = [*paths(toml_document.parse(content)), ("new",)]
    changes: list[Change] = []
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(known)) + draw(st.sampled_from(((), (), ("a",), ("b",), ("n", "m"))))
        value = draw(TABLES | st.sampled_from(SCALARS))
        changes.append(Set(path, value) if draw(st.booleans()) else Remove(path))
    return content, changes


def all_comments(content: bytes) -> collections.Counter[str]:
    text = content.decode()
    found: list[str] = []
    position = 0
    for statement in scan(text):
        found += comments(text[position : statement.start])
        found += comments(text[statement.value_start : statement.end])
        position = statement.end
    return collections.Counter(each.rstrip() for each in [*found, *comments(text[position:])])


@SETTINGS
@hypothesis.given(edits())
def test_an_edit_means_what_was_asked_for(case: tuple[bytes, list[Change]]) -> None:
    content, changes = case
    edited = toml_document.edit(content, changes, marker=MARKER)
    assert is_same(tomllib.loads(edited.decode()), apply_changes(tomllib.loads(content.decode()), tuple(changes)))


@SETTINGS
@hypothesis.given(edits())
def test_no_comment_is_lost_and_none_but_the_marker_is_added(case: tuple[bytes, list[Change]]) -> None:
    content, changes = case
    edited = all_comments(toml_document.edit(content, changes, marker=MARKER))
    added = edited - all_comments(content)
    assert not all_comments(content) - edited
    assert added in ({}, {f"# {MARKER}": 1})


@SETTINGS
@hypothesis.given(edits())
def test_lines_that_no_change_concerns_stay_as_they_are(case: tuple[bytes, list[Change]]) -> None:
    content, changes = case
    document = toml_document.parse(content)
    concerned = [up_to_value(document, change.path) for change in changes]
    before, after = (
        tuple(
            text[statement.start : statement.end].rstrip("\r\n")
            for statement in scan(text)
            if not any(touches(path, statement.path) for path in concerned)
        )
        for text in (content.decode(), toml_document.edit(content, changes, marker=MARKER).decode())
    )
    remaining = iter(after)
    assert all(line in remaining for line in before), "a line is gone, changed or in another place"


def up_to_value(document: Table, path: Path) -> Path:
    """Cut `path` off where it leads through what is no table: that is replaced whole."""
    for length in range(1, len(path)):
        if not isinstance(lookup(document, path[:length]), dict):
            return path[:length]
    return path


def touches(changed: Path, stated: Path) -> bool:
    return all(left == right for left, right in zip(changed, stated, strict=False))


@SETTINGS
@hypothesis.given(edits())
def test_the_same_edit_again_changes_nothing(case: tuple[bytes, list[Change]]) -> None:
    content, changes = case
    document = toml_document.parse(content)
    for change in changes:
        document = apply_changes(document, (change,))
    settled = [Set((key,), value) for key, value in document.items()]
    once = toml_document.edit(content, [*changes, *settled], marker=MARKER)
    assert toml_document.edit(once, settled, marker=MARKER) == once


@SETTINGS
@hypothesis.given(documents(), st.lists(TABLES, min_size=1, max_size=3), st.data())
def test_what_was_added_can_be_removed_without_a_trace(
    content: bytes, tables: list[Table], data: st.DataObject
) -> None:
    document = toml_document.parse(content)
    parents = [(), *(path for path in paths(document) if isinstance(lookup(document, path), dict))]
    parent = data.draw(st.sampled_from(parents))
    added = [Set((*parent, f"new{number}"), table) for number, table in enumerate(tables)]
    with_them = toml_document.edit(content, [*added, Set((*parent, "new"), "x")], marker=MARKER)
    gone = [Remove(change.path) for change in added]
    assert with_them != content
    assert toml_document.edit(with_them, [*gone, Remove((*parent, "new"))], marker=MARKER) == content


@SETTINGS
@hypothesis.given(documents())
def test_statements_cover_the_text_but_for_blank_lines_and_comments(content: bytes) -> None:
    text = content.decode()
    position = 0
    for statement in scan(text):
        between = text[position : statement.start]
        assert all(line.strip() == "" or line.lstrip().startswith("#") for line in between.splitlines())
        assert text[position : statement.start].endswith("\n") or statement.start == position
        if statement.kind is StatementKind.KEY_VALUE:
            assert is_toml(f"value = {text[statement.value_start : statement.value_end]}")
            assert text[statement.value_end : statement.end].strip()[:1] in {"", "#"}
        position = statement.end
