"""JSON text as a tree that keeps every character, and error messages for text that is not JSON.

The scanner finds positions in a text that the standard library's parser has accepted. Of that it rejects duplicate
keys, NaN and Infinity, and numbers and nesting beyond a limit. The messages are for the file's author, with line and
column.
"""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

from toolkit_installer.documents import shown
from toolkit_installer.documents.changes import DocumentError, line_at

MAX_DEPTH: Final = 100
"""Maximum levels of nesting: far beyond any engine's file, far below Python's recursion limit."""

MAX_NUMBER: Final = 600
"""Maximum characters of a number: Python's configurable limit can reject integers from 641 digits on."""

MAX_EXPONENT: Final = 15
"""Maximum digits of an exponent: decimal.Decimal holds 18."""

NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
"""Constants that Python's parser accepts as numbers and JSON does not allow."""

_SPACE = re.compile(r"[ \t\r\n]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_SCALAR = re.compile(r'"(?:[^"\\]++|\\.)*"|[^ \t\r\n,\]}]+')
_ABSURD_EXPONENT = re.compile(rf"[eE][+-]?[0-9]{{{MAX_EXPONENT + 1}}}")


class Raw(msgspec.Struct, eq=False):
    """A scalar or an array as it is spelt; kept or replaced as a whole."""

    text: str


class Object(msgspec.Struct, eq=False):
    """An object. `gap` is the text between the braces when there are no members."""

    members: list[Member]
    gap: str = ""
    ours: int = 0
    """How many of the first members were inserted by the edit in progress."""

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


class Member(msgspec.Struct, eq=False):
    """One `"key": value` of an object.

    `before` and `after` are the white space around it, up to the brace or comma on either side; `colon` is the colon
    with its white space. `name` is the key as it is spelt, `key` the decoded key. `offset` is the position of `name` in
    the scanned text, in characters.
    """

    before: str
    name: str
    key: str
    colon: str
    value: Value
    after: str
    offset: int


class Document(msgspec.Struct, eq=False):
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
    """Return the tree of a JSON document; its `text()` equals `text`.

    `text` is one JSON value with white space around it. Raises DocumentError, with line and column, for a value that is
    no object, for duplicate keys, and for numbers and nesting beyond the limits.
    """
    scanner = _Scanner(text)
    lead = scanner.take(_SPACE)
    root = scanner.value(1)
    if not isinstance(root, Object):
        raise error_at(text, len(lead), "the top level is not an object", hint='the file must be one "{…}"')
    return Document(lead, root, scanner.take(_SPACE))


def scan_value(text: str) -> Value:
    """Return the tree of one JSON value that has no white space around it."""
    return _Scanner(text).value(1)


def number_fault(number: str) -> str:
    """Return the reason why a number is rejected, "" if it is accepted."""
    if len(number) > MAX_NUMBER:
        return f"a number of {len(number)} characters"
    return "a number with an absurd exponent" if _ABSURD_EXPONENT.search(number) else ""


def _duplicate(text: str, first: Member, second: Member, depth: int) -> DocumentError:
    """Return the error for a duplicate key; its hint keeps everything that dockerd uses.

    dockerd 20.10, 26 and 28 merge two objects at the top level; of other duplicates, such as two runtimes with one
    name, they use the last value.
    """
    lines = [line_at(text, member.offset) for member in (first, second)]
    where = f"lines {lines[0]} and {lines[1]}" if lines[0] != lines[1] else f"line {lines[0]}"
    merged = depth == 1 and isinstance(first.value, Object) and isinstance(second.value, Object)
    return DocumentError(
        f"the key {_named(second.key)} stands twice in one object, on {where}",
        line=lines[1],
        hint="merge the two objects into one: dockerd reads the entries of both"
        if merged
        else "keep the last of the two: dockerd goes by that one",
    )


class _Scanner:
    """A single pass over the text, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def take(self, pattern: re.Pattern[str]) -> str:
        """Step over the match at the position and return it; the match may be empty."""
        match = pattern.match(self.text, self.position)
        assert match is not None  # noqa: S101  # the parser has accepted the text
        self.position = match.end()
        return match[0]

    def value(self, depth: int) -> Value:
        start = self.position
        if depth > MAX_DEPTH:
            raise error_at(self.text, start, f"nested more than {MAX_DEPTH} levels deep")
        if self.text[start] == "{":
            return self.object(depth)
        if self.text[start] == "[":
            self.array(depth)
        elif (scalar := self.take(_SCALAR)) in NO_NUMBERS:
            raise error_at(self.text, start, f"{scalar} is no JSON number")
        elif not scalar.startswith('"') and (trouble := number_fault(scalar)):
            raise error_at(self.text, start, trouble)
        return Raw(self.text[start : self.position])

    def object(self, depth: int) -> Object:
        self.position += 1
        result = Object([], self.take(_SPACE))
        first: dict[str, Member] = {}
        before = result.gap
        while self.text[self.position] != "}":
            offset = self.position
            name = self.take(_SCALAR)
            key = name[1:-1] if "\\" not in name else json.loads(name)
            colon, value, after = self.take(_COLON), self.value(depth + 1), self.take(_SPACE)
            member = Member(before, name, key, colon, value, after, offset)
            if key in first:
                raise _duplicate(self.text, first[key], member, depth)
            first[key] = member
            result.members.append(member)
            if self.text[self.position] == ",":
                self.position += 1
                before = self.take(_SPACE)
        self.position += 1
        return result

    def array(self, depth: int) -> None:
        self.position += 1
        self.take(_SPACE)
        while self.text[self.position] != "]":
            self.value(depth + 1)
            self.take(_COMMA)
        self.position += 1


def _named(key: str) -> str:
    return json.dumps(key)[:80] if shown.is_plain_key(key) else shown.HIDDEN


_NO_NUMBER = re.compile(r"[+-]?(?:NaN|Infinity)")
_NESTING = re.compile(r'"(?:[^"\\]++|\\.)*("|\Z)|[\[\]{}]', re.DOTALL)
_CUT_OFF = re.compile(r"\\u[0-9a-fA-F]{4}\Z")
"""A complete escape at the text's end, which the parser reports as a broken one."""
_BLANKS = " \t\r\n"
_END = "the end of the document"
_WANTED = {"Expecting property": "a key in double quotes", "Expecting ':'": '":"', "Extra data": _END}
"""What is expected at an error, by the begin of the parser's message; for all other messages it is a value."""


def error_at(text: str, offset: int, what: str, *, hint: str = "correct the file, or restore it") -> DocumentError:
    """Return an error with the line and column of `offset`."""
    if offset == len(text):  # the text's last character, not the empty line after it
        offset = len(text.rstrip())
    column = offset - text.rfind("\n", 0, offset)
    return DocumentError(f"not valid JSON: {what} (column {column})", line=line_at(text, offset), hint=hint)


def explain_error(text: str, error: json.JSONDecodeError) -> DocumentError:
    """Return the standard library parser's error, reworded for readers who do not know the parser."""
    place, found = error.pos, text[error.pos : error.pos + 1]
    if error.msg.startswith(("Invalid", "Unterminated")):
        return _broken_string(text, place, found, escape="escape" in error.msg)
    if error.msg.startswith("Illegal trailing comma"):  # from Python 3.13 on, with the comma's position
        rest = text[place + 1 :].lstrip(_BLANKS)
        place, found = len(text) - len(rest), rest[:1]
    before = text[:place].rstrip(_BLANKS)
    if before.endswith(",") and found and found in "]}":
        return error_at(text, len(before) - 1, f'a comma before "{found}"', hint="remove the comma")
    if not error.msg.startswith("Expecting ','"):
        wanted = (words for start, words in _WANTED.items() if error.msg.startswith(start))
        return _unexpected_error(text, place, next(wanted, "a value"))
    opened = _opening(text, place)
    if found:
        return _unexpected_error(text, place, f'"," or "{"}" if text[opened] == "{" else "]"}"')
    what = "object" if text[opened] == "{" else "array"
    return error_at(text, place, f"cut off: the {what} opened on line {line_at(text, opened)} is not closed")


def _broken_string(text: str, place: int, found: str, *, escape: bool) -> DocumentError:
    backslash = text.rfind("\\", 0, place + 1)
    if escape and not _CUT_OFF.match(text, backslash):
        return error_at(text, backslash, "an unknown escape in a string", hint="a backslash is written as two")
    if escape or found in {'"', "\r", "\n"}:
        return error_at(text, _opening(text, place + 1), "a string that is not closed")
    return error_at(text, place, f"a bare control character (U+{ord(found):04X}) in a string")


def _unexpected_error(text: str, offset: int, wanted: str) -> DocumentError:
    """Return the error for text other than the expected `wanted`."""
    found = text[offset : offset + 1]
    if not found:
        return error_at(text, offset, f"cut off: expected {wanted}")
    if found == "#" or text.startswith(("//", "/*"), offset):
        return error_at(text, offset, "a comment", hint="JSON has no comments: remove it")
    if match := _NO_NUMBER.match(text, offset):
        return error_at(text, offset, f"{match[0]} is no JSON number")
    if wanted == _END and found in "{[":
        return error_at(text, offset, "two documents in one file", hint="keep one of the two")
    return error_at(text, offset, f"expected {wanted}, found {found!a}")


def _opening(text: str, end: int) -> int:
    """Return the start of the innermost string, object or array that is open at `end`."""
    opened: list[int] = []
    for token in _NESTING.finditer(text, 0, end):
        if token[0] in "]}":
            opened.pop()
        elif not token[1]:
            opened.append(token.start())
    return opened[-1]
