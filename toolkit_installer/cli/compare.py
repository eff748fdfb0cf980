"""The command `compare`: compares captures of nodes from before a rollout with captures from after it.

Two captures of a node show how a run was to leave it, how it was left, and what its status is. Printed for many nodes
together: unplanned changes, drift, nodes that are behind, and what could not be determined.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.cli import capture_workers, output, show_plan
from toolkit_installer.cli.options import build
from toolkit_installer.cli.options.table import BY_NAME
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.documents import diff
from toolkit_installer.driver import gpus, roots
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.fleet import compare as comparing
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.capture import NotCapturedError, Replayer
from toolkit_installer.fleet.compare import (
    CapturedText,
    ChangeGroup,
    CompareSummary,
    Comparison,
    DriftedFile,
    EarlierNode,
    Findings,
    LaterNode,
    ManagedState,
    RolloutStatus,
)
from toolkit_installer.fleet.forecast import Refusal
from toolkit_installer.node.node import Node
from toolkit_installer.planning.plan import find_moved_engine, find_superseded
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import file_records, trust
from toolkit_installer.receipt.schema import FileRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.run import dry_run
from toolkit_installer.settings import AUTO, Program, Settings, ToolkitSettings

_PLACES: Final = ("node_root", "host_root", "source_root", "driver_root_ctr_path", "dev_root_ctr_path")
"""Options that say where a capture was made from: each capture has its own."""
_GENERATED: Final = "generated"
"""The role of a file that a distribution regenerates when it starts."""
_DRIVER: Final = "the driver's version"
_GPUS: Final = "the GPUs"
_Value = TypeVar("_Value")


# --- the later capture ---


def inspect_after(found: Archive, path: str) -> tuple[LaterNode, RolloutStatus]:
    """Return a node after the rollout, and its status. Raises InstallerError if it cannot be replayed at all."""
    files = comparing.list_files(found, path)
    settings = capture_workers.build_settings(found.given, found.environment, path)
    with Replayer(found).replaying():
        node = Node(found.root, found.programs_root, whole=found.whole)
        try:
            receipt = _load_receipt(node, settings)
        except NotCapturedError as error:
            return LaterNode(files), RolloutStatus(untold=str(error), left_alone=True)
        except InstallerError as error:
            return LaterNode(files), RolloutStatus(refused=str(error))
        managed = tuple(_find_managed_state(node, file) for file in (receipt.files() if receipt is not None else ()))
        ignored = _list_own_paths(node, settings, receipt)
        known = LaterNode(files, managed, ignored=ignored)
        try:
            seen, status = _plan_status(node, settings, receipt)
            facts = _find_facts(node, seen)
        except NotCapturedError as error:
            return known, RolloutStatus(receipt, left_alone=True, untold=str(error))
        except InstallerError as error:
            return known, RolloutStatus(receipt, refused=str(error))
    if seen is None:
        return msgspec.structs.replace(known, facts=facts), status
    after = msgspec.structs.replace(
        known,
        own=_list_targets(found, seen),
        ignored=ignored | _list_generated_files(seen),
        programs=seen.target.payload.executables,
        facts=facts,
    )
    return after, status


def _load_receipt(node: Node, settings: Settings) -> Receipt | None:
    return trust.load(node, ReceiptStore(node, settings.toolkit.install_dir))


def _find_managed_state(node: Node, file: FileRecord) -> ManagedState:
    try:
        state: str | None = file_records.describe_state(node, file)
    except NotCapturedError:
        state = None
    return ManagedState(file.path, state, file.written)


def _plan_status(node: Node, settings: Settings, receipt: Receipt | None) -> tuple[Prepared | None, RolloutStatus]:
    """Return what a run would do with the node now, and the status that follows. Raises InstallerError."""
    own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
    fate = dry_run.simulate_run(settings, node)
    if fate.seen is None:
        return None, RolloutStatus(receipt, left_alone=True)
    if fate.stops is not None:
        return fate.seen, RolloutStatus(receipt, refused=str(fate.stops))
    planned = show_plan.as_value(node, settings, fate.seen, None)
    return fate.seen, RolloutStatus(receipt, pending=None if planned.nothing_to_do else planned.summary)


# --- the earlier capture ---


def inspect_before(found: Archive, path: str, later: Archive) -> tuple[EarlierNode, frozenset[str]]:
    """Return a node before the rollout, the planned result of a run with the later settings, and files to ignore.

    Raises ConfigurationError for a damaged capture.
    """
    files = comparing.list_files(found, path)
    ignored: frozenset[str] = frozenset()
    try:
        settings = _settings(found, later)
        with Replayer(found).replaying():
            node = Node(found.root, found.programs_root, whole=found.whole)
            ignored = _list_own_paths(node, settings, _load_receipt(node, settings))
            seen = dry_run.simulate_run(settings, node).seen
            if seen is None:
                return EarlierNode(files, facts=_find_facts(node, None)), ignored
            targets, facts = _list_targets(found, seen), _find_facts(node, seen)
            returned = {
                file.path: file.before.sha256 if file.before is not None else None
                for file in _list_restored_files(seen)
                if file.path not in targets
            }
    except NotCapturedError as error:
        return EarlierNode(files, unplanned_reason=str(error)), ignored
    except InstallerError as error:
        return EarlierNode(files, unplanned_reason=f"a run would have refused: {error}"), ignored
    programs = seen.target.payload.executables
    earlier = EarlierNode(files, targets, returned, programs=programs, facts=facts)
    return earlier, ignored | _list_generated_files(seen)


def _settings(found: Archive, later: Archive) -> Settings:
    """Return the later capture's settings with the earlier capture's `_PLACES`. Raises UsageError."""
    variables = {variable for name in _PLACES for variable in BY_NAME[name].variables}
    given = {
        **_without(later.given, _PLACES),
        **{name: texts for name, texts in found.given.items() if name in _PLACES},
    }
    environment = {
        **_without(later.environment, variables),
        **{name: value for name, value in found.environment.items() if name in variables},
    }
    return build.build(given, environment, Program.TOOLKIT_INSTALLER)


def _without(values: Mapping[str, _Value], names: Collection[str]) -> dict[str, _Value]:
    return {name: value for name, value in values.items() if name not in names}


def _list_restored_files(seen: Prepared) -> Iterator[FileRecord]:
    """Yield the engines' files that a run would restore."""
    recorded = seen.receipt.engines if seen.receipt is not None else ()
    for engine in find_superseded(recorded, seen.plan):
        yield from engine.files
    if (elsewhere := find_moved_engine(recorded, seen.plan.engines)) is not None:
        yield from elsewhere.files


