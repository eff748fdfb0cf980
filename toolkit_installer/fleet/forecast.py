"""The outcomes of replays of many nodes: equal ones grouped, counted, and as an HTML page. Pure.

A browser opens the page without a network; only its template is read. The page has its content as data, and a script
that inserts it as text, never as markup: names and files of a node cannot become part of the page. A policy in the page
forbids every script and style but its own, by their hashes, and every connection. A search is in the address, so that
it can be passed on.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from toolkit_installer.documents.masking import MASK
from toolkit_installer.reporting.diagnosis_form import TITLES, Finding, Illness

_SCHEMA: Final = 1
OUTCOMES: Final = ("refused", "restarted", "reloaded", "changed", "converged")
"""The possible outcomes for a node, the worst first."""
_PID: Final = re.compile(r"\bPID [0-9]+")
"""A part of a reason that differs from node to node."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a node would refuse, or cannot be replayed. `code` is the exit code of `run`, 0 if it is not a run's."""

    reason: str
    hint: str | None
    code: int
    event: str


class Impact(msgspec.Struct, frozen=True):
    """The effects of reloads. `unknown` counts the nodes on which they cannot be determined."""

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


class AssumedVersion(msgspec.Struct, frozen=True):
    """The version assumed for an engine, and the captured one; None: it did not answer, and no version was assumed."""

    engine: str
    version: str
    captured: str | None


class Outcome(msgspec.Struct, frozen=True):
    """The outcome for one node. `planned` is the output of `plan --json`, None if there is no plan.

    `node` is its name, or `file` if that cannot be read.
    """

    node: str
    file: str
    planned: dict[str, Any] | None = None
    refusal: Refusal | None = None
    lines: tuple[tuple[str, bool], ...] = ()
    """The output of `plan`, if requested: each line, and whether it is a line of a diff."""
    impact: Impact = Impact()
    at_work: bool = False
    """Whether an instance of the installer was running there."""
    untried: tuple[str, ...] = ()
    """Engines whose own binary was not tried on the planned configuration."""
    supposed: tuple[AssumedVersion, ...] = ()
    """Engines for which another version was assumed."""
    incomplete: bool = False
    """Whether a part of the node could not be captured."""
    systems: tuple[str, ...] = ()
    """Its engines in words: name, version and distribution."""
    illnesses: tuple[Finding, ...] | None = None
    """The findings of `diagnose` when the node was captured, None if the capture lacks them."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines in the plan, none if there is no plan."""
        return tuple(str(engine["name"]) for engine in (self.planned or {}).get("engines", ()))

    @property
    def edited(self) -> bool:
        """Whether a file of an engine would be changed."""
        found = self.planned or {}
        return any(engine["files"] for engine in found.get("engines", ()))


class AssumptionGroup(msgspec.Struct, frozen=True):
    """Nodes with the same assumed and captured version of an engine."""

    engine: str
    version: str
    captured: str | None
    nodes: list[str]


class OutcomeGroup(msgspec.Struct):
    """Nodes with equal outcomes. `planned` is that of the first."""

    summary: str
    nodes: list[str]
    planned: dict[str, Any]
    systems: list[str] = []
    """Their engines in words, without repetition."""
    apart: str = ""
    """The difference to other groups with the same summary; empty if there are none."""

    @property
    def title(self) -> str:
        """Its summary, and the difference to others."""
        return f"{self.summary.removesuffix('.')} ({self.apart})" if self.apart else self.summary


class RefusalGroup(msgspec.Struct):
    """Nodes that would refuse for the same reason."""

    reason: str
    hint: str | None
    exit_code: int
    nodes: list[str]


class IllnessGroup(msgspec.Struct):
    """Nodes that have an illness, by its name in the table (docs/diagnose.md)."""

    illness: str
    title: str
    nodes: list[str]
    findings: int
    """The number of its findings on all nodes together."""
    first: Finding
    """The first finding: file, line, effect and remedy."""


class NodeResult(msgspec.Struct, frozen=True):
    """The outcome for one node in a word, and the group of nodes with equal outcomes."""

    node: str
    outcome: str
    """One of `OUTCOMES`."""
    engines: tuple[str, ...]
    group: OutcomeGroup | RefusalGroup
    impact: Impact


class ReplayTotals(msgspec.Struct):
    """Numbers of nodes."""

    captures: int = 0
    converged: int = 0
    changed: int = 0
    edited: int = 0
    reloaded: int = 0
    restarted: int = 0
    refused: int = 0
    at_work: int = 0
    incomplete: int = 0


