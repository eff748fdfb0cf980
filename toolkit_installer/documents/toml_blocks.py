"""The blocks at a document's end that hold the tables we add, each under one comment line that says whose they are.

A block is: an empty line (none in an empty document), the comment, our tables without empty lines between them. So a
block can be removed again as a whole, whatever was written below it since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from toolkit_installer import patterns
from toolkit_installer.documents.changes import Path, Table
from toolkit_installer.documents.toml_inline import Splice
from toolkit_installer.documents.toml_scan import Kind, Statement, scan
from toolkit_installer.documents.toml_tree import Node, spelled
from toolkit_installer.documents.toml_values import write, write_key

INITIAL_COMMENT: Final = patterns.lazy(r"(?:#[^\n]*\n)+(?=[ \t]*\r?\n)")
"""A comment about the whole document: an empty line follows it."""

_INDENT: Final = "  "


class Changed(msgspec.Struct):
    """What an edit does to whole statements."""

    removed: dict[int, Statement] = msgspec.field(default_factory=dict)
    """By their start."""
    extended: set[int] = msgspec.field(default_factory=set)
    """The starts of the headers that got new keys."""
    tables: list[tuple[Path, Table]] = msgspec.field(default_factory=list)
    """The tables of the new block, each with its own keys: values and no tables."""


def tables(path: Path, table: Table) -> Iterator[tuple[Path, Table]]:
    """Yield the tables that get a header so that `table` exists at `path`, each with its own keys."""
    own = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if own or not table:
        yield path, own
    for key, value in table.items():
        if isinstance(value, dict):
            yield from tables((*path, key), value)


def block(root: Node, added: Iterable[tuple[Path, Table]], marker: str, eol: str) -> str:
    """Return the block's text, its comment first; headers are spelt as the document spells those it has."""
    lines = [f"# {marker}"]
    for path, own in added:
        lines.append(f"[{spelled(root, path)}]")
        lines += [f"{_INDENT}{write_key(key)} = {write(value)}" for key, value in own.items()]
    return "".join(f"{line}{eol}" for line in lines)


def closed(text: str, marker: str, statements: Sequence[Statement], root: Node, changed: Changed) -> list[Splice]:
    """Return the removal of the comments over blocks that lose their first table, with the empty line before each.

    Headers of a block that lost all their keys are added to `changed.removed`, unless the table would be gone with
    them: they were written for those keys.
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


def unmarked(text: str, marker: str) -> list[Splice]:
    """Return the removal of every comment `# marker`, with the empty line before each, whatever stands below it."""
    if marker not in text:
        return []
    statements = list(scan(text))
    return [
        Splice(_with_empty_line(text, comment.start()), comment.end())
        for comment in re.finditer(rf"(?m)^# {re.escape(marker)}(?:\r?\n|\Z)", text)
        if not any(statement.start <= comment.start() < statement.end for statement in statements)  # a string's line
    ]


def _comments(text: str, marker: str, statements: Sequence[Statement]) -> Iterator[tuple[re.Match[str], int]]:
    """Yield each comment `# marker` and the number of the statement below it."""
    numbers = {statement.start: number for number, statement in enumerate(statements)}
    for comment in re.finditer(rf"(?m)^# {re.escape(marker)}\r?\n", text):
        number = numbers.get(comment.end())  # none: inside a string that holds the same line, or nothing follows
        if number is not None:
            yield comment, number


def _paragraph_headers(statements: Sequence[Statement], number: int) -> Iterator[Statement]:
    """Yield the table headers from the statement `number` on, up to the first empty line or comment."""
    end = statements[number].start
    for statement in statements[number:]:
        if statement.start != end:
            return
        if statement.kind is Kind.TABLE:
            yield statement
        end = statement.end


def _is_spent(header: Statement, root: Node, changed: Changed) -> bool:
    """Tell whether `header` loses all its keys, gets no new ones, and its table exists without it."""
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
    """Return where the empty line before `start` begins, or `start` where there is none."""
    line = text.rfind("\n", 0, max(start - 1, 0)) + 1
    return line if text[line:start] in {"\n", "\r\n"} else start