# --- both captures ---


def _list_targets(found: Archive, seen: Prepared) -> dict[str, CapturedText]:
    """Return the contents that a run would give to the engines' files, by path."""
    return {
        wanted.path: comparing.make_planned_text(found, wanted.target, wanted.file.content)
        for work in seen.plan.engines
        for wanted in work.desired.files
        if wanted.role != _GENERATED
    }


def _list_own_paths(node: Node, settings: Settings, receipt: Receipt | None) -> frozenset[str]:
    """Return this program's own files and folders, which are judged by what a run would make of them."""
    own = [settings.toolkit.folder, ReceiptStore(node, settings.toolkit.install_dir).folder]
    own += [] if receipt is None else [receipt.toolkit_folder, *(each.path for each in receipt.specifications)]
    return frozenset({*own, os.path.dirname(settings.pid_file)})


def _list_generated_files(seen: Prepared) -> frozenset[str]:
    """Return the files that a run generates from the driver, or that a distribution generates."""
    generated = {file.path for work in seen.plan.engines for file in work.inspection.files if file.role == _GENERATED}
    return frozenset({*generated, *(each.path for each in seen.plan.specifications)})


def _find_facts(node: Node, seen: Prepared | None) -> dict[str, str]:
    """Return other facts to compare (GPUs, driver, engine versions), as far as known. Raises NodeError."""
    shown = gpus.find_gpus(node)
    found = {_GPUS: ", ".join(shown.words)} if shown.known else {}
    # a capture has the answer for every root, whichever its options name
    sought = ToolkitSettings(driver_root=AUTO, driver_root_ctr_path=AUTO, dev_root=AUTO, dev_root_ctr_path=AUTO)
    with contextlib.suppress(NotCapturedError):  # the capture does not have it
        driver = roots.find_driver(node, sought).driver
        if driver is not None and driver.version:
            found[_DRIVER] = driver.version
    for work in seen.plan.engines if seen is not None else ():
        if work.inspection.live is not None:
            found[f"{work.name}'s version"] = work.inspection.live.version
    return found


