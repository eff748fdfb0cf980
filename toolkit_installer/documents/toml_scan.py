"""Where everything stands in a TOML text: statements, their keys and their values, with exact spans.

The scanner finds places and judges nothing: it takes texts that tomllib has accepted. Spans are offsets of characters,
the end excluded. Nothing here recurses, so that no nesting of brackets is too deep for it.
"""

from __future__ import annotations

import enum
import functools
import re
import tomllib
from collections.abc import Iterator
from typing import Final

import msgspec

from toolkit_installer import patterns
from toolkit_installer.documents.changes import Path

# Possessive quantifiers, and parts that exclude one another: a long string never makes the matcher try again. None is
# on a group: Python before 3.11.5, Debian 12's among them, matches such groups wrongly.
_ML_BASIC = r'"""(?:[^"\\]++|\\.|"{1,2}(?!"))*"{3,5}'
_ML_LITERAL = r"'''(?:[^']++|'{1,2}(?!'))*'{3,5}"
_STRING = rf"""{_ML_BASIC}|{_ML_LITERAL}|"(?:[^"\\]++|\\.)*"|'[^']*+'"""
_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]++|\\.)*"|'[^'\n]*+')"""
_KEY = rf"{_KEY_PART}(?:[ \t]*\.[ \t]*{_KEY_PART})*"

_STRING_TOKEN: Final = patterns.lazy(_STRING, re.DOTALL)
_PLAIN_VALUE: Final = patterns.lazy(r"\d{4}-\d\d-\d\d [^\s#,\]}]+|[^\s#,\]}]+")
_TOKEN: Final = patterns.lazy(rf"{_STRING}|\#[^\r\n]*|[\[\]{{}},]|[^\"'#\[\]{{}},]+", re.DOTALL)
_PART: Final = patterns.lazy(_KEY_PART)
_BLANK: Final = patterns.lazy(r"(?:[ \t]*+(?:#[^\n]*+)?\r?\n)*(?:[ \t]*+#[^\n]*+)?")
_INDENT: Final = patterns.lazy(r"[ \t]*")
_HEADER: Final = patterns.lazy(rf"(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?")
_ASSIGNMENT: Final = patterns.lazy(rf"({_KEY})[ \t]*=[ \t]*")
_SPACE_AND_COMMENTS: Final = patterns.lazy(r"(?:\s|#[^\n]*)*")
_REST_OF_LINE: Final = patterns.lazy(r"[^\n]*\n?")


class Kind(enum.StrEnum):
    """The kinds of statements."""

    TABLE = "[table]"
    ARRAY_TABLE = "[[array of tables]]"
    KEY_VALUE = "key = value"


class Statement(msgspec.Struct, frozen=True):
    """One header or one key with its value: whole lines, from the indentation to the line end.

    `path` is absolute, `spelling` the key's parts as they stand in this statement (relative to the section for a
    key-value), `section` the path of the header above it. `value_start` and `value_end` are those of a key-value's
    value; a header's `value_end` is the end of its brackets and equals `value_start`.
    """

    kind: Kind
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
    """That of the key where there is one."""
    value_start: int
    end: int
    comma: int | None
    """The place of the comma after it."""

    @property
    def path(self) -> Path:
        """The member's key, relative to its inline table."""
        return tuple(map(_decoded, self.spelling))


def scan(text: str) -> Iterator[Statement]:
    """Yield the statements of `text`, a valid TOML document without byte order mark, in their order."""
    section: Path = ()
    position = 0
    while True:
        start = _after(_BLANK, text, position)
        key_start = _after(_INDENT, text, start)
        if key_start == len(text):
            return
        if header := _HEADER.match(text, key_start):
            opening, key = header.groups()
            kind = Kind.TABLE if opening == "[" else Kind.ARRAY_TABLE
            spelling, section = split_key(key)
            path, value_start, value_end = section, header.end(), header.end()
        else:
            kind = Kind.KEY_VALUE
            assignment = _matched(_ASSIGNMENT, text, key_start)
            spelling, relative = split_key(assignment.group(1))
            path, value_start = (*section, *relative), assignment.end()
            value_end = value_ends(text, value_start)
        position = _after(_REST_OF_LINE, text, value_end)
        yield Statement(kind, path, spelling, section, start, key_start, value_start, value_end, position)


def value_ends(text: str, start: int) -> int:
    """Return where the value ends that begins at `start`."""
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
        end = value_ends(value, position)
        after = _after(_SPACE_AND_COMMENTS, value, end)
        comma = after if value[after] == "," else None
        found.append(Item(spelling, start, position, end, comma))
        position = after if comma is None else _after(_SPACE_AND_COMMENTS, value, after + 1)
    return found


def comments(value: str) -> list[str]:
    """Return the comments that stand inside a value's text, in their order."""
    return [token for token in _TOKEN.findall(value) if token.startswith("#")]


@functools.lru_cache(maxsize=1024)
def split_key(key: str) -> tuple[tuple[str, ...], Path]:
    """Return a dotted key's parts, as they are spelt and as they are meant."""
    spelling = tuple(_PART.findall(key))
    return spelling, tuple(map(_decoded, spelling))


def _decoded(part: str) -> str:
    """Return what one part of a key means."""
    if part[0] == "'":
        return part[1:-1]
    if part[0] != '"':
        return part
    return str(tomllib.loads(f"key = {part}")["key"]) if "\\" in part else part[1:-1]


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return where the match at `position` ends; the pattern matches always, be it nothing."""
    return _matched(pattern, text, position).end()


def _matched(pattern: re.Pattern[str], text: str, position: int) -> re.Match[str]:
    """Return the match at `position`; raises ValueError where there is none, which a valid document does not have."""
    match = pattern.match(text, position)
    if match is None:
        raise ValueError(f"offset {position} is not what TOML has there: {text[position : position + 20]!r}")
    return match
