"""What a replay has found, as the page shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit_installer.cli.fleet.page import Change, Row
from toolkit_installer.lifecycle.capture.fleet import Fate, Group, Refused, diffs


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