_SHOWN = 5
"""How many nodes of a group are named; --json names all."""
_HIDDEN_CHANGE = "  (only what is not shown is another: secrets, or what is no text)"


def lines(summary: CompareSummary) -> list[str | DiffLine]:
    """Return the summary as lines: the counts first, then each finding with its nodes."""
    nodes = summary.nodes
    found: list[str | DiffLine] = [
        (
            f"{_nodes(nodes.compared)} compared: {nodes.unplanned} with a change that nobody planned, {nodes.drifted} "
            f"with drift, {nodes.lagging} behind."
        ),
    ]
    if summary.only_before:
        found.append(f"{_nodes(len(summary.only_before))} only before: {_list_names(summary.only_before)}")
    if summary.only_after:
        found.append(f"{_nodes(len(summary.only_after))} only after: {_list_names(summary.only_after)}")
    for refused in summary.unusable:
        found += ["", f"{_count(len(refused.nodes), 'capture')} NOT USED: {refused.reason}"]
        found += [f"  Hint: {refused.hint}"] if refused.hint else []
        found.append(f"  {_list_names(refused.nodes)}")
    for said in summary.lagging:
        found += ["", f"{_nodes(len(said.nodes))} BEHIND: {said.reason}", f"  {_list_names(said.nodes)}"]
    for fact in summary.facts:
        found += [
            "",
            f"{_nodes(len(fact.nodes))} UNPLANNED: {fact.what}: {fact.before} before, {fact.after} after",
        ]
        found.append(f"  {_list_names(fact.nodes)}")
    for changed in summary.unplanned:
        found += ["", *_change_lines(changed)]
    for file in summary.drift:
        found += ["", *_drift_lines(file)]
    for said in summary.untold:
        found += ["", f"{_nodes(len(said.nodes))} NOT TOLD: {said.reason}", f"  {_list_names(said.nodes)}"]
    return found


def _change_lines(changed: ChangeGroup) -> Iterator[str | DiffLine]:
    yield f"{_nodes(len(changed.nodes))} UNPLANNED: {changed.path} is not as in {changed.against}; {changed.since}"
    yield f"  {_list_names(changed.nodes)}"
    yield from _diff_lines(changed.diff)


def _drift_lines(file: DriftedFile) -> Iterator[str | DiffLine]:
    yield f"{_nodes(file.nodes)} with DRIFT in {file.path}:"
    for group in file.groups:
        against = f"; from {group.against} to what stands there" if group.against else ""
        yield f"  {_nodes(len(group.nodes))}: {group.state}{against}: {_list_names(group.nodes)}"
        if group.against:
            yield from _diff_lines(group.diff)
        else:
            yield "  (what was written is in none of the captures, and a run would leave the file as it is)"


def _diff_lines(text: str) -> Iterator[str | DiffLine]:
    if not text:
        yield _HIDDEN_CHANGE
        return
    yield from (DiffLine(line, diff.colorize) for line in text.removesuffix("\n").split("\n"))


