"""Parsing and minimal editing of JSON configuration files (docker's daemon.json).

The standard library's parser validates and parses the text; the scanner of json_text finds positions in it. An edit
keeps the text around each change. It inserts new members first in their object: no existing line needs another comma,
and removing the members restores the same bytes. The edited text is parsed again and compared with the intended
document before it is returned.
"""

from __future__ import annotations

import codecs
import decimal
import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from toolkit_installer.documents.changes import (
    Change,
    DocumentError,
    EditMismatchError,
    Path,
    Set,
    Table,
    apply_changes,
    is_same,
)
from toolkit_installer.documents.json_text import (
    Document,
    Member,
    Object,
    Raw,
    Value,
    explain_error,
    number_fault,
    scan,
    scan_value,
)

_LINE_END = re.compile(r"\r\n|\n|\r")


class Style(msgspec.Struct, frozen=True):
    """The file's layout: the white space of one level of indentation, and the line end."""

    unit: str = "    "
    line_end: str = "\n"


def style_of(text: str, document: Document | None = None) -> Style:
    """Return the style of a file; four spaces and LF if the file does not show any."""
    match = _LINE_END.search(text)
    units = _units(document.root, "") if document else iter(())
    return Style(next(units, "    "), match[0] if match else "\n")


def _units(obj: Object, outer: str) -> Iterator[str]:
    """Yield, for each object whose first member starts a line, the member's indentation beyond `outer`."""
    for index, member in enumerate(obj.members):
        inner = _indent(member.before)
        if inner is not None and index == 0 and inner != outer and inner.startswith(outer):
            yield inner[len(outer) :]
        if isinstance(member.value, Object):
            yield from _units(member.value, outer if inner is None else inner)


def _indent(before: str) -> str | None:
    """Return a member's indentation, or None if something else starts its line."""
    ends = list(_LINE_END.finditer(before))
    return before[ends[-1].end() :] if ends else None


def _cut(gap: str) -> tuple[str, str, str]:
    """Split white space into the rest of its first line, the line end (empty if none) and the other lines."""
    match = _LINE_END.search(gap)
    return (gap[: match.start()], match[0], gap[match.end() :]) if match else (gap, "", "")


def _without_lines(left: str, right: str) -> str:
    """Return two pieces of white space joined so that no whole line stays between them."""
    indent = _indent(left) or ""
    return left[: len(left) - len(indent)] + _cut(right)[2]


def render(value: Any, style: Style, indent: str | None) -> str:
    """Return JSON text: on one line if `indent` is None, else with inner lines indented one level deeper.

    Raises TypeError or ValueError for a value that JSON cannot hold.
    """
    deeper = None if indent is None else indent + style.unit
    if isinstance(value, dict):
        items = [f"{_string(key)}: {render(item, style, deeper)}" for key, item in value.items()]
        return _bracketed("{}", items, style, indent)
    if isinstance(value, list):
        return _bracketed("[]", [render(item, style, deeper) for item in value], style, indent)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, decimal.Decimal) and value.is_finite():
        text = str(value)
        return text if set(text) & {".", "E"} else f"{text}.0"  # or it would be parsed as an integer
    return json.dumps(value, allow_nan=False)


def _bracketed(brackets: str, items: list[str], style: Style, indent: str | None) -> str:
    if indent is None or not items:
        return brackets[0] + ", ".join(items) + brackets[1]
    inner = style.line_end + indent + style.unit
    return brackets[0] + inner + f",{inner}".join(items) + style.line_end + indent + brackets[1]


