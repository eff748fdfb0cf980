"""The statements of a TOML text with exact spans, the tree of its tables, and a writer of values and keys.

The scanner finds positions and validates nothing: its input must be text that tomllib has accepted. Spans are offsets
of characters, the end excluded. The scanner does not recurse, so that no nesting of brackets is too deep for it. The
written TOML is such that every engine's parser reads it.
"""

from __future__ import annotations

import datetime as dt
import enum
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from toolkit_installer.documents.changes import Path, line_at

# Possessive quantifiers and disjoint alternatives keep the matcher from backtracking over long strings. No group is
# possessive: Python before 3.11.5, such as Debian 12's, matches such groups wrongly.
_ML_BASIC = r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*"{3,5}'
_ML_LITERAL = r"'''(?:[^']++|'{1,2}(?!'))*'{3,5}"
_STRING = rf"""{_ML_BASIC}|{_ML_LITERAL}|"(?:[^"\\]++|\\.)*"|'[^']*+'"""
_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]++|\\.)*"|'[^'\n]*+')"""
_KEY = rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*"

_STRING_TOKEN: Final = re.compile(_STRING, re.DOTALL)
_PLAIN_VALUE: Final = re.compile(r"\d{4}-\d\d-\d\d [^\s#,\]}]+|[^\s#,\]}]+")
_TOKEN: Final = re.compile(rf"{_STRING}|\#[^\r\n]*|[\[\]{{}},]|[^\"'#\[\]{{}},]+", re.DOTALL)
_PART: Final = re.compile(_KEY_PART)
_BLANK: Final = re.compile(r"(?:[ \t]*+(?:#[^\n]*+)?\r?\n)*(?:[ \t]*+#[^\n]*+)?")
_INDENT: Final = re.compile(r"[ \t]*")
_HEADER: Final = re.compile(rf"(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?")
_ASSIGNMENT: Final = re.compile(rf"({_KEY})[ \t]*=[ \t]*")
_SPACE_AND_COMMENTS: Final = re.compile(r"(?:\s|#[^\n]*)*")
_REST_OF_LINE: Final = re.compile(r"[^\n]*\n?")


class StatementKind(enum.StrEnum):
    """The kinds of statements."""

    TABLE = "[table]"
    ARRAY_TABLE = "[[array of tables]]"
    KEY_VALUE = "key = value"


class Statement(msgspec.Struct, frozen=True):
    """One header or one key with its value: whole lines, from the indentation to the line end.

    `path` is absolute, `spelling` the key's parts as this statement spells them (relative to the section for a
    key-value), `section` the path of the header above it. `value_start` and `value_end` are the span of a key-value's
    value; for a header, both are the end of its brackets.
    """

    kind: StatementKind
    path: Path
    spelling: tuple[str, ...]
    section: Path
    start: int
    key_start: int
    value_start: int
    value_end: int
    end: int


class Item(msgspec.Struct, frozen=True):
    """An element of an array or a member of an inline table."""

    spelling: tuple[str, ...]
    start: int
    """The start of the key, if it has one."""
    value_start: int
    end: int
    comma: int | None
    """The offset of the comma after the item."""

    @property
    def path(self) -> Path:
        """The member's key, relative to its inline table."""
        return tuple(map(_decoded, self.spelling))


def scan(text: str) -> Iterator[Statement]:
    """Yield the statements of `text`, a valid TOML document without byte order mark, in order."""
    section: Path = ()
    position = 0
    while True:
        start = _after(_BLANK, text, position)
        key_start = _after(_INDENT, text, start)
        if key_start == len(text):
            return
        if header := _HEADER.match(text, key_start):
            opening, key = header.groups()
            kind = StatementKind.TABLE if opening == "[" else StatementKind.ARRAY_TABLE
            spelling, section = split_key(key)
            path, value_start, value_end = section, header.end(), header.end()
        else:
            kind = StatementKind.KEY_VALUE
            assignment = _matched(_ASSIGNMENT, text, key_start)
            spelling, relative = split_key(assignment.group(1))
            path, value_start = (*section, *relative), assignment.end()
            value_end = find_value_end(text, value_start)
        position = _after(_REST_OF_LINE, text, value_end)
        yield Statement(kind, path, spelling, section, start, key_start, value_start, value_end, position)