class ReplaySummary(msgspec.Struct, frozen=True):
    """The output of `replay --json`. Its format is numbered, as that of `plan --json`."""

    schema: int
    version: str
    nodes: ReplayTotals
    containers: Impact
    groups: tuple[OutcomeGroup, ...]
    """The groups with changes, the largest first; then those without."""
    refusals: tuple[RefusalGroup, ...]
    untried: dict[str, list[str]]
    """By engine: the nodes where its own binary was not tried on the planned configuration."""
    supposed: tuple[AssumptionGroup, ...]
    illnesses: tuple[IllnessGroup, ...]
    """The illness of most nodes first."""
    undiagnosed: tuple[str, ...]
    """Nodes whose captures lack the findings of `diagnose`: an older release made them."""


class Fleet:
    """Collects outcomes, and stores once what many of them share."""

    def __init__(self) -> None:
        self._totals = ReplayTotals()
        self._impact = Impact()
        self._groups: dict[str, OutcomeGroup] = {}
        self._refused: dict[str, RefusalGroup] = {}
        self._untried: dict[str, list[str]] = {}
        self._supposed: dict[AssumedVersion, list[str]] = {}
        self._illnesses: dict[Illness, IllnessGroup] = {}
        self._undiagnosed: list[str] = []
        self.results: list[NodeResult] = []
        """One per node, in the order of `add`."""

    def add(self, outcome: Outcome) -> None:
        """Add the outcome for one node."""
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
            self.results.append(NodeResult(outcome.node, "refused", outcome.engines, refused, Impact()))
            return
        assert outcome.planned is not None  # noqa: S101  # otherwise it has a refusal
        converged = bool(outcome.planned["nothing_to_do"])
        totals.converged += converged
        totals.changed += not converged
        totals.edited += outcome.edited
        totals.reloaded += bool(impact.reloads)
        totals.restarted += bool(impact.restarts)
        self._impact += impact
        key = _make_key(outcome.planned)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = OutcomeGroup(str(outcome.planned["summary"]), [], outcome.planned)
        group.nodes.append(outcome.node)
        group.systems += [each for each in outcome.systems if each not in group.systems]
        word = "restarted" if impact.restarts else "reloaded" if impact.reloads else "changed"
        self.results.append(
            NodeResult(outcome.node, "converged" if converged else word, outcome.engines, group, impact)
        )

    def summary(self, version: str) -> ReplaySummary:
        """Return the summary of all outcomes."""
        groups = sorted(
            self._groups.values(), key=lambda each: (each.planned["nothing_to_do"], -len(each.nodes), each.summary)
        )
        _distinguish_groups(groups)
        refusals = sorted(self._refused.values(), key=lambda each: (-len(each.nodes), each.reason))
        return ReplaySummary(
            schema=_SCHEMA,
            version=version,
            nodes=self._totals,
            containers=self._impact,
            groups=tuple(groups),
            refusals=tuple(refusals),
            untried=dict(sorted(self._untried.items())),
            supposed=tuple(
                AssumptionGroup(each.engine, each.version, each.captured, nodes)
                for each, nodes in sorted(self._supposed.items(), key=lambda item: _make_sort_key(item[0]))
            ),
            illnesses=tuple(sorted(self._illnesses.values(), key=lambda each: (-len(each.nodes), each.illness))),
            undiagnosed=tuple(self._undiagnosed),
        )

    def _count_illnesses(self, outcome: Outcome) -> None:
        if outcome.illnesses is None:
            self._undiagnosed += [outcome.node] if outcome.node != outcome.file else []  # otherwise it is damaged
            return
        for finding in outcome.illnesses:
            known = self._illnesses.setdefault(
                finding.illness, IllnessGroup(finding.illness.value, TITLES[finding.illness], [], 0, finding)
            )
            known.findings += 1
            if known.nodes[-1:] != [outcome.node]:
                known.nodes.append(outcome.node)

    def _refuse(self, outcome: Outcome, refusal: Refusal) -> RefusalGroup:
        reason = refusal.reason.replace(f"{outcome.file}: ", "the capture ")  # the file is listed among the nodes
        key = _PID.sub("PID ...", reason)
        known = self._refused.setdefault(key, RefusalGroup(reason, refusal.hint, refusal.code, []))
        known.nodes.append(outcome.node)
        return known


_SYSTEMS_SHOWN: Final = 3


def _distinguish_groups(groups: Sequence[OutcomeGroup]) -> None:
    """Set `apart` of groups with the same summary: by their engines, otherwise by their plans."""
    alike: dict[str, list[OutcomeGroup]] = {}
    for group in groups:
        alike.setdefault(group.summary, []).append(group)
    for same in alike.values():
        if len(same) == 1:
            continue
        traits = [_list_traits(group) for group in same]
        differing = [place for place in range(len(traits[0])) if len({each[place] for each in traits}) > 1]
        for group, own in zip(same, traits, strict=True):
            group.apart = "; ".join(own[place] for place in differing if own[place])
        _distinguish_files(same)


