"""What became of many nodes, put together from what became of each: alike ones are told together. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from toolkit_installer.lifecycle.capture.comparing import Difference, Drifted, Fact, Findings
from toolkit_installer.lifecycle.capture.fleet import Refusal, Refused

_SCHEMA: Final = 1
_Key = TypeVar("_Key")


class Changed(msgspec.Struct, frozen=True):
    """Nodes on which a file became the same that nobody planned."""

    path: str
    against: str
    since: str
    diff: str
    nodes: tuple[str, ...]


class ChangedFact(msgspec.Struct, frozen=True):
    """Nodes of which the same is another than before."""

    what: str
    before: str
    after: str
    nodes: tuple[str, ...]


class Drift(msgspec.Struct, frozen=True):
    """Nodes on which somebody made the same of a managed file."""

    state: str
    against: str
    diff: str
    nodes: tuple[str, ...]


class DriftedFile(msgspec.Struct, frozen=True):
    """A managed file, on how many nodes it is not what was written, and what it is there."""

    path: str
    nodes: int
    groups: tuple[Drift, ...]


class Said(msgspec.Struct, frozen=True):
    """Nodes of which the same is said."""

    reason: str
    nodes: tuple[str, ...]


class Totals(msgspec.Struct, frozen=True):
    """How many captures could be used, and how many nodes there are of each kind."""

    before: int
    after: int
    compared: int
    unplanned: int
    drifted: int
    lagging: int
    untold: int
    unusable: int


class Summary(msgspec.Struct, frozen=True):
    """The answer of `compare --json`. Its form has a number, as that of `replay --json`."""

    schema: int
    version: str
    nodes: Totals
    unplanned: tuple[Changed, ...]
    facts: tuple[ChangedFact, ...]
    drift: tuple[DriftedFile, ...]
    lagging: tuple[Said, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    untold: tuple[Said, ...]
    unusable: tuple[Refused, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is unplanned, drifted, lagging or untold, and all captures could be used."""
        nodes = self.nodes
        return not (nodes.unplanned or nodes.drifted or nodes.lagging or nodes.untold or nodes.unusable)


class Comparison:
    """Takes up one node after another; of each, only its name is kept once somebody had the same."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._after: list[str] = []
        self._differences: dict[Difference, list[str]] = {}
        self._facts: dict[Fact, list[str]] = {}
        self._drifted: dict[Drifted, list[str]] = {}
        self._lags: dict[str, list[str]] = {}
        self._untold: dict[str, list[str]] = {}
        self._installers: dict[str, str] = {}
        self._releases: dict[str, str] = {}
        self._unusable: dict[str, Refused] = {}

    def add(self, node: str, findings: Findings) -> None:
        """Take up a node that has a later capture."""
        for each in findings.differences:
            self._differences.setdefault(each, []).append(node)
        for fact in findings.facts:
            self._facts.setdefault(fact, []).append(node)
        for drifted in findings.drifted:
            self._drifted.setdefault(drifted, []).append(node)
        for reason in findings.lags:
            self._lags.setdefault(reason, []).append(node)
        for what in findings.untold:
            self._untold.setdefault(what, []).append(node)
        if findings.installer is not None:
            self._installers[node] = findings.installer
        if findings.release is not None:
            self._releases[node] = findings.release

    def name(self, before: Iterable[str], after: Iterable[str]) -> None:
        """Take up the names of the nodes that there is a capture of, before and after."""
        self._before = sorted(before)
        self._after = sorted(after)

    def refuse(self, file: str, refusal: Refusal) -> None:
        """Take up a capture that cannot be used."""
        known = self._unusable.setdefault(refusal.reason, Refused(refusal.reason, refusal.hint, refusal.code, []))
        known.nodes.append(file)

    def summary(self, version: str) -> Summary:
        """Return what all of them come to."""
        lags = {reason: list(nodes) for reason, nodes in self._lags.items()}
        for what, versions in (("toolkit-installer", self._installers), ("the toolkit", self._releases)):
            for node, reason in older_than_most(what, versions).items():
                lags.setdefault(reason, []).append(node)
        before, after = set(self._before), set(self._after)
        unplanned = _nodes([*self._differences.values(), *self._facts.values()])
        return Summary(
            schema=_SCHEMA,
            version=version,
            nodes=Totals(
                before=len(before),
                after=len(after),
                compared=len(before & after),
                unplanned=unplanned,
                drifted=_nodes(self._drifted.values()),
                lagging=_nodes(lags.values()),
                untold=_nodes(self._untold.values()),
                unusable=sum(len(each.nodes) for each in self._unusable.values()),
            ),
            unplanned=tuple(
                Changed(each.path, each.against, each.since, each.diff, nodes)
                for each, nodes in _sorted(self._differences)
            ),
            facts=tuple(ChangedFact(each.what, each.before, each.after, nodes) for each, nodes in _sorted(self._facts)),
            drift=tuple(self._drift()),
            lagging=tuple(Said(reason, nodes) for reason, nodes in _sorted(lags)),
            only_before=tuple(sorted(before - after)),
            only_after=tuple(sorted(after - before)),
            untold=tuple(Said(what, nodes) for what, nodes in _sorted(self._untold)),
            unusable=tuple(sorted(self._unusable.values(), key=lambda each: (-len(each.nodes), each.reason))),
        )

    def _drift(self) -> list[DriftedFile]:
        by_path: dict[str, list[Drift]] = {}
        for each, nodes in _sorted(self._drifted):
            by_path.setdefault(each.path, []).append(Drift(each.state, each.against, each.diff, nodes))
        found = [
            DriftedFile(path, _nodes(group.nodes for group in groups), tuple(groups))
            for path, groups in by_path.items()
        ]
        return sorted(found, key=lambda file: (-file.nodes, file.path))


def older_than_most(what: str, versions: dict[str, str]) -> dict[str, str]:
    """Return why nodes lag whose version is older than the one that most have, the newest of those that as many have.

    `versions` are those of the nodes, by their names.
    """
    counted = Counter(versions.values())
    if not counted:
        return {}
    usual = max(counted, key=lambda version: (counted[version], _numbers(version), version))
    return {
        node: f"{what} is {version} there, and {usual} on most nodes"
        for node, version in versions.items()
        if _numbers(version) < _numbers(usual)
    }


def _numbers(version: str) -> list[int]:
    """Return the numbers with which a version begins; a pre-release counts as its release."""
    begun = re.match(r"v?([0-9]+(?:\.[0-9]+)*)", version)
    return [int(part) for part in begun[1].split(".")] if begun is not None else []


def _nodes(groups: Iterable[Sequence[str]]) -> int:
    return len({node for nodes in groups for node in nodes})


def _sorted(groups: dict[_Key, list[str]]) -> list[tuple[_Key, tuple[str, ...]]]:
    """Return groups of nodes, the largest first."""
    found = [(key, tuple(nodes)) for key, nodes in groups.items()]
    return sorted(found, key=lambda group: (-len(group[1]), str(group[0])))