def _string(value: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # A lone surrogate cannot be encoded as UTF-8, so it stays an escape.
    return text if text.isprintable() else json.dumps(value)


def set_value(document: Document, path: Path, value: Any, style: Style) -> None:
    """Set the value at `path` to exactly `value`, changing only the parts that differ."""
    obj = document.root
    for depth, key in enumerate(path, 1):
        member = obj.find(key)
        if member is None:
            _insert(obj, key, _nested(path[depth:], value), style)
            return
        if depth == len(path) or not isinstance(member.value, Object):
            _replace(member, _nested(path[depth:], value), style)
            return
        obj = member.value


def remove(document: Document, path: Path) -> None:
    """Remove the member at `path` with its comma, and with its lines if they hold nothing else."""
    obj = document.root
    for key in path[:-1]:
        member = obj.find(key)
        if member is None or not isinstance(member.value, Object):
            return
        obj = member.value
    if member := obj.find(path[-1]):
        _remove(obj, member)


def _nested(path: Path, value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _replace(member: Member, value: Any, style: Style) -> None:
    """Replace a member's value; if both values are objects, only the members that differ change."""
    old = member.value
    if isinstance(old, Object) and isinstance(value, dict):
        there = {inner.key: inner for inner in old.members}
        for key, item in value.items():
            if key in there:
                _replace(there[key], item, style)
            else:
                _insert(old, key, item, style)
        for key, inner in there.items():  # last, so that the new members copy the layout of the old lines
            if key not in value:
                _remove(old, inner)
        return
    indent = _indent(member.before)
    if isinstance(old, Raw):
        if is_same(json.loads(old.text, parse_float=decimal.Decimal), value):
            return
        if old.text[0] == "[" and not _LINE_END.search(old.text):
            indent = None
    member.value = _fresh(value, style, indent)


def _fresh(value: Any, style: Style, indent: str | None) -> Value:
    """Return a new value as a tree, so that a later change of the same edit can modify it."""
    tree = scan_value(render(value, style, indent))
    _mark(tree)
    return tree


def _mark(tree: Value) -> None:
    if isinstance(tree, Object):
        tree.ours = len(tree.members)
        for member in tree.members:
            _mark(member.value)


def _insert(obj: Object, key: str, value: Any, style: Style) -> None:
    """Insert a new member before the file's own members and after those that this edit inserted."""
    before, after = _slot(obj, style)
    tree = _fresh(value, style, _indent(before))
    obj.members.insert(obj.ours, Member(before, _string(key), key, ": ", tree, after, -1))
    obj.ours += 1


def _slot(obj: Object, style: Style) -> tuple[str, str]:
    """Return the white space before and after a new member at `obj.ours`, taking it from its neighbours if needed."""
    if not obj.members:
        head, line_end, rest = _cut(obj.gap)
        if not line_end:
            return obj.gap, obj.gap
        return head + line_end + (_indent(obj.gap) or "") + style.unit, line_end + rest
    if obj.ours == 0:
        first = obj.members[0]
        head, line_end, rest = _cut(first.before)
        if not line_end:
            before, first.before = first.before, " "
            return before, ""
        indent = _indent(first.before) or ""
        first.before = line_end + rest
        return head + line_end + indent, ""
    previous = obj.members[obj.ours - 1]
    match = _LINE_END.search(previous.before)
    before = match[0] + (_indent(previous.before) or "") if match else " "
    if obj.ours < len(obj.members):
        return before, ""
    after, previous.after = previous.after, ""
    return before, after


def _remove(obj: Object, member: Member) -> None:
    index = obj.members.index(member)
    left = obj.members[index - 1] if index else None
    right = obj.members[index + 1] if index + 1 < len(obj.members) else None
    if right is not None:
        _close_before(member, left, right)
    elif left is not None:
        gap = left.after + member.before
        alone = _has_line_end(gap) and _has_line_end(member.after)
        left.after = _without_lines(gap, member.after) if alone else left.after + member.after
    else:
        alone = _has_line_end(member.before) and _has_line_end(member.after)
        obj.gap = _without_lines(member.before, member.after) if alone else member.after
    del obj.members[index]
    obj.ours -= index < obj.ours


def _close_before(member: Member, left: Member | None, right: Member) -> None:
    """Join the white space around a removed member that has a right neighbour."""
    if _has_line_end(right.before):
        # "right" stays on its line. If other text precedes "member" on its line, only "member" is cut.
        if _has_line_end(member.before):
            right.before = _without_lines(member.before, right.before)
    elif (
        left is not None
        and _has_line_end(left.after)
        and not _has_line_end(member.before)
        and _has_line_end(member.after)
    ):
        left.after = _without_lines(left.after, member.after)  # commas lead their lines
    else:
        right.before = member.before


def _has_line_end(gap: str) -> bool:
    return _LINE_END.search(gap) is not None


_CACHE_SIZE = 8
"""Size of the cache of parsed documents: those of one engine, before and after a change."""


@functools.lru_cache(maxsize=_CACHE_SIZE)
def parse(content: bytes) -> Table:
    """Parse a JSON file; an empty file is `{}`.

    Numbers keep their exact value: int, or decimal.Decimal if they have a fraction or an exponent. A UTF-8 byte order
    mark is allowed, as dockerd allows it. Results are cached by content: the caller must not change them. Raises
    DocumentError for everything that RFC 8259 does not allow, for a top level that is no object, for duplicate keys,
    and for numbers and nesting beyond the limits of json_text.
    """
    return _read(_decode(content))[1]


def edit(content: bytes, changes: Sequence[Change]) -> bytes:
    """Return the file with the changes made and every other line as it was.

    Changes without effect return the same bytes. New members come first in their object, in the order given.
    Raises DocumentError for a file that cannot be parsed, and EditMismatchError if the result would not parse to
    exactly the intended document.
    """
    exact = tuple(Set(change.path, _exact(change.value)) if isinstance(change, Set) else change for change in changes)
    text = _decode(content)
    document, before = _read(text)
    wanted = apply_changes(before, exact)
    if is_same(before, wanted):
        return content
    style = style_of(text, document)
    edited = render(wanted, style, "") + style.line_end if document is None else _edited(document, exact, style)
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    result = mark + edited.encode()
    try:
        faithful = is_same(parse(result), wanted)
    except DocumentError as error:
        raise EditMismatchError(f"the edited JSON cannot be parsed: {error}") from error
    if not faithful:
        raise EditMismatchError("the edited JSON does not mean what was intended", hint="this is a bug")
    return result


def line_of(content: bytes, path: Path) -> int | None:
    """Return the 1-based line of the key at `path`, None if the key is absent. Raises DocumentError as `parse` does."""
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


def _edited(document: Document, changes: tuple[Change, ...], style: Style) -> str:
    """Return the text of a document after the changes, which modify the document itself."""
    for change in changes:
        if isinstance(change, Set):
            set_value(document, change.path, change.value, style)
        else:
            remove(document, change.path)
    return document.text()


def _read(text: str) -> tuple[Document | None, Table]:
    """Return the tree of a text (None if the text is blank) and the parsed table. Raises DocumentError."""
    if not text.strip(" \t\r\n"):
        return None, {}
    try:
        # constants and numbers that become None here are rejected, with their position, by the scanner
        table: Table = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=lambda _: None)
    except json.JSONDecodeError as error:
        raise explain_error(text, error) from error
    except RecursionError:
        table = {}  # nested too deeply: rejected by the scanner too
    return scan(text), table


def _number(text: str) -> int | decimal.Decimal | None:
    if number_fault(text):
        return None
    return int(text) if text.removeprefix("-").isdecimal() else decimal.Decimal(text)


def _decode(content: bytes) -> str:
    """Return the text without its byte order mark. Raises DocumentError."""
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
    """Return a new value converted to the types that `parse` would return for it."""
    if isinstance(value, dict):
        return {key: _exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    if isinstance(value, float):
        return decimal.Decimal(repr(value))
    return value
