"""Minimal edits of a TOML text: from the old and the new document to the fewest changes of statements and values.

Inside a value, members of inline tables and elements of arrays change one by one. Added tables go into a block at the
document's end: an empty line (none in an empty document), a comment that names the author, and the tables without empty
lines between them. So a block can be removed as a whole, whatever was written below it since.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from toolkit_installer.documents import toml_text
from toolkit_installer.documents.changes import Path, Table, is_same
from toolkit_installer.documents.toml_text import (
    Item,
    Statement,
    StatementKind,
    TableNode,
    build_tree,
    items,
    scan,
    spell_path,
    write,
    write_key,
)

_BLANKS: Final = re.compile(r"[ \t]*")
_REST_WITHOUT_VALUES: Final = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n)")


class Splice(msgspec.Struct, frozen=True):
    """A replacement of the characters from `start` to `end` by `text`."""

    start: int
    end: int
    text: str = ""


def apply_splices(text: str, splices: Iterable[Splice]) -> str:
    """Return `text` with all splices made; they must not overlap, and splices at the same offset keep their order."""
    parts = []
    position = 0
    for splice in sorted(splices, key=lambda each: (each.start, each.end)):
        parts += [text[position : splice.start], splice.text]
        position = splice.end
    return "".join([*parts, text[position:]])


def edit_value(text: str, old: Any, new: Any, eol: str) -> str:
    """Return `text`, which parses to `old`, with the fewest changes that make it parse to `new`.

    `eol` ends the lines that are added. A part that cannot be edited is rewritten on one line.
    """
    if is_same(old, new):
        return text
    if isinstance(old, dict) and isinstance(new, dict) and text.startswith("{"):
        return _edit_table(text, (), old, new, eol)
    if isinstance(old, list) and isinstance(new, list):
        return _edit_array(text, old, new, eol)
    return write(new)


def _edit_table(text: str, prefix: Path, old: Table, new: Table, eol: str) -> str:
    """Edit the table at `prefix` in the inline table `text`; `prefix` is not empty for tables of dotted keys."""
    for key in old:
        if key not in new:
            text = _without_members(text, (*prefix, key))
    for key, value in new.items():
        path = (*prefix, key)
        if key not in old:
            text = _with_member(text, path, value)
        elif not is_same(old[key], value):
            text = _edit_member(text, path, old[key], value, eol)
    return text


def _edit_member(text: str, path: Path, old: Any, new: Any, eol: str) -> str:
    """Change the value at `path`: one member, or several members with dotted keys."""
    for item in items(text):
        if item.path == path:
            changed = edit_value(text[item.value_start : item.end], old, new, eol)
            return apply_splices(text, [Splice(item.value_start, item.end, changed)])
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
    return apply_splices(text, [Splice(end, end, f", {member}")])


def _without_members(text: str, path: Path) -> str:
    """Remove the members at and below `path`."""
    members = items(text)
    doomed = {number for number, item in enumerate(members) if item.path[: len(path)] == path}
    return _without_items(text, members, doomed)


def _edit_array(text: str, old: list[Any], new: list[Any], eol: str) -> str:
    """Turn `old` into `new` by removing and appending elements; rewrite the array if that keeps no element."""
    kept: set[int] = set()
    for number, element in enumerate(old):
        if len(kept) < len(new) and is_same(element, new[len(kept)]):
            kept.add(number)
    if old and new and not kept:
        return write(new)
    elements = items(text)
    text = _without_items(text, elements, set(range(len(old))) - kept)
    for element in new[len(kept) :]:
        text = _with_element(text, write(element), eol)
    return text


def _with_element(text: str, element: str, eol: str) -> str:
    """Append an element, laid out like the elements before it."""
    elements = items(text)
    if not elements:
        return _with_first_element(text, element, eol)
    last = elements[-1]
    before = text[elements[-2].end if len(elements) > 1 else 0 : last.start]
    after_last = last.end if last.comma is None else last.comma + 1
    separator = Splice(last.end, last.end, "," if last.comma is None else "")
    comma = "" if last.comma is None else ","
    if "\n" not in before:
        return apply_splices(text, [separator, Splice(after_last, after_last, f" {element}{comma}")])
    line = eol + _indent_of_line(text, last.start) + element + comma
    rest = _REST_WITHOUT_VALUES.match(text, after_last)
    position = rest.end() if rest else after_last
    return apply_splices(text, [separator, Splice(position, position, line)])


def _with_first_element(text: str, element: str, eol: str) -> str:
    """Insert an element into an empty array, which may hold line ends and comments."""
    if "\n" not in text:
        return f"[{element}{text[1:]}"
    closing = text.rindex("\n") + 1
    second_line = text.index("\n") + 1
    indent = _indent_of_line(text, second_line)
    if second_line == closing:
        indent += "  "
    return apply_splices(text, [Splice(closing, closing, f"{indent}{element},{eol}")])


def _indent_of_line(text: str, position: int) -> str:
    """Return the indentation of the line that contains `position`."""
    indent = _BLANKS.match(text, text.rfind("\n", 0, position) + 1)
    return indent.group() if indent else ""


def _without_items(text: str, found: Sequence[Item], doomed: Container[int]) -> str:
    """Remove the items with the numbers in `doomed` and their commas; comments stay."""
    kept = [item for number, item in enumerate(found) if number not in doomed]
    removals = []
    for number, item in enumerate(found):
        if number in doomed:
            previous = found[number - 1] if number else None
            following = found[number + 1] if kept and item.start < kept[-1].start else None
            removals += _removals(text, item, previous, following)
    if kept and kept[-1] is not found[-1] and found[-1].comma is None and kept[-1].comma is not None:
        removals.append((kept[-1].comma, kept[-1].comma + 1))
    remaining = apply_splices(text, _united(removals))
    emptied = not kept and len(remaining) > len("[ ]") and not remaining[1:-1].strip(" \t")
    return remaining[0] + remaining[-1] if emptied else remaining


def _removals(text: str, item: Item, previous: Item | None, following: Item | None) -> list[tuple[int, int]]:
    """Return the ranges to cut to remove `item`: its line, or the item with the blanks on one side; and its comma.

    `following` is None for items after the last kept item: they are cut with the blanks before them.
    """
    if item.comma is not None and text[item.end : item.comma].strip():
        return [(item.start, item.end), (item.comma, item.comma + 1)]  # a comment is between item and comma
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
    """Return splices that remove all `ranges`, which may overlap."""
    united: list[Splice] = []
    for start, end in sorted(ranges):
        if united and start <= united[-1].end:
            united[-1] = Splice(united[-1].start, max(end, united[-1].end))
        else:
            united.append(Splice(start, end))
    return united


INITIAL_COMMENT: Final = re.compile(r"(?:#[^\n]*\n)+(?=[ \t]*\r?\n)")
"""A comment about the whole document: one that an empty line follows."""

_INDENT: Final = "  "


class StatementChanges(msgspec.Struct):
    """The changes of an edit to whole statements."""

    removed: dict[int, Statement] = msgspec.field(default_factory=dict)
    """Statements by their start."""
    extended: set[int] = msgspec.field(default_factory=set)
    """The starts of the headers that get new keys."""
    tables: list[tuple[Path, Table]] = msgspec.field(default_factory=list)
    """The tables of the new block, each with the keys whose values are no tables."""


def tables(path: Path, table: Table) -> Iterator[tuple[Path, Table]]:
    """Yield each table that needs a header so that `table` exists at `path`, with the keys that are no tables."""
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if own or not table:
        yield path, own
    for key, value in table.items():
        if isinstance(value, dict):
            yield from tables((*path, key), value)


def block_text(root: TableNode, added: Iterable[tuple[Path, Table]], marker: str, eol: str) -> str:
    """Return the block's text, its comment first; headers use the document's spelling of keys that it has."""
    lines = [f"# {marker}"]
    for path, own in added:
        lines.append(f"[{spell_path(root, path)}]")
        lines += [f"{_INDENT}{write_key(key)} = {write(value)}" for key, value in own.items()]
    return "".join(f"{line}{eol}" for line in lines)


def close_blocks(
    text: str, marker: str, statements: Sequence[Statement], root: TableNode, changed: StatementChanges
) -> list[Splice]:
    """Return splices that remove the comments of blocks that lose their first table, with the empty line before each.

    Adds to `changed.removed` the headers in a block that lose all keys, as they were written for those keys, unless
    the table exists by the header alone.
    """
    if not changed.removed:
        return []
    splices = []
    for comment, number in _comments(text, marker, statements):
        for header in _paragraph_headers(statements, number):
            if _is_spent(header, root, changed):
                changed.removed[header.start] = header
        if comment.end() in changed.removed:
            splices.append(Splice(_with_empty_line(text, comment.start()), comment.end()))
    return splices


def headers(text: str, marker: str) -> Iterator[Statement]:
    """Yield the table headers of the blocks under the comment `# marker`."""
    if marker not in text:
        return
    statements = list(scan(text))
    for _, number in _comments(text, marker, statements):
        yield from _paragraph_headers(statements, number)


def find_marker_removals(text: str, marker: str) -> list[Splice]:
    """Return splices that remove every comment `# marker`, with the empty line before it, whatever follows it."""
    if marker not in text:
        return []
    statements = list(scan(text))
    return [
        Splice(_with_empty_line(text, comment.start()), comment.end())
        for comment in re.finditer(rf"(?m)^# {re.escape(marker)}(?:\r?\n|\Z)", text)
        if not any(statement.start <= comment.start() < statement.end for statement in statements)  # in a string
    ]


def _comments(text: str, marker: str, statements: Sequence[Statement]) -> Iterator[tuple[re.Match[str], int]]:
    """Yield each comment `# marker` and the number of the statement below it."""
    numbers = {statement.start: number for number, statement in enumerate(statements)}
    for comment in re.finditer(rf"(?m)^# {re.escape(marker)}\r?\n", text):
        number = numbers.get(comment.end())  # None: the line is part of a string, or no statement follows
        if number is not None:
            yield comment, number


def _paragraph_headers(statements: Sequence[Statement], number: int) -> Iterator[Statement]:
    """Yield the table headers from the statement `number` on, up to the first empty line or comment."""
    end = statements[number].start
    for statement in statements[number:]:
        if statement.start != end:
            return
        if statement.kind is StatementKind.TABLE:
            yield statement
        end = statement.end


def _is_spent(header: Statement, root: TableNode, changed: StatementChanges) -> bool:
    """Return whether `header` loses all its keys and gets no new ones, and its table exists without it."""
    node = root
    for key in header.path:
        node = node.children[key]
        if node.array:
            return False
    if node.header is not header or header.start in changed.removed or header.start in changed.extended:
        return False
    keys = list(node.values())
    if not keys or any(statement.start not in changed.removed for statement in keys):
        return False
    depth = len(header.path)
    return any(path[:depth] == header.path for path, _ in changed.tables) or any(
        statement.start not in changed.removed for statement in node.statements() if statement is not header
    )


def _with_empty_line(text: str, start: int) -> int:
    """Return the start of the empty line before `start`, or `start` if there is none."""
    line = text.rfind("\n", 0, max(start - 1, 0)) + 1
    return line if text[line:start] in {"\n", "\r\n"} else start


def edit_text(text: str, old: Table, new: Table, marker: str) -> str:
    """Return `text`, which parses to `old`, edited to parse to `new`; nothing else in it changes.

    New tables form a block at the end under the comment `# marker`. A text without final line end stays so.
    """
    eol = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    unfinished = text != "" and not text.endswith("\n")
    whole = text + eol if unfinished else text
    edited = _edited(whole, old, new, marker, eol)
    if edited == whole:
        return text
    return edited.removesuffix("\n").removesuffix("\r") if unfinished else edited


def _edited(text: str, old: Table, new: Table, marker: str, eol: str) -> str:
    """Edit a text that is empty or ends with a line end."""
    statements = list(toml_text.scan(text))
    editor = _Editor(text, build_tree(statements), eol)
    editor.edit_table(editor.root, (), old, new)
    splices = editor.splices
    splices += close_blocks(text, marker, statements, editor.root, editor.changed)
    splices += [_removal(text, statement) for statement in editor.changed.removed.values()]
    if editor.changed.tables:
        block = block_text(editor.root, editor.changed.tables, marker, eol)
        splices.append(Splice(len(text), len(text), (eol if text or splices else "") + block))
    return apply_splices(text, splices)


def _removal(text: str, statement: Statement) -> Splice:
    """Return a splice that removes a statement's lines but keeps their comments, each on its own line."""
    kept = toml_text.comments(text[statement.value_start : statement.value_end])
    kept += toml_text.comments(text[statement.value_end : statement.end])
    return Splice(statement.start, statement.end, _comment_lines(text, statement, kept))


