"""What `compare` shows of many nodes: what nobody planned, what drifted, which lag, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit_installer.cli.output import DiffLine
from toolkit_installer.documents import diff
from toolkit_installer.fleet.compare import Changed, DriftedFile, Summary

_SHOWN = 5
"""How many nodes of a group are named; --json names all."""
_UNSEEN = "  (only what is not shown is another: secrets, or what is no text)"


def lines(summary: Summary) -> list[str | DiffLine]:
    """Return what people want to know first, then the nodes of which the same is to be said."""
    nodes = summary.nodes
    found: list[str | DiffLine] = [
        (
            f"{_nodes(nodes.compared)} compared: {nodes.unplanned} with a change that nobody planned, {nodes.drifted} "
            f"with drift, {nodes.lagging} behind."
        ),
    ]
    if summary.only_before:
        found.append(f"{_nodes(len(summary.only_before))} only before: {_named(summary.only_before)}")
    if summary.only_after:
        found.append(f"{_nodes(len(summary.only_after))} only after: {_named(summary.only_after)}")
    for refused in summary.unusable:
        found += ["", f"{_counted(len(refused.nodes), 'capture')} NOT USED: {refused.reason}"]
        found += [f"  Hint: {refused.hint}"] if refused.hint else []
        found.append(f"  {_named(refused.nodes)}")
    for said in summary.lagging:
        found += ["", f"{_nodes(len(said.nodes))} BEHIND: {said.reason}", f"  {_named(said.nodes)}"]
    for fact in summary.facts:
        found += ["", f"{_nodes(len(fact.nodes))} UNPLANNED: {fact.what}: {fact.before} before, {fact.after} after"]
        found.append(f"  {_named(fact.nodes)}")
    for changed in summary.unplanned:
        found += ["", *_changed(changed)]
    for file in summary.drift:
        found += ["", *_drifted(file)]
    for said in summary.untold:
        found += ["", f"{_nodes(len(said.nodes))} NOT TOLD: {said.reason}", f"  {_named(said.nodes)}"]
    return found


def _changed(changed: Changed) -> Iterator[str | DiffLine]:
    yield f"{_nodes(len(changed.nodes))} UNPLANNED: {changed.path} is not as in {changed.against}; {changed.since}"
    yield f"  {_named(changed.nodes)}"
    yield from _diff(changed.diff)


def _drifted(file: DriftedFile) -> Iterator[str | DiffLine]:
    yield f"{_nodes(file.nodes)} with DRIFT in {file.path}:"
    for group in file.groups:
        against = f"; from {group.against} to what stands there" if group.against else ""
        yield f"  {_nodes(len(group.nodes))}: {group.state}{against}: {_named(group.nodes)}"
        if group.against:
            yield from _diff(group.diff)
        else:
            yield "  (what was written is in none of the captures, and a run would leave the file as it is)"


def _diff(text: str) -> Iterator[str | DiffLine]:
    if not text:
        yield _UNSEEN
        return
    yield from (DiffLine(line, diff.painted) for line in text.removesuffix("\n").split("\n"))


def _nodes(number: int) -> str:
    return _counted(number, "node")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{', '.join(nodes[:_SHOWN])}{more}"
