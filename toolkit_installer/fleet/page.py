"""What many nodes would do, as one page that a browser opens without a network; no more is read than its template.

The page has what it shows as data, and a script that writes it as text, never as markup: names and files of a node
cannot become part of the page. A policy in the page forbids every script and style but its own, by their hashes, and
every connection. What is searched for is in the address, so that it can be passed on.

What a replay has found, as the page shows it. Pure.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from toolkit_installer.fleet.forecast import Fate, Group, Refused, diffs


class Change(NamedTuple):
    """What would be done to some nodes alike."""

    outcome: str
    title: str
    """One line."""
    text: str
    """All of it: reasons, remedies, diffs."""


class Row(NamedTuple):
    """A node."""

    name: str
    outcome: str
    engines: str
    change: int
    """Which of the changes, from 0 on."""
    containers: int | None
    """How many run where the engine is restarted, None where it is not."""
    with_gpu: int | None
    """How many of these run through handlers of ours."""


def page(title: str, about: str, outcomes: Sequence[str], rows: Sequence[Row], changes: Sequence[Change]) -> str:
    """Return the page. `about` is a sentence on what was asked, `outcomes` are all that there may be, in order."""
    data = {
        "about": about,
        "outcomes": outcomes,
        "nodes": [list(row) for row in rows],
        "groups": [change._asdict() for change in changes],
    }
    style, script = _part("page.css"), _part("page.js")
    filled = {
        "STYLE_HASH": _hash(style),
        "SCRIPT_HASH": _hash(script),
        "TITLE": html.escape(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": _data(data),
    }
    first, *rest = _part("page.html").split("@")
    # every second piece is a name: nothing that is filled in is looked at again
    return first + "".join(filled.get(piece, piece) for piece in rest)


def _part(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the text's source expression (Content Security Policy Level 3, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(value: Any) -> str:
    """Return JSON that cannot end the element that it is in, nor begin a comment there."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def shown(fates: list[Fate]) -> tuple[list[Row], list[Change]]:
    """Return the nodes, by name, and what would be done to those that fare alike."""
    numbers: dict[int, int] = {}
    changes: list[Change] = []
    rows = []
    for fate in sorted(fates, key=lambda each: each.node):
        if id(fate.alike) not in numbers:
            numbers[id(fate.alike)] = len(changes)
            changes.append(_change(fate))
        touched = (fate.impact.running, fate.impact.through_handlers) if fate.impact.reloads else (None, None)
        rows.append(Row(fate.node, fate.outcome, ", ".join(fate.engines), numbers[id(fate.alike)], *touched))
    return rows, changes


def _change(fate: Fate) -> Change:
    if isinstance(fate.alike, Refused):
        return Change(fate.outcome, fate.alike.reason, fate.alike.hint or "")
    return Change(fate.outcome, fate.alike.title, "\n".join(_lines(fate.alike)))


def _lines(group: Group) -> Iterator[str]:
    planned = group.planned
    for engine in planned["engines"]:
        yield from (f"{engine['name']}: {note}" for note in engine["notes"])
        if engine["reload"] is not None and engine["why"]:
            unit = f" ({engine['unit']})" if engine["unit"] else ""
            yield f"{engine['name']}{unit} is reloaded, mode {engine['reload']}, as {engine['why']}"
    yield from (f"{planned['toolkit_folder']}/{name} is written" for name in planned["install"])
    yield from (f"{planned['toolkit_folder']}/{name} is removed" for name in planned["remove"])
    for text in diffs(planned):
        yield from text.removesuffix("\n").split("\n")
