"""How many nodes would fare, put together from how each would: alike ones are told together. Pure.

What many nodes would do, as one page that a browser opens without a network; no more is read than its template.

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
from typing import Any, Final, NamedTuple

import msgspec

from toolkit_installer import lazy
from toolkit_installer.documents.masking import MASK
from toolkit_installer.reporting.diagnosis_form import TITLES, Finding, Illness

_SCHEMA: Final = 1
OUTCOMES: Final = ("refused", "restarted", "reloaded", "changed", "converged")
"""What may become of a node, the worst first."""
_PID: Final = lazy.pattern(r"\bPID [0-9]+")
"""Differs from node to node in what is otherwise one reason."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a node would refuse, or cannot be replayed. `code` is the exit code of `run`, 0 where it is no run's."""

    reason: str
    hint: str | None
    code: int
    event: str


class Impact(msgspec.Struct, frozen=True):
    """What the reloads on a node touch. `unknown`: on how many nodes that cannot be told."""

    reloads: int = 0
    restarts: int = 0
    running: int = 0
    through_handlers: int = 0
    end: int = 0
    """Containers that end with their engine."""
    unknown: int = 0

    def __add__(self, other: Impact) -> Impact:
        both = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Impact(*(one + another for one, another in both))


class Supposed(msgspec.Struct, frozen=True):
    """An engine that is planned for as if it were of a version. `captured` is its own, None where it did not answer.

    Without an answer there is nothing that the version could stand in for.
    """

    engine: str
    version: str
    captured: str | None


class Outcome(msgspec.Struct, frozen=True):
    """How one node would fare. `planned` is the answer of `plan --json`, None where there is none.

    `node` is its name, or `file` where that cannot be read.
    """

    node: str
    file: str
    planned: dict[str, Any] | None = None
    refusal: Refusal | None = None
    lines: tuple[tuple[str, bool], ...] = ()
    """What `plan` prints, where that was asked for, and which of it are lines of diffs."""
    impact: Impact = Impact()
    at_work: bool = False
    """An instance of the installer was at work there."""
    untried: tuple[str, ...] = ()
    """Engines whose own binary was not asked about what is planned."""
    supposed: tuple[Supposed, ...] = ()
    """Engines that were planned for as if they were of another version."""
    incomplete: bool = False
    """Something of the node could not be read."""
    systems: tuple[str, ...] = ()
    """Its engines in words: name, version and distribution."""
    illnesses: tuple[Finding, ...] | None = None
    """What `diagnose` found when the node was captured; None where the capture does not have it."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that it would be about, as far as that is known."""
        return tuple(str(engine["name"]) for engine in (self.planned or {}).get("engines", ()))

    @property
    def edited(self) -> bool:
        """Whether a file of an engine would be changed, or one of a CDI specification."""
        found = self.planned or {}
        return any(engine["files"] for engine in found.get("engines", ()))


class Supposition(msgspec.Struct, frozen=True):
    """Nodes on which the same was supposed of an engine."""

    engine: str
    version: str
    captured: str | None
    nodes: list[str]


class Group(msgspec.Struct):
    """Nodes that would fare alike. `planned` is that of the first of them."""

    summary: str
    nodes: list[str]
    planned: dict[str, Any]
    systems: list[str] = []
    """Their engines in words, each once."""
    apart: str = ""
    """What tells them from another group with the same summary; empty where there is none."""

    @property
    def title(self) -> str:
        """Its summary, and what tells it from others."""
        return f"{self.summary.removesuffix('.')} ({self.apart})" if self.apart else self.summary


class Refused(msgspec.Struct):
    """Nodes that would refuse for the same reason."""

    reason: str
    hint: str | None
    exit_code: int
    nodes: list[str]


class Illnesses(msgspec.Struct):
    """Nodes that have an illness, by its name in the table (docs/diagnose.md)."""

    illness: str
    title: str
    nodes: list[str]
    findings: int
    """How many of it there are on all nodes together."""
    first: Finding
    """The first of them: file, line, what it causes, and what ends it."""


class Fate(msgspec.Struct, frozen=True):
    """What would become of one node, and which nodes fare alike."""

    node: str
    outcome: str
    """One of `OUTCOMES`."""
    engines: tuple[str, ...]
    alike: Group | Refused
    impact: Impact


