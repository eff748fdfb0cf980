"""Parsing and minimal editing of TOML documents.

An edited text is parsed again by tomllib, which shares no code with the editor, and compared with the intended
document.
"""

from __future__ import annotations

import codecs
import functools
import re
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from toolkit_installer.documents import shown, toml_edit, toml_text
from toolkit_installer.documents.changes import (
    ABSENT,
    Change,
    DocumentError,
    EditMismatchError,
    Path,
    Table,
    apply_changes,
    is_same,
    line_at,
    lookup,
)
from toolkit_installer.documents.toml_edit import apply_splices

MAXIMUM_DEPTH: Final = 100
"""Maximum nesting of tables and arrays. Real configurations have ten levels; Python's stack ends at some hundreds."""

_NAMING: Final = ("Cannot declare", "Cannot mutate", "Duplicate")
_QUOTED: Final = re.compile(r"""(?<![^\s(])(['"])((?:(?!\1)[^\\]|\\.)*)\1""")
"""A key in tomllib's error messages that begin as _NAMING lists."""
_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_TEMPLATE: Final = re.compile(r"^[^#\n]*?\{\{", re.MULTILINE)
_NESTING: Final = re.compile(rf"(?:[\[{{][^\[\]{{}}]*+){{{MAXIMUM_DEPTH // 2}}}")
_DOTTED: Final = re.compile(
    rf"^[ \t]*+\[{{0,2}}+[ \t]*+(?:[A-Za-z0-9_-]++[ \t]*+\.[ \t]*+){{{MAXIMUM_DEPTH}}}", re.MULTILINE
)
"""A key of more than MAXIMUM_DEPTH parts, rejected before parsing: tomllib takes seconds for a hundred thousand."""
_LONG_NUMBER: Final = re.compile(r"[0-9_]{4000}")
_BARE_CARRIAGE_RETURN: Final = re.compile(r"\r(?!\n)")
_HINT: Final = "correct the file, or restore it"


_CACHE_SIZE = 8
"""Size of the cache of parsed documents: those of one engine, before and after a change."""


@functools.lru_cache(maxsize=_CACHE_SIZE)
def parse(content: bytes) -> Table:
    """Parse a TOML document; a byte order mark at its start is skipped.

    Results are cached by content: the caller must not change them. Raises DocumentError, with the 1-based line if
    known, for anything but TOML of at most MAXIMUM_DEPTH levels.
    """
    text = _text(content)
    if dotted := _DOTTED.search(text):
        raise DocumentError("a key has too many parts", line=line_at(text, dotted.end()), hint=_HINT)
    try:
        document = tomllib.loads(text)
    except RecursionError as error:
        raise _too_deep(text) from error
    except ValueError as error:
        raise _syntax_error(text, str(error)) from error
    if _is_too_deep(document):
        raise _too_deep(text)
    return document


def edit(content: bytes, changes: Sequence[Change], *, marker: str) -> bytes:
    """Return `content` with `changes` made; every other line stays, byte for byte.

    New tables are appended as a block under the comment `# marker`. Changes without effect return the same bytes.
    Raises DocumentError for a bad `content`, EditMismatchError if the result would not parse to the intended document,
    and TypeError or ValueError for a value that TOML cannot hold.
    """
    old = parse(content)
    new = apply_changes(old, tuple(changes))
    text = _text(content)
    edited = toml_edit.edit_text(text, old, new, marker)
    if edited == text:
        if not is_same(old, new):
            raise EditMismatchError("a change of the TOML document left its text as it was")
        return content
    result = _byte_order_mark(content) + edited.encode()
    try:
        meaning = parse(result)
    except DocumentError as error:
        raise EditMismatchError(f"the edited TOML document would be broken: {error.reason}", line=error.line) from error
    if not is_same(meaning, new):
        raise EditMismatchError("the edited TOML document would not mean what was intended")
    return result


def line_of(content: bytes, path: Path) -> int | None:
    """Return the 1-based line on which `path` first appears, None if it is absent.

    A member of an inline table has the line of the table's key. Raises DocumentError.
    """
    if lookup(parse(content), path) is ABSENT:
        return None
    return toml_text.first_line(_text(content), path)


def find_marked_tables(content: bytes, marker: str) -> tuple[Path, ...]:
    """Return the tables with headers under the comment `# marker`, up to the next empty line or comment.

    These are the tables that an edit with this marker added, and any that others inserted there. Raises DocumentError.
    """
    parse(content)
    return tuple(header.path for header in toml_edit.headers(_text(content), marker))


def remove_marker(content: bytes, marker: str) -> bytes:
    """Return `content` without the comments `# marker`, for use once nothing below them is by their author.

    Raises DocumentError for a bad `content`, EditMismatchError if the result would parse to another document.
    """
    old = parse(content)
    text = _text(content)
    splices = toml_edit.find_marker_removals(text, marker)
    if not splices:
        return content
    result = _byte_order_mark(content) + apply_splices(text, splices).encode()
    if not is_same(parse(result), old):
        raise EditMismatchError("the TOML document would mean something else without the comments")
    return result


def _byte_order_mark(content: bytes) -> bytes:
    """Return the UTF-8 byte order mark that `content` starts with, or nothing."""
    return codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""


def _text(content: bytes) -> str:
    """Return the document's text without byte order mark. Raises DocumentError if the bytes are no text."""
    body = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise DocumentError("not valid UTF-8", line=line, hint="save the file as UTF-8") from error
    if "\0" in text:
        line = line_at(text, text.index("\0"))
        raise DocumentError("a NUL byte", line=line, hint="the file is damaged: write it anew")
    if stray := _BARE_CARRIAGE_RETURN.search(text):
        line = line_at(text, stray.start())
        raise DocumentError("a carriage return that ends no line", line=line, hint="use LF or CRLF line ends")
    return text


def _syntax_error(text: str, message: str) -> DocumentError:
    """Return tomllib's error, whose message ends with the position, as a DocumentError; templates get their own."""
    if template := _TEMPLATE.search(text):
        hint = "edit the template, or name the file that is generated from it"
        return DocumentError("a Go template, not TOML", line=line_at(text, template.end()), hint=hint)
    place = _PLACE.search(message)
    if place is None:  # Python refuses to convert numbers of thousands of digits, without a position
        number = _LONG_NUMBER.search(text)
        line = line_at(text, number.start()) if number else None
        return DocumentError("not valid TOML: a number with too many digits", line=line, hint=_HINT)
    reason = message[: place.start()]
    if reason.startswith(_NAMING):
        reason = _QUOTED.sub(lambda found: found[1] + shown.named(found[2]) + found[1], reason)
    if place[1]:
        return DocumentError(f"not valid TOML: {reason} (column {place[2]})", line=int(place[1]), hint=_HINT)
    last_line = line_at(text, len(text.rstrip("\r\n")))
    return DocumentError(f"not valid TOML: {reason} at the end of the file", line=last_line, hint=_HINT)


def _is_too_deep(document: Table) -> bool:
    """Return whether tables and arrays are nested deeper than MAXIMUM_DEPTH."""
    level: list[Any] = [document]
    for _ in range(MAXIMUM_DEPTH):
        members = (each.values() if isinstance(each, dict) else each for each in level)
        level = [member for group in members for member in group if isinstance(member, dict | list)]
        if not level:
            return False
    return True


def _too_deep(text: str) -> DocumentError:
    """Return the error for brackets nested too deeply or dotted keys of too many parts."""
    nesting = _NESTING.search(text)
    line = line_at(text, nesting.start()) if nesting else None
    return DocumentError("tables or arrays are nested too deeply", line=line, hint=_HINT)
