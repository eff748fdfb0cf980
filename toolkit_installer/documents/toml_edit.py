"""From what a document should mean to the fewest changes of its statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from toolkit_installer.documents import toml_blocks, toml_scan
from toolkit_installer.documents.changes import Path, Table, same
from toolkit_installer.documents.toml_inline import Splice, edit_value, spliced
from toolkit_installer.documents.toml_scan import Statement
from toolkit_installer.documents.toml_tree import Node, build
from toolkit_installer.documents.toml_values import write, write_key


def edit_text(text: str, old: Table, new: Table, marker: str) -> str:
    """Return `text`, which means `old`, changed so that it means `new`; nothing else in it changes.

    New tables form a block at the end under the comment `# marker`. A text without final line end stays without.
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
    statements = list(toml_scan.scan(text))
    editor = _Editor(text, build(statements), eol)
    editor.edit_table(editor.root, (), old, new)
    splices = editor.splices
    splices += toml_blocks.closed(text, marker, statements, editor.root, editor.changed)
    splices += [_removal(text, statement) for statement in editor.changed.removed.values()]
    if editor.changed.tables:
        block = toml_blocks.block(editor.root, editor.changed.tables, marker, eol)
        splices.append(Splice(len(text), len(text), (eol if text or splices else "") + block))
    return spliced(text, splices)


def _removal(text: str, statement: Statement) -> Splice:
    """Remove a statement's lines; the comments in them stay, each on a line of its own."""
    kept = toml_scan.comments(text[statement.value_start : statement.value_end])
    kept += toml_scan.comments(text[statement.value_end : statement.end])
    return Splice(statement.start, statement.end, _comment_lines(text, statement, kept))


def _comment_lines(text: str, statement: Statement, comments: list[str]) -> str:
    """Return `comments` as lines with the indentation and the line end of `statement`."""
    indent = text[statement.start : statement.key_start]
    eol = "\r\n" if text.endswith("\r\n", 0, statement.end) else "\n"
    return "".join(f"{indent}{comment}{eol}" for comment in comments)


class _Editor(msgspec.Struct):
    """Compares two meanings of a document and collects what to change in its text."""

    text: str
    root: Node
    eol: str
    splices: list[Splice] = msgspec.field(default_factory=list)
    changed: toml_blocks.Changed = msgspec.field(default_factory=toml_blocks.Changed)

    def edit_table(self, node: Node, path: Path, old: Table, new: Table) -> None:
        """Make the table at `path` mean `new`; it has a header or is left with something in it."""
        for key in old:
            if key not in new:
                self._remove(node.children[key])
        added = {key: value for key, value in new.items() if key not in old}
        for key in new:
            if key in old and not self._edit_child(node.children[key], (*path, key), old[key], new[key]):
                added[key] = new[key]
        if added:
            self._add(node, path, added)

    def _edit_child(self, child: Node, path: Path, old: Any, new: Any) -> bool:
        """Make what stands at `path` mean `new`, or remove it and return False: it has to be written elsewhere."""
        if old is new:  # what changes do not touch is shared, not copied: most of a document is skipped here
            return True
        if child.value is not None:
            self._replace_value(child.value, old, new)
            return True
        if isinstance(old, dict) and isinstance(new, dict) and (new or child.is_section):
            self.edit_table(child, path, old, new)
            return True
        if same(old, new):
            return True
        self._remove(child)
        return False

    def _remove(self, node: Node) -> None:
        """Remove every statement of `node`."""
        self.changed.removed.update((statement.start, statement) for statement in node.statements())

    def _replace_value(self, statement: Statement, old: Any, new: Any) -> None:
        """Replace a value in its line; comments of which it leaves nothing move to lines above it."""
        start, end = statement.value_start, statement.value_end
        before = self.text[start:end]
        after = edit_value(before, old, new, self.eol)
        if after == before:
            return
        lost = toml_scan.comments(before)
        for comment in toml_scan.comments(after):
            lost.remove(comment)
        if lost:
            lines = _comment_lines(self.text, statement, lost)
            self.splices.append(Splice(statement.start, statement.start, lines))
        self.splices.append(Splice(start, end, after))

    def _add(self, node: Node, path: Path, added: Table) -> None:
        """Write new keys of an existing table."""
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
                self.changed.tables += toml_blocks.tables((*path, key), value)

    def _add_to_section(self, node: Node, lines: Table) -> None:
        """Insert keys below a table's header; in the root below its last key, else at the top."""
        keys = sorted(node.values(), key=lambda statement: statement.start)
        header = node.header
        if header is None:
            indent = self.text[keys[-1].start : keys[-1].key_start] if keys else ""
            initial_comment = toml_blocks.INITIAL_COMMENT.match(self.text)
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
    """Yield a line for each value of `table`, tables below it spelt out as dotted keys."""
    for key, value in table.items():
        dotted = f"{prefix}.{write_key(key)}" if prefix else write_key(key)
        if isinstance(value, dict) and value:
            yield from _dotted_lines(dotted, value)
        else:
            yield f"{dotted} = {write(value)}"