class Totals(msgspec.Struct):
    """How many nodes."""

    captures: int = 0
    converged: int = 0
    changed: int = 0
    edited: int = 0
    reloaded: int = 0
    restarted: int = 0
    refused: int = 0
    at_work: int = 0
    incomplete: int = 0


class Summary(msgspec.Struct, frozen=True):
    """The answer of `replay --json`. Its form has a number, as that of `plan --json`."""

    schema: int
    version: str
    nodes: Totals
    containers: Impact
    groups: tuple[Group, ...]
    """Those that change something, the largest first; then those that change nothing."""
    refusals: tuple[Refused, ...]
    untried: dict[str, list[str]]
    """By engine: the nodes where its own binary was not asked about what is planned."""
    supposed: tuple[Supposition, ...]
    illnesses: tuple[Illnesses, ...]
    """The illness of most nodes first."""
    undiagnosed: tuple[str, ...]
    """Nodes whose captures do not say what illnesses they have: an older release made them."""


class Fleet:
    """Takes up one outcome after another; of each, what it shares with others is kept once."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._impact = Impact()
        self._groups: dict[str, Group] = {}
        self._refused: dict[str, Refused] = {}
        self._untried: dict[str, list[str]] = {}
        self._supposed: dict[Supposed, list[str]] = {}
        self._illnesses: dict[Illness, Illnesses] = {}
        self._undiagnosed: list[str] = []
        self.fates: list[Fate] = []
        """Of each node, in the order in which they were taken up."""

    def add(self, outcome: Outcome) -> None:
        """Take up one outcome."""
        totals, impact = self._totals, outcome.impact
        totals.captures += 1
        totals.at_work += outcome.at_work
        totals.incomplete += outcome.incomplete
        for engine in outcome.untried:
            self._untried.setdefault(engine, []).append(outcome.node)
        for each in outcome.supposed:
            self._supposed.setdefault(each, []).append(outcome.node)
        self._count_illnesses(outcome)
        if outcome.refusal is not None:
            totals.refused += 1
            refused = self._refuse(outcome, outcome.refusal)
            self.fates.append(Fate(outcome.node, "refused", outcome.engines, refused, Impact()))
            return
        assert outcome.planned is not None  # noqa: S101  # else it has a refusal
        converged = bool(outcome.planned["nothing_to_do"])
        totals.converged += converged
        totals.changed += not converged
        totals.edited += outcome.edited
        totals.reloaded += bool(impact.reloads)
        totals.restarted += bool(impact.restarts)
        self._impact += impact
        key = _alike(outcome.planned)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(str(outcome.planned["summary"]), [], outcome.planned)
        group.nodes.append(outcome.node)
        group.systems += [each for each in outcome.systems if each not in group.systems]
        word = "restarted" if impact.restarts else "reloaded" if impact.reloads else "changed"
        self.fates.append(Fate(outcome.node, "converged" if converged else word, outcome.engines, group, impact))

    def summary(self, version: str) -> Summary:
        """Return what all of them come to."""
        groups = sorted(
            self._groups.values(), key=lambda each: (each.planned["nothing_to_do"], -len(each.nodes), each.summary)
        )
        _tell_apart(groups)
        refusals = sorted(self._refused.values(), key=lambda each: (-len(each.nodes), each.reason))
        return Summary(
            schema=_SCHEMA,
            version=version,
            nodes=self._totals,
            containers=self._impact,
            groups=tuple(groups),
            refusals=tuple(refusals),
            untried=dict(sorted(self._untried.items())),
            supposed=tuple(
                Supposition(each.engine, each.version, each.captured, nodes)
                for each, nodes in sorted(self._supposed.items(), key=lambda item: _order(item[0]))
            ),
            illnesses=tuple(sorted(self._illnesses.values(), key=lambda each: (-len(each.nodes), each.illness))),
            undiagnosed=tuple(self._undiagnosed),
        )

    def _count_illnesses(self, outcome: Outcome) -> None:
        if outcome.illnesses is None:
            self._undiagnosed += [outcome.node] if outcome.node != outcome.file else []  # else it is damaged
            return
        for finding in outcome.illnesses:
            known = self._illnesses.setdefault(
                finding.illness, Illnesses(finding.illness.value, TITLES[finding.illness], [], 0, finding)
            )
            known.findings += 1
            if known.nodes[-1:] != [outcome.node]:
                known.nodes.append(outcome.node)

    def _refuse(self, outcome: Outcome, refusal: Refusal) -> Refused:
        reason = refusal.reason.replace(f"{outcome.file}: ", "the capture ")  # it stands among the nodes
        key = _PID.sub("PID ...", reason)
        known = self._refused.setdefault(key, Refused(reason, refusal.hint, refusal.code, []))
        known.nodes.append(outcome.node)
        return known


_SYSTEMS_SHOWN: Final = 3


def _tell_apart(groups: Sequence[Group]) -> None:
    """Say of groups with the same summary what tells them apart: their engines, else what is planned for them."""
    alike: dict[str, list[Group]] = {}
    for group in groups:
        alike.setdefault(group.summary, []).append(group)
    for same in alike.values():
        if len(same) == 1:
            continue
        traits = [_traits(group) for group in same]
        differing = [place for place in range(len(traits[0])) if len({each[place] for each in traits}) > 1]
        for group, own in zip(same, traits, strict=True):
            group.apart = "; ".join(own[place] for place in differing if own[place])
        _tell_files_apart(same)


def _tell_files_apart(same: Sequence[Group]) -> None:
    """Say of groups that their engines do not tell apart which line their files have, else give them numbers."""
    alike: dict[str, list[Group]] = {}
    for group in same:
        alike.setdefault(group.apart, []).append(group)
    for apart, groups in alike.items():
        if len(groups) == 1 and apart:
            continue
        found = [list(_lines(group)) for group in groups]
        for number, (group, lines) in enumerate(zip(groups, found, strict=True), 1):
            others = {line for each in found if each is not lines for line in each}
            line = next((each for each in lines if each not in others), None)
            shown = line if line is None or len(line) <= _LINE_SHOWN else f"{line[:_LINE_SHOWN]}…"
            told = f"variant {number}" if shown is None else f"with {shown}"
            group.apart = f"{apart}; {told}" if apart else told


def _lines(group: Group) -> Iterator[str]:
    """Yield the lines of the files in a group's diffs."""
    for text in diffs(group.planned):
        for line in text.splitlines()[2:]:
            if not line.startswith("@@") and MASK not in line and line[1:].strip():
                yield line[1:].strip()


