"""JSON text as a tree that keeps every character, and the strict scanner that makes it (RFC 8259)."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Final

from toolkit_installer.documents.changes import DocumentError

MAX_DEPTH: Final = 100
"""Levels of nesting that are read. Far beyond any engine's file, far below Python's recursion limit."""

MAX_NUMBER: Final = 600
"""Characters of the longest number that is read: Python refuses integers from 641 digits on where told to."""

MAX_EXPONENT: Final = 15
"""Digits of the longest exponent that is read: decimal.Decimal holds 18."""

_SPACE = re.compile(r"[ \t\r\n]*")
_CHARACTERS = r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*'
_STRING_START = re.compile(_CHARACTERS)
_STRING = re.compile(_CHARACTERS + '"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?([0-9]+))?")
_LITERAL = re.compile(r"true|false|null")
_NO_NUMBER = re.compile(r"[+-]?(?:NaN|Infinity)")


@dataclasses.dataclass(slots=True, eq=False)
class Raw:
    """A value that is kept or replaced as a whole: a scalar or an array, as it is spelt."""

    text: str


@dataclasses.dataclass(slots=True, eq=False)
class Object:
    """An object. `gap` is what stands between the braces when there are no members."""

    members: list[Member]
    gap: str = ""
    ours: int = 0
    """How many of the first members were put there by the edit in progress."""

    def find(self, key: str) -> Member | None:
        """Return the member named `key`."""
        return next((member for member in self.members if member.key == key), None)

    def write(self, parts: list[str]) -> None:
        """Append the object's text to `parts`, piece by piece."""
        parts.append("{")
        for index, member in enumerate(self.members):
            parts += ("," if index else "", member.before, member.name, member.colon)
            if isinstance(member.value, Object):
                member.value.write(parts)
            else:
                parts.append(member.value.text)
            parts.append(member.after)
        parts += (self.gap if not self.members else "", "}")


Value = Raw | Object


@dataclasses.dataclass(slots=True, eq=False)
class Member:
    """One `"key": value` of an object.

    `before` and `after` are the white space around it, up to the brace or comma on either side; `colon` is the colon
    with its white space. `name` is the key as it is spelt, `key` what it means. `offset` is where `name` stood in the
    scanned text, in characters.
    """

    before: str
    name: str
    key: str
    colon: str
    value: Value
    after: str
    offset: int


@dataclasses.dataclass(slots=True, eq=False)
class Document:
    """A whole file: one object and the white space around it."""

    lead: str
    root: Object
    tail: str

    def text(self) -> str:
        """Return the file's text."""
        parts = [self.lead]
        self.root.write(parts)
        parts.append(self.tail)
        return "".join(parts)


def scan(text: str) -> Document:
    """Return the tree of a JSON document, whose `text()` is `text` again.

    Raises DocumentError for anything but one object without duplicate keys, saying line and column.
    """
    scanner = _Scanner(text)
    lead = scanner.space()
    start = scanner.position
    root = scanner.value(1)
    tail = scanner.space()
    if scanner.position < len(text):
        raise scanner.surprise("the end of the document")
    if not isinstance(root, Object):
        raise scanner.error(start, "the top level is not an object", hint='the file must be one "{…}"')
    return Document(lead, root, tail)


def scan_value(text: str) -> Value:
    """Return the tree of one JSON value that has no white space around it."""
    return _Scanner(text).value(1)