def find_value_end(text: str, start: int) -> int:
    """Return the end of the value that begins at `start`."""
    if string := _STRING_TOKEN.match(text, start):
        return string.end()
    if text[start] not in "[{":
        return _matched(_PLAIN_VALUE, text, start).end()
    depth = 0
    for token in _TOKEN.finditer(text, start):
        character = text[token.start()]
        if character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
            if not depth:
                return token.end()
    raise ValueError("brackets are not closed")


def items(value: str) -> list[Item]:
    """Return the elements of an array or the members of an inline table, given the value's text with its brackets."""
    found: list[Item] = []
    has_keys = value.startswith("{")
    position = _after(_SPACE_AND_COMMENTS, value, 1)
    while position < len(value) - 1:
        start = position
        spelling: tuple[str, ...] = ()
        if has_keys:
            assignment = _matched(_ASSIGNMENT, value, start)
            spelling, _ = split_key(assignment.group(1))
            position = assignment.end()
        end = find_value_end(value, position)
        after = _after(_SPACE_AND_COMMENTS, value, end)
        comma = after if value[after] == "," else None
        found.append(Item(spelling, start, position, end, comma))
        position = after if comma is None else _after(_SPACE_AND_COMMENTS, value, after + 1)
    return found


def comments(value: str) -> list[str]:
    """Return the comments inside a value's text, in order."""
    return [token for token in _TOKEN.findall(value) if token.startswith("#")]


@functools.lru_cache(maxsize=1024)
def split_key(key: str) -> tuple[tuple[str, ...], Path]:
    """Return a dotted key's parts, as spelt and decoded."""
    spelling = tuple(_PART.findall(key))
    return spelling, tuple(map(_decoded, spelling))


def _decoded(part: str) -> str:
    """Return one part of a key, decoded."""
    if part[0] == "'":
        return part[1:-1]
    if part[0] != '"':
        return part
    return str(tomllib.loads(f"key = {part}")["key"]) if "\\" in part else part[1:-1]


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return the end of the match at `position`; the pattern always matches, if only the empty text."""
    return _matched(pattern, text, position).end()


def _matched(pattern: re.Pattern[str], text: str, position: int) -> re.Match[str]:
    """Return the match at `position`. Raises ValueError if there is none, which a valid document excludes."""
    match = pattern.match(text, position)
    if match is None:
        raise ValueError(f"offset {position} is not what TOML has there: {text[position : position + 20]!r}")
    return match


class TableNode(msgspec.Struct):
    """The statements at one path. An array of tables is a leaf: it owns every statement below it."""

    spelling: str = ""
    """The key's last part, as the document spells it first."""
    children: dict[str, TableNode] = msgspec.field(default_factory=dict)
    header: Statement | None = None
    value: Statement | None = None
    last_dotted: Statement | None = None
    """The last key-value whose dotted key passes through this table."""
    array: list[Statement] = msgspec.field(default_factory=list)

    @property
    def is_section(self) -> bool:
        """Whether it has a [header] or is the root; dotted keys or headers of subtables create other tables."""
        return self.header is not None or not self.spelling

    def statements(self) -> Iterator[Statement]:
        """Yield every statement that defines this key or anything below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield from node.array
            if node.header is not None:
                yield node.header
            if node.value is not None:
                yield node.value
            waiting.extend(node.children.values())

    def values(self) -> Iterator[Statement]:
        """Yield the key-values of this table's own section, including dotted ones."""
        waiting = [child for child in self.children.values() if child.header is None]
        while waiting:
            node = waiting.pop()
            if node.value is not None:
                yield node.value
            elif node.last_dotted is not None:
                waiting.extend(child for child in node.children.values() if child.header is None)


