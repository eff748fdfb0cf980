"""The command that compares captures of nodes from before a rollout with those from after it."""

from __future__ import annotations

import contextlib
import functools
import json

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.cli import captures, compared_nodes, output, show_compare
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.fleet import compare as comparing
from toolkit_installer.fleet.compare import Comparison, Findings
from toolkit_installer.fleet.forecast import Refusal


class _Named(msgspec.Struct, frozen=True):
    """A capture's file, and the node that it is of; or why it cannot be used."""

    path: str
    node: str = ""
    refusal: Refusal | None = None


class _Unusable(msgspec.Struct, frozen=True):
    """A capture of a pair that cannot be used, and why."""

    path: str
    refusal: Refusal


class _Pair(msgspec.Struct, frozen=True):
    """The captures of a node. `before` is None for one that has only a later one."""

    node: str
    before: str | None
    after: str


def compare(before: str, after: str, *, as_json: bool, debug: bool) -> int:
    """Print what became of the nodes; return the exit code. Raises UsageError, OutputError, ConfigurationError."""
    comparison = Comparison()
    earlier, later = (_by_node(place, comparison) for place in (before, after))
    comparison.name(earlier, later)
    pairs = [_Pair(node, earlier.get(node), path) for node, path in sorted(later.items())]
    found = captures.each(functools.partial(_compared, debug=debug), pairs, _lost_pair)
    for pair, findings in zip(pairs, found, strict=True):
        if isinstance(findings, _Unusable):
            comparison.refuse(findings.path, findings.refusal)
        else:
            comparison.add(pair.node, findings)
    summary = comparison.summary(__version__)
    if as_json:
        output.show(json.dumps(msgspec.to_builtins(summary), indent=2).split("\n"))
    else:
        output.show(show_compare.lines(summary))
    return ExitCode.DONE if summary.clean else ExitCode.BAD_CONFIGURATION


def _by_node(place: str, comparison: Comparison) -> dict[str, str]:
    """Return the files of the captures in one of the sets, by node; what cannot be used is taken up as that."""
    found: dict[str, str] = {}
    for each in captures.each(_named, list(captures.files(place)), _lost):
        if each.refusal is not None:
            comparison.refuse(each.path, each.refusal)
        elif each.node in found:
            two = ConfigurationError(
                f"is a second capture of {each.node} in {place}", path=each.path, hint="leave one capture of each node"
            )
            comparison.refuse(each.path, captures.refusal(two))
        else:
            found[each.node] = each.path
    return found


def _lost(path: str, _capture: str | None, refusal: Refusal) -> _Named:
    return _Named(path, refusal=refusal)


def _lost_pair(pair: _Pair, capture: str | None, refusal: Refusal) -> _Unusable:
    return _Unusable(capture or pair.after, refusal)


def _named(path: str) -> _Named:
    try:
        with captures.limited(path):
            return _Named(path, captures.read(path).node)
    except InstallerError as error:
        return _Named(path, refusal=captures.refusal(error))


def _compared(pair: _Pair, *, debug: bool) -> Findings | _Unusable:
    """Return what became of a node."""
    path = pair.after
    try:
        with contextlib.nullcontext() if debug else log.unheard():
            with captures.limited(path):
                later = captures.read(path)
                after, standing = compared_nodes.after(later, path)
            earlier = None
            if pair.before is not None:
                path = pair.before
                with captures.limited(path):
                    earlier, aside = compared_nodes.before(captures.read(path), path, later)
                after = msgspec.structs.replace(after, aside=after.aside | aside)
            path = pair.after
            with captures.limited(path):
                return comparing.findings(earlier, after, standing)
    except InstallerError as error:  # of the captures themselves: what a run would refuse is a finding
        return _Unusable(path, captures.refusal(error))