_LINE_SHOWN: Final = 60


def _traits(group: Group) -> tuple[str, ...]:
    """Return what may tell a group from another one, in words."""
    more = len(group.systems) - _SYSTEMS_SHOWN
    systems = ", ".join(sorted(group.systems)[:_SYSTEMS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    engines = group.planned["engines"]
    method = (group.planned["method"] or {}).get("name")
    return (
        systems,
        ", ".join(str(engine["unit"]) for engine in engines if engine["unit"]),
        f"method {method}" if method else "",
        f"toolkit in {group.planned['toolkit_folder']}",
    )


def _order(supposed: Supposed) -> tuple[str, str]:
    return supposed.engine, supposed.captured or ""


def _alike(planned: dict[str, Any]) -> str:
    """Return what is the same of nodes that would be changed alike: what is written where, and how it is taken over."""
    engines = [[engine[name] for name in ("name", "notes", "files", "reload", "unit")] for engine in planned["engines"]]
    told = ("summary", "waits_for", "toolkit_folder", "install", "remove", "given_back", "device_nodes", "files")
    method = (planned["method"] or {}).get("name")
    return msgspec.json.encode([*(planned[name] for name in told), engines, method]).decode()


def diffs(planned: dict[str, Any]) -> Iterator[str]:
    """Yield the diffs of a plan, as texts."""
    files: Sequence[dict[str, Any]] = [
        *planned["files"],
        *(file for engine in planned["engines"] for file in engine["files"]),
    ]
    yield from (str(file["diff"]) for file in files)


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
    return Change(fate.outcome, fate.alike.title, "\n".join(_page_lines(fate.alike)))


def _page_lines(group: Group) -> Iterator[str]:
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