class _Scanner:
    """Walks over the text once, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def space(self) -> str:
        """Step over white space and return it."""
        start = self.position
        if match := _SPACE.match(self.text, start):
            self.position = match.end()
        return self.text[start : self.position]

    def peek(self) -> str:
        """Return the next character, or nothing at the end."""
        return self.text[self.position : self.position + 1]

    def value(self, depth: int) -> Value:
        start = self.position
        if depth > MAX_DEPTH:
            raise self.error(start, f"nested more than {MAX_DEPTH} levels deep")
        character = self.peek()
        if character == "{":
            return self.object(depth)
        if character == "[":
            self.array(depth)
        elif character == '"':
            self.string()
        elif match := _LITERAL.match(self.text, start):
            self.position = match.end()
        elif match := _NUMBER.match(self.text, start):
            self.number(match)
        else:
            raise self.surprise("a value")
        return Raw(self.text[start : self.position])

    def number(self, match: re.Match[str]) -> None:
        if len(match[0]) > MAX_NUMBER:
            raise self.error(match.start(), f"a number of {len(match[0])} characters")
        if len(match[1] or "") > MAX_EXPONENT:
            raise self.error(match.start(), "a number with an absurd exponent")
        self.position = match.end()

    def object(self, depth: int) -> Object:
        opened = self.position
        self.position += 1
        result = Object([])
        keys: set[str] = set()
        gap = self.space()
        if self.peek() == "}":
            self.position += 1
            result.gap = gap
            return result
        while True:
            member = self.member(gap, depth)
            if member.key in keys:
                raise self.error(
                    member.offset,
                    f"the key {json.dumps(member.key)[:80]} stands twice in one object",
                    hint="keep one of the two",
                )
            keys.add(member.key)
            result.members.append(member)
            if not self.more(opened, "}"):
                return result
            gap = self.space()

    def member(self, before: str, depth: int) -> Member:
        offset = self.position
        if self.peek() != '"':
            raise self.surprise("a key in double quotes")
        name = self.string()
        start = self.position
        self.space()
        if self.peek() != ":":
            raise self.surprise('":"')
        self.position += 1
        self.space()
        colon = self.text[start : self.position]
        value = self.value(depth + 1)
        key = name[1:-1] if "\\" not in name else json.loads(name)
        return Member(before, name, key, colon, value, self.space(), offset)

    def array(self, depth: int) -> None:
        opened = self.position
        self.position += 1
        self.space()
        if self.peek() == "]":
            self.position += 1
            return
        while True:
            self.value(depth + 1)
            self.space()
            if not self.more(opened, "]"):
                return
            self.space()

    def more(self, opened: int, close: str) -> bool:
        """Step over a comma (True) or the closing bracket (False)."""
        if self.peek() not in {",", close}:
            if self.position == len(self.text):
                what = "object" if close == "}" else "array"
                raise self.error(self.position, f"cut off: the {what} opened on line {self.line(opened)} is not closed")
            raise self.surprise(f'"," or "{close}"')
        self.position += 1
        if self.text[self.position - 1] == close:
            return False
        comma = self.position - 1
        space = _SPACE.match(self.text, self.position)
        if space and self.text[space.end() : space.end() + 1] == close:
            raise self.error(comma, f'a comma before "{close}"', hint="remove the comma")
        return True

    def string(self) -> str:
        start = self.position
        if match := _STRING.match(self.text, start):
            self.position = match.end()
            return match[0]
        good = _STRING_START.match(self.text, start)
        end = good.end() if good else start
        stop = self.text[end : end + 1]
        if stop == "\\":
            raise self.error(end, "an unknown escape in a string", hint="a backslash is written as two")
        if stop in {"", "\n", "\r"}:
            raise self.error(start, "a string that is not closed")
        raise self.error(end, f"a bare control character (U+{ord(stop):04X}) in a string")

    def surprise(self, wanted: str) -> DocumentError:
        """Return the error for text that is not what must come here."""
        found = self.text[self.position : self.position + 1]
        if not found:
            return self.error(self.position, f"cut off: expected {wanted}")
        if found == "#" or self.text.startswith(("//", "/*"), self.position):
            return self.error(self.position, "a comment", hint="JSON has no comments: remove it")
        if match := _NO_NUMBER.match(self.text, self.position):
            return self.error(self.position, f"{match[0]} is no JSON number")
        if wanted.startswith("the end") and found in "{[":
            return self.error(self.position, "two documents in one file", hint="keep one of the two")
        return self.error(self.position, f"expected {wanted}, found {found!a}")

    def line(self, offset: int) -> int:
        """Return the 1-based line of an offset."""
        return self.text.count("\n", 0, offset) + 1

    def error(self, offset: int, what: str, *, hint: str = "correct the file, or restore it") -> DocumentError:
        """Return an error that names the place."""
        if offset == len(self.text):  # the end is where the text ends, not on the empty line after it
            offset = len(self.text.rstrip())
        column = offset - self.text.rfind("\n", 0, offset)
        return DocumentError(f"not valid JSON: {what} (column {column})", line=self.line(offset), hint=hint)