def _distinguish_files(same: Sequence[OutcomeGroup]) -> None:
    """Extend `apart` of groups that are still equal by a line of their files only, or by a number."""
    alike: dict[str, list[OutcomeGroup]] = {}
    for group in same:
        alike.setdefault(group.apart, []).append(group)
    for apart, groups in alike.items():
        if len(groups) == 1 and apart:
            continue
        found = [list(_list_diff_lines(group)) for group in groups]
        for number, (group, lines) in enumerate(zip(groups, found, strict=True), 1):
            others = {line for each in found if each is not lines for line in each}
            line = next((each for each in lines if each not in others), None)
            shown = line if line is None or len(line) <= _LINE_SHOWN else f"{line[:_LINE_SHOWN]}…"
            own = f"variant {number}" if shown is None else f"with {shown}"
            group.apart = f"{apart}; {own}" if apart else own


def _list_diff_lines(group: OutcomeGroup) -> Iterator[str]:
    """Yield the lines of the files in a group's diffs."""
    for text in list_diffs(group.planned):
        for line in text.splitlines()[2:]:
            if not line.startswith("@@") and MASK not in line and line[1:].strip():
                yield line[1:].strip()


_LINE_SHOWN: Final = 60


def _list_traits(group: OutcomeGroup) -> tuple[str, ...]:
    """Return the traits by which a group may differ from another, in words."""
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


def _make_sort_key(supposed: AssumedVersion) -> tuple[str, str]:
    return supposed.engine, supposed.captured or ""


def _make_key(planned: dict[str, Any]) -> str:
    """Return a key for plans: equal for equal changes and equal reloads."""
    engines = [[engine[name] for name in ("name", "notes", "files", "reload", "unit")] for engine in planned["engines"]]
    fields = ("summary", "waits_for", "toolkit_folder", "install", "remove", "given_back", "device_nodes", "files")
    method = (planned["method"] or {}).get("name")
    return msgspec.json.encode([*(planned[name] for name in fields), engines, method]).decode()


def list_diffs(planned: dict[str, Any]) -> Iterator[str]:
    """Yield the diffs of a plan, as texts."""
    files: Sequence[dict[str, Any]] = [
        *planned["files"],
        *(file for engine in planned["engines"] for file in engine["files"]),
    ]
    yield from (str(file["diff"]) for file in files)


class PageChange(NamedTuple):
    """The outcome of a group of nodes, as the page shows it."""

    outcome: str
    title: str
    """One line."""
    text: str
    """The details: reasons, remedies, diffs."""


class PageRow(NamedTuple):
    """A node, as the page shows it."""

    name: str
    outcome: str
    engines: str
    change: int
    """The index of its change."""
    containers: int | None
    """The number of containers on reloaded engines, None without a reload."""
    with_gpu: int | None
    """The number of these that run through our handlers."""


def page(
    title: str, about: str, outcomes: Sequence[str], rows: Sequence[PageRow], changes: Sequence[PageChange]
) -> str:
    """Return the page. `about` is a sentence on the replay, `outcomes` are all possible ones, in order."""
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
    # every second piece is a name: inserted text is never searched for names
    return first + "".join(filled.get(piece, piece) for piece in rest)


def _part(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the text's source expression (Content Security Policy Level 3, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(value: Any) -> str:
    """Return JSON that can neither end its HTML element nor begin a comment."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def make_rows(results: list[NodeResult]) -> tuple[list[PageRow], list[PageChange]]:
    """Return the rows of the nodes, by name, and the changes of their groups."""
    numbers: dict[int, int] = {}
    changes: list[PageChange] = []
    rows = []
    for result in sorted(results, key=lambda each: each.node):
        if id(result.group) not in numbers:
            numbers[id(result.group)] = len(changes)
            changes.append(_change(result))
        touched = (result.impact.running, result.impact.through_handlers) if result.impact.reloads else (None, None)
        rows.append(
            PageRow(result.node, result.outcome, ", ".join(result.engines), numbers[id(result.group)], *touched)
        )
    return rows, changes


def _change(result: NodeResult) -> PageChange:
    if isinstance(result.group, RefusalGroup):
        return PageChange(result.outcome, result.group.reason, result.group.hint or "")
    return PageChange(result.outcome, result.group.title, "\n".join(_page_lines(result.group)))


def _page_lines(group: OutcomeGroup) -> Iterator[str]:
    planned = group.planned
    for engine in planned["engines"]:
        yield from (f"{engine['name']}: {note}" for note in engine["notes"])
        if engine["reload"] is not None and engine["why"]:
            unit = f" ({engine['unit']})" if engine["unit"] else ""
            yield f"{engine['name']}{unit} is reloaded, mode {engine['reload']}, as {engine['why']}"
    yield from (f"{planned['toolkit_folder']}/{name} is written" for name in planned["install"])
    yield from (f"{planned['toolkit_folder']}/{name} is removed" for name in planned["remove"])
    for text in list_diffs(planned):
        yield from text.removesuffix("\n").split("\n")
