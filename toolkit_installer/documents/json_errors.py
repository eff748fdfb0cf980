"""What is wrong with a text that is no JSON, in words for whoever wrote it, with line and column."""

from __future__ import annotations

import json
import re

from toolkit_installer import patterns
from toolkit_installer.documents.changes import DocumentError, line_at

_NO_NUMBER = patterns.lazy(r"[+-]?(?:NaN|Infinity)")
_NESTING = patterns.lazy(r'"(?:[^"\\]++|\\.)*("|\Z)|[\[\]{}]', re.DOTALL)
_CUT_OFF = patterns.lazy(r"\\u[0-9a-fA-F]{4}\Z")
"""A whole escape at the text's end, which the parser takes for a broken one."""
_SPACE = " \t\r\n"
_END = "the end of the document"
_WANTED = {"Expecting property": "a key in double quotes", "Expecting ':'": '":"', "Extra data": _END}
"""What belongs to the place of an error, by how the parser's word for it begins; of all others a value does."""


def error_at(text: str, offset: int, what: str, *, hint: str = "correct the file, or restore it") -> DocumentError:
    """Return an error that names the place."""
    if offset == len(text):  # the end is where the text ends, not on the empty line after it
        offset = len(text.rstrip())
    column = offset - text.rfind("\n", 0, offset)
    return DocumentError(f"not valid JSON: {what} (column {column})", line=line_at(text, offset), hint=hint)


def explained(text: str, error: json.JSONDecodeError) -> DocumentError:
    """Return what the standard library's parser found wrong, in words that need no knowledge of the parser."""
    place, found = error.pos, text[error.pos : error.pos + 1]
    if error.msg.startswith(("Invalid", "Unterminated")):
        return _broken_string(text, place, found, escape="escape" in error.msg)
    if error.msg.startswith("Illegal trailing comma"):  # from 3.13 on it tells the comma's place
        rest = text[place + 1 :].lstrip(_SPACE)
        place, found = len(text) - len(rest), rest[:1]
    before = text[:place].rstrip(_SPACE)
    if before.endswith(",") and found and found in "]}":
        return error_at(text, len(before) - 1, f'a comma before "{found}"', hint="remove the comma")
    if not error.msg.startswith("Expecting ','"):
        wanted = (words for start, words in _WANTED.items() if error.msg.startswith(start))
        return _surprise(text, place, next(wanted, "a value"))
    opened = _opening(text, place)
    if found:
        return _surprise(text, place, f'"," or "{"}" if text[opened] == "{" else "]"}"')
    what = "object" if text[opened] == "{" else "array"
    return error_at(text, place, f"cut off: the {what} opened on line {line_at(text, opened)} is not closed")


def _broken_string(text: str, place: int, found: str, *, escape: bool) -> DocumentError:
    backslash = text.rfind("\\", 0, place + 1)
    if escape and not _CUT_OFF.match(text, backslash):
        return error_at(text, backslash, "an unknown escape in a string", hint="a backslash is written as two")
    if escape or found in {'"', "\r", "\n"}:
        return error_at(text, _opening(text, place + 1), "a string that is not closed")
    return error_at(text, place, f"a bare control character (U+{ord(found):04X}) in a string")


def _surprise(text: str, offset: int, wanted: str) -> DocumentError:
    """Return the error for text that is not what must come there."""
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
    """Return where the string, the object or the array begins that is open at `end`."""
    opened: list[int] = []
    for token in _NESTING.finditer(text, 0, end):
        if token[0] in "]}":
            opened.pop()
        elif not token[1]:
            opened.append(token.start())
    return opened[-1]
