"""What `replay` shows of many nodes: how they would fare together, and which alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toolkit_installer.cli.output import DiffLine
from toolkit_installer.documents import diff
from toolkit_installer.fleet.forecast import (
    Group,
    Illnesses,
    Impact,
    Outcome,
    Refused,
    Summary,
    Supposed,
    Supposition,
    diffs,
)

_SHOWN = 5
"""How many nodes of a group are named; --json names all."""


def title(outcome: Outcome) -> str:
    """Return what stands above what `plan` prints for one node of several."""
    return f"=== {outcome.node} ({outcome.file})"


def unknown(outcome: Outcome) -> Iterator[str]:
    """Yield what a plan for one node cannot tell, which the plan on the node can."""
    yield from map(_supposed, outcome.supposed)
    for engine in outcome.untried:
        yield f"{engine}'s own binary has not been asked about this: on the node, `run` asks it before any change."


def lines(summary: Summary) -> list[str | DiffLine]:
    """Return what people want to know first, then the nodes that fare alike."""
    nodes = summary.nodes
    found: list[str | DiffLine] = [
        f"{_nodes(nodes.captures)}: {nodes.converged} converged, {nodes.changed} changed, {nodes.refused} refused.",
        (
            f"Of those that change: {nodes.edited} with an engine's file edited, {nodes.reloaded} with an engine "
            f"reloaded, {nodes.restarted} of them by a restart."
        ),
        _containers(summary.containers),
    ]
    if nodes.at_work:
        found.append(f"On {_nodes(nodes.at_work)} an installer was at work, which another one would make way for.")
    if nodes.incomplete:
        found.append(f"Of {_nodes(nodes.incomplete)} something could not be read when they were captured.")
    found += [f"On {_nodes(len(each.nodes))} {_supposed(each)}" for each in summary.supposed]
    for engine, names in summary.untried.items():
        found.append(f"On {_nodes(len(names))} {engine}'s own binary has not been asked about this: {_named(names)}")
    if summary.undiagnosed:
        named = _named(summary.undiagnosed)
        found.append(f"The captures of {_nodes(len(summary.undiagnosed))} do not say what illnesses they have: {named}")
    for illness in summary.illnesses:
        found += ["", *_illness(illness)]
    for refused in summary.refusals:
        found += ["", *_refused(refused)]
    for group in summary.groups:
        found += ["", *_group(group)]
    return found


def _supposed(supposed: Supposed | Supposition) -> str:
    engine, version, captured = supposed.engine, supposed.version, supposed.captured
    if captured is None:
        return (
            f"{engine} did not answer when it was captured: it is planned for without a version, and not as {version}."
        )
    return f"{engine} is planned for as {version}; its files, and all else that it says of itself, are of {captured}."


def _containers(impact: Impact) -> str:
    unknown = f"; on {_nodes(impact.unknown)} that is not known" if impact.unknown else ""
    return (
        f"Containers on engines that are reloaded: {impact.running}, {impact.through_handlers} of them through "
        f"handlers of this program; {impact.end} END with their engine{unknown}."
    )


def _illness(illness: Illnesses) -> Iterator[str]:
    first = illness.first
    where = first.path if first.line is None else f"{first.path}:{first.line}"
    yield f"{_nodes(len(illness.nodes))} ILL: {illness.title} ({illness.illness})"
    yield f"  For instance {where}: {first.what}"
    yield f"  Remedy: {first.remedy}"
    yield f"  {_named(illness.nodes)}"


def _refused(refused: Refused) -> Iterator[str]:
    yield f"{_nodes(len(refused.nodes))} REFUSED: {refused.reason}"
    if refused.hint:
        yield f"  Hint: {refused.hint}"
    yield f"  {_named(refused.nodes)}"


def _group(group: Group) -> Iterator[str | DiffLine]:
    yield f"{_nodes(len(group.nodes))}: {group.title}"
    yield f"  {_named(group.nodes)}"
    for engine in group.planned["engines"]:
        yield from (f"  {engine['name']}: {note}" for note in engine["notes"])
    for text in diffs(group.planned):
        yield from (DiffLine(line, diff.painted) for line in text.removesuffix("\n").split("\n"))


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"


def _named(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{', '.join(nodes[:_SHOWN])}{more}"