def _comment_lines(text: str, statement: Statement, comments: list[str]) -> str:
    """Return `comments` as lines with the indentation and the line end of `statement`."""
    indent = text[statement.start : statement.key_start]
    eol = "\r\n" if text.endswith("\r\n", 0, statement.end) else "\n"
    return "".join(f"{indent}{comment}{eol}" for comment in comments)


class _Editor(msgspec.Struct):
    """A comparison of two parsed documents that collects the edits of the text."""

    text: str
    root: TableNode
    eol: str
    splices: list[Splice] = msgspec.field(default_factory=list)
    changed: StatementChanges = msgspec.field(default_factory=StatementChanges)

    def edit_table(self, node: TableNode, path: Path, old: Table, new: Table) -> None:
        """Turn the table at `path` into `new`; it has a header, or `new` is not empty."""
        for key in old:
            if key not in new:
                self._remove(node.children[key])
        added = {key: value for key, value in new.items() if key not in old}
        for key in new:
            if key in old and not self._edit_child(node.children[key], (*path, key), old[key], new[key]):
                added[key] = new[key]
        if added:
            self._add(node, path, added)

    def _edit_child(self, child: TableNode, path: Path, old: Any, new: Any) -> bool:
        """Turn the value at `path` into `new`, or remove it and return False: the caller must add it elsewhere."""
        if old is new:  # unchanged parts are shared, not copied: most of a document is skipped here
            return True
        if child.value is not None:
            self._replace_value(child.value, old, new)
            return True
        if isinstance(old, dict) and isinstance(new, dict) and (new or child.is_section):
            self.edit_table(child, path, old, new)
            return True
        if is_same(old, new):
            return True
        self._remove(child)
        return False

    def _remove(self, node: TableNode) -> None:
        """Remove every statement of `node`."""
        self.changed.removed.update((statement.start, statement) for statement in node.statements())

    def _replace_value(self, statement: Statement, old: Any, new: Any) -> None:
        """Replace a value in its line; comments that the new value does not keep move to lines above."""
        start, end = statement.value_start, statement.value_end
        before = self.text[start:end]
        after = edit_value(before, old, new, self.eol)
        if after == before:
            return
        lost = toml_text.comments(before)
        for comment in toml_text.comments(after):
            lost.remove(comment)
        if lost:
            lines = _comment_lines(self.text, statement, lost)
            self.splices.append(Splice(statement.start, statement.start, lines))
        self.splices.append(Splice(start, end, after))

    def _add(self, node: TableNode, path: Path, added: Table) -> None:
        """Add new keys to an existing table."""
        if node.last_dotted is not None and not node.is_section:
            prefix = ".".join(node.last_dotted.spelling[: len(path) - len(node.last_dotted.section)])
            indent = self.text[node.last_dotted.start : node.last_dotted.key_start]
            self._insert(node.last_dotted.end, indent, _dotted_lines(prefix, added))
            return
        lines = {key: value for key, value in added.items() if not isinstance(value, dict)}
        if lines and node.is_section:
            self._add_to_section(node, lines)
        elif lines:
            self.changed.tables.append((path, lines))
        for key, value in added.items():
            if isinstance(value, dict):
                self.changed.tables += tables((*path, key), value)

    def _add_to_section(self, node: TableNode, lines: Table) -> None:
        """Insert keys below a table's header; root keys below the last root key, else at the top."""
        keys = sorted(node.values(), key=lambda statement: statement.start)
        header = node.header
        if header is None:
            indent = self.text[keys[-1].start : keys[-1].key_start] if keys else ""
            initial_comment = INITIAL_COMMENT.match(self.text)
            top = initial_comment.end() if initial_comment else 0
            self._insert(keys[-1].end if keys else top, indent, _dotted_lines("", lines))
            return
        self.changed.extended.add(header.start)
        if keys:
            indent = self.text[keys[0].start : keys[0].key_start]
        else:
            indent = self.text[header.start : header.key_start]
            indent += "\t" if "\t" in indent else "  "
        self._insert(header.end, indent, _dotted_lines("", lines))

    def _insert(self, position: int, indent: str, lines: Iterator[str]) -> None:
        """Insert whole lines at the beginning of a line."""
        text = "".join(f"{indent}{line}{self.eol}" for line in lines)
        self.splices.append(Splice(position, position, text))


def _dotted_lines(prefix: str, table: Table) -> Iterator[str]:
    """Yield a line for each value of `table`; subtables become dotted keys."""
    for key, value in table.items():
        dotted = f"{prefix}.{write_key(key)}" if prefix else write_key(key)
        if isinstance(value, dict) and value:
            yield from _dotted_lines(dotted, value)
        else:
            yield f"{dotted} = {write(value)}"
