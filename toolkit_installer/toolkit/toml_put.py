"""Setting values in a TOML text with tomlkit, with new keys where a person would write them.

tomlkit appends a new key at the end of a table's section, after the comment that introduces the next table. This module
inserts it after the table's last key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tomlkit
import tomlkit.container
import tomlkit.items

from toolkit_installer.documents.changes import Set

_Body = list[tuple[tomlkit.items.Key | None, tomlkit.items.Item]]


def set_values(source: str, changes: Iterable[Set]) -> str:
    """Return `source` (ending in a newline) with each value set; missing parent tables are created.

    Raises tomlkit's errors if it cannot parse the text. The caller must compare the parsed result with its intention.
    """
    document = tomlkit.parse(source)
    late: list[tuple[_Body, str, Any]] = []
    tails: list[tuple[_Body, _Body]] = []
    for change in changes:
        *parents, name = change.path
        table: Any = document
        for parent in parents:
            if parent not in table:
                tail = _cut_tail(table)
                table[parent] = tomlkit.table()
                tails.append((table[parent].value.body, tail))
            table = table[parent]
        body = None if name in table else _body(table)
        if body is None:
            table[name] = change.value  # tomlkit keeps the comment after an old value
        else:
            late.append((body, name, change.value))
    # Last, because it makes tomlkit's index of a table wrong; after this, the document is only written.
    for body, name, value in late:
        _insert(body, name, value, apart=body is document.body)
    for body, tail in tails:
        body.extend(tail)
    return tomlkit.dumps(document)


def _cut_tail(table: Any) -> _Body:
    """Remove and return the blank lines and comments after a table's last key, as they introduce the next table."""
    if not isinstance(table, tomlkit.items.Table):
        return []
    body = table.value.body
    while body and isinstance(body[-1][1], tomlkit.items.Table):
        body = body[-1][1].value.body
    start = len(body)
    while start and body[start - 1][0] is None:
        start -= 1
    tail = body[start:]
    del body[start:]
    return tail


def _body(table: Any) -> _Body | None:
    """Return the body of the document, or of a table that has its own header; None for other tables."""
    if isinstance(table, tomlkit.TOMLDocument):
        return table.body
    if isinstance(table, tomlkit.items.Table) and table.display_name is not None and not table.is_super_table():
        return table.value.body
    return None


def _insert(body: _Body, name: str, value: Any, *, apart: bool) -> None:
    """Insert a key after the last key; if there is none, at the top, with an empty line after it if `apart`."""
    tables = (tomlkit.items.Table, tomlkit.items.AoT)
    keys = [index for index, (key, item) in enumerate(body) if key is not None and not isinstance(item, tables)]
    item = tomlkit.item(value)
    if keys:
        item.trivia.indent = body[keys[-1]][1].trivia.indent
    elif apart and body:
        body.insert(0, (None, tomlkit.ws("\n")))
    body.insert(keys[-1] + 1 if keys else 0, (tomlkit.key(name), item))
