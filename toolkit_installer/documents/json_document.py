"""JSON configuration files (docker's daemon.json): what they mean, and edits of their text.

The standard library's parser says whether a text is JSON and what it means; our own scanner says where things stand. An
edited text is parsed again and compared with what was intended before anybody gets to see it.
"""

from __future__ import annotations

import codecs
import decimal
import functools
import json
from collections.abc import Sequence
from typing import Any

from toolkit_installer.documents import json_edit
from toolkit_installer.documents.changes import Change, DocumentError, EditMismatchError, Path, Set, Table, apply, same
from toolkit_installer.documents.json_errors import explained
from toolkit_installer.documents.json_scan import Document, Member, Object, number_trouble, scan

_REMEMBERED = 8
"""Documents: those of one engine, before and after."""


@functools.lru_cache(maxsize=_REMEMBERED)
def parse(content: bytes) -> Table:
    """Return what a JSON file means; an empty one means `{}`.

    Numbers keep their exact value: int, or decimal.Decimal for those with a fraction or an exponent. A UTF-8 byte
    order mark is allowed, as dockerd allows it. Raises DocumentError for everything that RFC 8259 does not allow, for
    a top level that is no object, for duplicate keys, and for numbers and nesting beyond reason. The same bytes give
    the same value again, without being read again: nobody changes it.
    """
    return _read(_decode(content))[1]


def edit(content: bytes, changes: Sequence[Change]) -> bytes:
    """Return the file with the changes made and every other line as it was.

    Changes without effect return the same bytes. New members stand first in their object, in the order given.
    Raises DocumentError for a file that cannot be parsed, and EditMismatchError if the result would not mean exactly
    what was asked for.
    """
    exact = tuple(Set(change.path, _exact(change.value)) if isinstance(change, Set) else change for change in changes)
    text = _decode(content)
    document, before = _read(text)
    wanted = apply(before, exact)
    if same(before, wanted):
        return content
    style = json_edit.style_of(text, document)
    edited = (
        json_edit.render(wanted, style, "") + style.line_end if document is None else _edited(document, exact, style)
    )
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    result = mark + edited.encode()
    try:
        faithful = same(parse(result), wanted)
    except DocumentError as error:
        raise EditMismatchError(f"the edited JSON cannot be parsed: {error}") from error
    if not faithful:
        raise EditMismatchError("the edited JSON does not mean what was intended", hint="this is a bug")
    return result


def line_of(content: bytes, path: Path) -> int | None:
    """Return the 1-based line of the key at `path`, or None where there is none. Raises DocumentError as `parse`."""
    text = _decode(content)
    member: Member | None = None
    document, _ = _read(text)
    value: Any = document.root if document else None
    for key in path:
        member = value.find(key) if isinstance(value, Object) else None
        if member is None:
            return None
        value = member.value
    return text.count("\n", 0, member.offset) + 1 if member else None


def _edited(document: Document, changes: tuple[Change, ...], style: json_edit.Style) -> str:
    """Return the text of a document (which is used up) after the changes."""
    for change in changes:
        if isinstance(change, Set):
            json_edit.set_value(document, change.path, change.value, style)
        else:
            json_edit.remove(document, change.path)
    return document.text()


def _read(text: str) -> tuple[Document | None, Table]:
    """Return the tree of a text, None for one that is blank, and what it means. Raises DocumentError."""
    if not text.strip(" \t\r\n"):
        return None, {}
    try:
        # the scanner refuses the constants and numbers that are taken for none here, and says where they are
        table: Table = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise explained(text, error) from error
    except RecursionError:
        table = {}  # the same: nested too deeply
    return scan(text), table


def _number(text: str) -> int | decimal.Decimal | None:
    if number_trouble(text):
        return None
    return int(text) if text.removeprefix("-").isdecimal() else decimal.Decimal(text)


def _decode(content: bytes) -> str:
    """Return the text without its byte order mark."""
    body = content.removeprefix(codecs.BOM_UTF8)
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DocumentError("not UTF-8 but UTF-16 (column 1)", line=1, hint="save the file as UTF-8")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        place = _place(body, error.start)
        what = f"not UTF-8: byte 0x{body[error.start]:02x} (column {place[1]})"
        raise DocumentError(what, line=place[0], hint="save the file as UTF-8") from None
    nul = body.find(b"\0")
    if nul >= 0:
        line, column = _place(body, nul)
        raise DocumentError(f"a NUL byte (column {column})", line=line, hint="the file is damaged: write it anew")
    return text


def _place(content: bytes, offset: int) -> tuple[int, int]:
    """Return line and column, both 1-based, of a byte."""
    return content.count(b"\n", 0, offset) + 1, offset - content.rfind(b"\n", 0, offset)


def _exact(value: Any) -> Any:
    """Return a value to be set with the types that `parse` would read it back with."""
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    if isinstance(value, float):
        return decimal.Decimal(repr(value))
    return value
