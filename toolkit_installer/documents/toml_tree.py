"""A TOML document's tables, each with the statements that define it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from toolkit_installer.documents import toml_scan
from toolkit_installer.documents.changes import Path, line_at
from toolkit_installer.documents.toml_scan import Kind, Statement
from toolkit_installer.documents.toml_values import write_key


class Node(msgspec.Struct):
    """What is written at one path. An array of tables is a leaf here: it owns every statement below it."""

    spelling: str = ""
    """The key's last part, as it is spelt first."""
    children: dict[str, Node] = msgspec.field(default_factory=dict)
    header: Statement | None = None
    value: Statement | None = None
    last_dotted: Statement | None = None
    """The last key-value that passes through this table on its way from the section's header."""
    array: list[Statement] = msgspec.field(default_factory=list)

    @property
    def is_section(self) -> bool:
        """Has a [header], or is the root. Other tables are made by dotted keys, or by their sub-tables' headers."""
        return self.header is not None or not self.spelling

    def statements(self) -> Iterator[Statement]:
        """Yield every statement that defines this key or anything below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield from node.array
            if node.header is not None:
                yield node.header
            if node.value is not None:
                yield node.value
            waiting.extend(node.children.values())

    def values(self) -> Iterator[Statement]:
        """Yield the key-values that belong to this table's own section, dotted ones among them."""
        waiting = [child for child in self.children.values() if child.header is None]
        while waiting:
            node = waiting.pop()
            if node.value is not None:
                yield node.value
            elif node.last_dotted is not None:
                waiting.extend(child for child in node.children.values() if child.header is None)


def build(statements: Iterable[Statement]) -> Node:
    """Return the document's root."""
    root = section = Node()
    for statement in statements:
        if statement.kind is Kind.KEY_VALUE:
            if section.array:
                section.array.append(statement)
            else:
                _add_value(section, statement)
            continue
        section = _walk(root, statement.path, statement.spelling)
        if statement.kind is Kind.ARRAY_TABLE or section.array:
            section.array.append(statement)
        else:
            section.header = statement
    return root


def spelled(root: Node, path: Path) -> str:
    """Return `path` as a header spells it: each part as the document spells it first, and ours where it does not."""
    node: Node | None = root
    parts = []
    for key in path:
        node = node.children.get(key) if node else None
        parts.append(node.spelling if node else write_key(key))
    return ".".join(parts)


def first_line(text: str, path: Path) -> int | None:
    """Return the 1-based line of the first statement that mentions `path`, or of the value that holds it."""
    holder: Statement | None = None
    for statement in toml_scan.scan(text):
        if statement.path[: len(path)] == path:
            return line_at(text, statement.key_start)
        if statement.kind is Kind.KEY_VALUE and path[: len(statement.path)] == statement.path:
            holder = statement
    return line_at(text, holder.key_start) if holder else None


def _walk(node: Node, path: Path, spelling: tuple[str, ...]) -> Node:
    """Return the node at `path` below `node`, made if need be; an array of tables on the way is where it ends."""
    for key, part in zip(path, spelling, strict=True):
        node = node.children.setdefault(key, Node(part))
        if node.array:
            break
    return node


def _add_value(section: Node, statement: Statement) -> None:
    """Enter a key-value below its section."""
    node = section
    for key, part in zip(statement.path[len(statement.section) :], statement.spelling, strict=True):
        if node is not section:
            node.last_dotted = statement
        node = node.children.setdefault(key, Node(part))
    node.value = statement