def build_tree(statements: Iterable[Statement]) -> TableNode:
    """Return the root node of a document."""
    root = section = TableNode()
    for statement in statements:
        if statement.kind is StatementKind.KEY_VALUE:
            if section.array:
                section.array.append(statement)
            else:
                _add_value(section, statement)
            continue
        section = _walk(root, statement.path, statement.spelling)
        if statement.kind is StatementKind.ARRAY_TABLE or section.array:
            section.array.append(statement)
        else:
            section.header = statement
    return root


def spell_path(root: TableNode, path: Path) -> str:
    """Return `path` as a header: each part as the document spells it first, as `write_key` does if it is new."""
    node: TableNode | None = root
    parts = []
    for key in path:
        node = node.children.get(key) if node else None
        parts.append(node.spelling if node else write_key(key))
    return ".".join(parts)


def first_line(text: str, path: Path) -> int | None:
    """Return the 1-based line of the first statement that mentions `path`, or of the value that holds it."""
    holder: Statement | None = None
    for statement in scan(text):
        if statement.path[: len(path)] == path:
            return line_at(text, statement.key_start)
        if statement.kind is StatementKind.KEY_VALUE and path[: len(statement.path)] == statement.path:
            holder = statement
    return line_at(text, holder.key_start) if holder else None


def _walk(node: TableNode, path: Path, spelling: tuple[str, ...]) -> TableNode:
    """Return the node at `path` below `node`, created if needed; stop at an array of tables on the way."""
    for key, part in zip(path, spelling, strict=True):
        node = node.children.setdefault(key, TableNode(part))
        if node.array:
            break
    return node


def _add_value(section: TableNode, statement: Statement) -> None:
    """Add a key-value to the tree, below its section."""
    node = section
    for key, part in zip(statement.path[len(statement.section) :], statement.spelling, strict=True):
        if node is not section:
            node.last_dotted = statement
        node = node.children.setdefault(key, TableNode(part))
    node.value = statement


_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_LITERAL_KEY: Final = re.compile(r"[^'\x00-\x1f\x7f]+")
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f\x7f]')
_SHORT_ESCAPES: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def write(value: Any) -> str:
    """Return `value` as TOML on one line: tables become inline tables.

    Takes what tomllib gives: str, int, float, bool, datetime, date, time, list, dict. Raises TypeError for anything
    else and ValueError for a value of these types that TOML cannot hold (a lone surrogate, a time with a zone).
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _basic_string(value)
        case int() | float():
            return repr(value)  # 1e+16, inf and nan are spelt alike in both languages
        case dt.time() if value.tzinfo is not None:
            raise ValueError("TOML has no local time with a zone")
        case dt.datetime() if (value.utcoffset() or dt.timedelta()) % dt.timedelta(minutes=1):
            raise ValueError("TOML has no zone offset with seconds")
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case list():
            return f"[{', '.join(map(write, value))}]"
        case dict():
            members = ", ".join(f"{write_key(key)} = {write(member)}" for key, member in value.items())
            return f"{{ {members} }}" if members else "{}"
    raise TypeError(f"TOML has no value of type {type(value).__name__}")


def write_key(key: str) -> str:
    """Return one part of a key: bare if possible, else quoted.

    go-toml v1 (containerd 1.x) does not decode escapes in a header's key, so a key that would need one is written in
    single quotes where TOML allows it. Raises ValueError for a lone surrogate.
    """
    if _BARE_KEY.fullmatch(key):
        return key
    if _ESCAPED.search(key) and _LITERAL_KEY.fullmatch(key):
        return f"'{key}'"
    return _basic_string(key)


def _basic_string(text: str) -> str:
    """Return `text` in double quotes. Raises ValueError (UnicodeEncodeError) for a lone surrogate."""
    text.encode()
    escaped = _ESCAPED.sub(lambda match: _SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text)
    return f'"{escaped}"'