def _nodes(number: int) -> str:
    return _count(number, "node")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _list_names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{', '.join(nodes[:_SHOWN])}{more}"


class _NamedCapture(msgspec.Struct, frozen=True):
    """A capture's file, and its node, or why it cannot be used."""

    path: str
    node: str = ""
    refusal: Refusal | None = None


class _UnusableCapture(msgspec.Struct, frozen=True):
    """A capture of a pair that cannot be used, and why."""

    path: str
    refusal: Refusal


class _CapturePair(msgspec.Struct, frozen=True):
    """The captures of a node; `before` is None if it has only a later one."""

    node: str
    before: str | None
    after: str


def compare(before: str, after: str, *, as_json: bool, debug: bool) -> int:
    """Print what changed on the nodes; return the exit code. Raises UsageError, OutputError, ConfigurationError."""
    comparison = Comparison()
    earlier, later = (_find_captures(place, comparison) for place in (before, after))
    comparison.name(earlier, later)
    pairs = [_CapturePair(node, earlier.get(node), path) for node, path in sorted(later.items())]
    found = capture_workers.each_capture(functools.partial(_compare_pair, debug=debug), pairs, _lose_pair)
    for pair, findings in zip(pairs, found, strict=True):
        if isinstance(findings, _UnusableCapture):
            comparison.refuse(findings.path, findings.refusal)
        else:
            comparison.add(pair.node, findings)
    summary = comparison.summary(__version__)
    if as_json:
        output.show(json.dumps(msgspec.to_builtins(summary), indent=2).split("\n"))
    else:
        output.show(lines(summary))
    return ExitCode.DONE if summary.clean else ExitCode.BAD_CONFIGURATION


def _find_captures(place: str, comparison: Comparison) -> dict[str, str]:
    """Return the files of a set's captures, by node; unusable captures are recorded in `comparison`."""
    found: dict[str, str] = {}
    for each in capture_workers.each_capture(_name_capture, list(capture_workers.find_captures(place)), _lose):
        if each.refusal is not None:
            comparison.refuse(each.path, each.refusal)
        elif each.node in found:
            two = ConfigurationError(
                f"is a second capture of {each.node} in {place}", path=each.path, hint="leave one capture of each node"
            )
            comparison.refuse(each.path, capture_workers.make_refusal(two))
        else:
            found[each.node] = each.path
    return found


def _lose(path: str, _capture: str | None, refusal: Refusal) -> _NamedCapture:
    return _NamedCapture(path, refusal=refusal)


def _lose_pair(pair: _CapturePair, capture: str | None, refusal: Refusal) -> _UnusableCapture:
    return _UnusableCapture(capture or pair.after, refusal)


def _name_capture(path: str) -> _NamedCapture:
    try:
        with capture_workers.apply_limits(path):
            return _NamedCapture(path, capture_workers.read_capture(path).node)
    except InstallerError as error:
        return _NamedCapture(path, refusal=capture_workers.make_refusal(error))


def _compare_pair(pair: _CapturePair, *, debug: bool) -> Findings | _UnusableCapture:
    """Return what changed on a node."""
    path = pair.after
    try:
        with contextlib.nullcontext() if debug else log.suppress_lines():
            with capture_workers.apply_limits(path):
                later = capture_workers.read_capture(path)
                after, status = inspect_after(later, path)
            earlier = None
            if pair.before is not None:
                path = pair.before
                with capture_workers.apply_limits(path):
                    earlier, ignored = inspect_before(capture_workers.read_capture(path), path, later)
                after = msgspec.structs.replace(after, ignored=after.ignored | ignored)
            path = pair.after
            with capture_workers.apply_limits(path):
                return comparing.find_changes(earlier, after, status)
    except InstallerError as error:  # a capture is unusable; what a run would refuse is a finding
        return _UnusableCapture(path, capture_workers.make_refusal(error))
