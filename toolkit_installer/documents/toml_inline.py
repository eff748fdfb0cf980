"""Edits inside a value: members of inline tables, elements of arrays."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

import msgspec

from toolkit_installer import patterns
from toolkit_installer.documents.changes import Path, Table, same
from toolkit_installer.documents.toml_scan import Item, items
from toolkit_installer.documents.toml_values import write, write_key

_BLANKS: Final = patterns.lazy(r"[ \t]*")
_REST_WITHOUT_VALUES: Final = patterns.lazy(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")


class Splice(msgspec.Struct, frozen=True):
    """Replace the characters from `start` to `end` by `text`."""

    start: int
    end: int
    text: str = ""


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """Return `text` with all splices made; they do not overlap, and those at one place keep their order."""
    parts = []
    position = 0
    for splice in sorted(splices, key=lambda each: (each.start, each.end)):
        parts += [text[position : splice.start], splice.text]
        position = splice.end
    return "".join([*parts, text[position:]])


def edit_value(text: str, old: Any, new: Any, eol: str) -> str:
    """Return `text`, a value that means `old`, changed as little as it takes to mean `new`.

    `eol` ends the lines that are added. What cannot be kept is written anew, on one line.
    """
    if same(old, new):
        return text
    if isinstance(old, dict) and isinstance(new, dict) and text.startswith("{"):
        return _edit_table(text, (), old, new, eol)
    if isinstance(old, list) and isinstance(new, list):
        return _edit_array(text, old, new, eol)
    return write(new)


def _edit_table(text: str, prefix: Path, old: Table, new: Table, eol: str) -> str:
    """Edit the table at `prefix`, relative to the inline table `text`; not empty where it is made by dotted keys."""
    for key in old:
        if key not in new:
            text = _without_members(text, (*prefix, key))
    for key, value in new.items():
        path = (*prefix, key)
        if key not in old:
            text = _with_member(text, path, value)
        elif not same(old[key], value):
            text = _edit_member(text, path, old[key], value, eol)
    return text


def _edit_member(text: str, path: Path, old: Any, new: Any, eol: str) -> str:
    """Change what stands at `path`, which is one member or, made by dotted keys, several."""
    for item in items(text):
        if item.path == path:
            changed = edit_value(text[item.value_start : item.end], old, new, eol)
            return spliced(text, [Splice(item.value_start, item.end, changed)])
    if isinstance(new, dict) and new:
        return _edit_table(text, path, old, new, eol)
    return _with_member(_without_members(text, path), path, new)


def _with_member(text: str, path: Path, value: Any) -> str:
    """Add a member after the last one that shares its dotted prefix, else after the last."""
    members = items(text)
    parents = [item for item in members if path[:-1] == item.path[: len(path) - 1]]
    prefix = parents[-1].spelling[: len(path) - 1] if parents else map(write_key, path[:-1])
    member = f"{'.'.join([*prefix, write_key(path[-1])])} = {write(value)}"
    if not members:
        return f"{{ {member} }}" if not text[1:-1].strip() else f"{{ {member}{text[1:]}"
    end = (parents or members)[-1].end
    return spliced(text, [Splice(end, end, f", {member}")])


def _without_members(text: str, path: Path) -> str:
    """Remove the members at and below `path`."""
    members = items(text)
    doomed = {number for number, item in enumerate(members) if item.path[: len(path)] == path}
    return _without_items(text, members, doomed)


def _edit_array(text: str, old: list[Any], new: list[Any], eol: str) -> str:
    """Remove elements and append others where that makes `new` of `old`, else write it anew."""
    kept: set[int] = set()
    for number, element in enumerate(old):
        if len(kept) < len(new) and same(element, new[len(kept)]):
            kept.add(number)
    if old and new and not kept:
        return write(new)
    elements = items(text)
    text = _without_items(text, elements, set(range(len(old))) - kept)
    for element in new[len(kept) :]:
        text = _with_element(text, write(element), eol)
    return text


def _with_element(text: str, element: str, eol: str) -> str:
    """Append an element in the layout of those before it."""
    elements = items(text)
    if not elements:
        return _with_first_element(text, element, eol)
    last = elements[-1]
    before = text[elements[-2].end if len(elements) > 1 else 0 : last.start]
    after_last = last.end if last.comma is None else last.comma + 1
    separator = Splice(last.end, last.end, "," if last.comma is None else "")
    comma = "" if last.comma is None else ","
    if "\n" not in before:
        return spliced(text, [separator, Splice(after_last, after_last, f" {element}{comma}")])
    line = eol + _indent_of_line(text, last.start) + element + comma
    rest = _REST_WITHOUT_VALUES.match(text, after_last)
    position = rest.end() if rest else after_last
    return spliced(text, [separator, Splice(position, position, line)])


def _with_first_element(text: str, element: str, eol: str) -> str:
    """Put an element into an empty array, which may hold line ends and comments."""
    if "\n" not in text:
        return f"[{element}{text[1:]}"
    closing = text.rindex("\n") + 1
    second_line = text.index("\n") + 1
    indent = _indent_of_line(text, second_line)
    if second_line == closing:
        indent += "  "
    return spliced(text, [Splice(closing, closing, f"{indent}{element},{eol}")])


def _indent_of_line(text: str, position: int) -> str:
    """Return the blanks that the line with `position` in it begins with."""
    indent = _BLANKS.match(text, text.rfind("\n", 0, position) + 1)
    return indent.group() if indent else ""


def _without_items(text: str, found: Sequence[Item], doomed: Container[int]) -> str:
    """Remove the items with the numbers in `doomed`, with the commas that they leave behind; comments stay."""
    kept = [item for number, item in enumerate(found) if number not in doomed]
    removals = []
    for number, item in enumerate(found):
        if number in doomed:
            previous = found[number - 1] if number else None
            following = found[number + 1] if kept and item.start < kept[-1].start else None
            removals += _removals(text, item, previous, following)
    if kept and kept[-1] is not found[-1] and found[-1].comma is None and kept[-1].comma is not None:
        removals.append((kept[-1].comma, kept[-1].comma + 1))
    remaining = spliced(text, _united(removals))
    emptied = not kept and len(remaining) > len("[ ]") and not remaining[1:-1].strip(" \t")
    return remaining[0] + remaining[-1] if emptied else remaining


def _removals(text: str, item: Item, previous: Item | None, following: Item | None) -> list[tuple[int, int]]:
    """Return what to cut so that `item` is gone: its line, or itself with the blanks on one side; and its comma.

    `following` is None for the items behind the last that stays: they go with the blanks before them.
    """
    if item.comma is not None and text[item.end : item.comma].strip():
        return [(item.start, item.end), (item.comma, item.comma + 1)]  # a comment stands between them
    end = item.end if item.comma is None else item.comma + 1
    line_start = text.rfind("\n", 0, item.start) + 1
    alone = line_start > 0 and not text[line_start : item.start].strip()
    rest = _REST_WITHOUT_VALUES.match(text, end)
    if alone and rest and not rest.group().strip():
        return [(line_start, text.index("\n", rest.end()) + 1)]
    if following is not None and not text[end : following.start].strip(" \t"):
        return [(item.start, following.start)]
    if alone and rest:
        return [(item.start, end + len(rest.group()) - len(rest.group().lstrip()))]
    start = item.start
    if previous is not None and previous.comma is not None and not text[previous.comma + 1 : start].strip():
        start = previous.comma + 1
    return [(start, end)]


def _united(ranges: Iterable[tuple[int, int]]) -> list[Splice]:
    """Return the removal of all `ranges`, which may overlap."""
    united: list[Splice] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1].end:
            united[-1] = Splice(united[-1].start, max(end, united[-1].end))
        else:
            united.append(Splice(start, end))
    return united
