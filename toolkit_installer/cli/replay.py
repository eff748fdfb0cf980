"""The command `replay`: plans runs on nodes from captures of them, in several processes.

It prints the plan of one node, or for many nodes the outcomes, equal ones together.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.cli import capture_workers, output, show_plan
from toolkit_installer.cli import files as new_file
from toolkit_installer.cli.options import build
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.cli.show_plan import Planned
from toolkit_installer.documents import diff
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.capture import NotCapturedError, Replayer
from toolkit_installer.fleet.forecast import (
    OUTCOMES,
    AssumedVersion,
    AssumptionGroup,
    Fleet,
    IllnessGroup,
    Impact,
    Outcome,
    OutcomeGroup,
    Refusal,
    RefusalGroup,
    ReplaySummary,
    list_diffs,
)
from toolkit_installer.node.node import Node
from toolkit_installer.planning.plan import EngineFacts
from toolkit_installer.reporting import diagnosis
from toolkit_installer.reporting.diagnosis_form import Finding
from toolkit_installer.run import dry_run

_SHOWN = 5
"""How many nodes of a group are named; --json names all."""


def title(outcome: Outcome) -> str:
    """Return the heading of a node's plan among several."""
    return f"=== {outcome.node} ({outcome.file})"


def list_unknowns(outcome: Outcome) -> Iterator[str]:
    """Yield what a plan from a capture cannot know, and a plan on the node can."""
    yield from map(_describe_assumption, outcome.supposed)
    for engine in outcome.untried:
        yield f"{engine}'s own binary has not been asked about this: on the node, `run` asks it before any change."


def lines(summary: ReplaySummary) -> list[str | DiffLine]:
    """Return the summary as lines: the counts first, then the nodes with equal outcomes."""
    nodes = summary.nodes
    found: list[str | DiffLine] = [
        f"{_nodes(nodes.captures)}: {nodes.converged} converged, {nodes.changed} changed, {nodes.refused} refused.",
        (
            f"Of those that change: {nodes.edited} with an engine's file edited, {nodes.reloaded} with an engine "
            f"reloaded, {nodes.restarted} of them by a restart."
        ),
        _describe_containers(summary.containers),
    ]
    if nodes.at_work:
        found.append(f"On {_nodes(nodes.at_work)} an installer was at work, which another one would make way for.")
    if nodes.incomplete:
        found.append(f"Of {_nodes(nodes.incomplete)} something could not be read when they were captured.")
    found += [f"On {_nodes(len(each.nodes))} {_describe_assumption(each)}" for each in summary.supposed]
    for engine, names in summary.untried.items():
        found.append(
            f"On {_nodes(len(names))} {engine}'s own binary has not been asked about this: {_list_names(names)}"
        )
    if summary.undiagnosed:
        named = _list_names(summary.undiagnosed)
        found.append(f"The captures of {_nodes(len(summary.undiagnosed))} do not say what illnesses they have: {named}")
    for illness in summary.illnesses:
        found += ["", *_illness_lines(illness)]
    for refused in summary.refusals:
        found += ["", *_refusal_lines(refused)]
    for group in summary.groups:
        found += ["", *_group_lines(group)]
    return found


def _describe_assumption(supposed: AssumedVersion | AssumptionGroup) -> str:
    engine, version, captured = supposed.engine, supposed.version, supposed.captured
    if captured is None:
        return (
            f"{engine} did not answer when it was captured: it is planned for without a version, and not as {version}."
        )
    return f"{engine} is planned for as {version}; its files, and all else that it says of itself, are of {captured}."


def _describe_containers(impact: Impact) -> str:
    unknown = f"; on {_nodes(impact.unknown)} that is not known" if impact.unknown else ""
    return (
        f"Containers on engines that are reloaded: {impact.running}, {impact.through_handlers} of them through "
        f"handlers of this program; {impact.end} END with their engine{unknown}."
    )


def _illness_lines(illness: IllnessGroup) -> Iterator[str]:
    first = illness.first
    where = first.path if first.line is None else f"{first.path}:{first.line}"
    yield f"{_nodes(len(illness.nodes))} ILL: {illness.title} ({illness.illness})"
    yield f"  For instance {where}: {first.what}"
    yield f"  Remedy: {first.remedy}"
    yield f"  {_list_names(illness.nodes)}"


def _refusal_lines(refused: RefusalGroup) -> Iterator[str]:
    yield f"{_nodes(len(refused.nodes))} REFUSED: {refused.reason}"
    if refused.hint:
        yield f"  Hint: {refused.hint}"
    yield f"  {_list_names(refused.nodes)}"


def _group_lines(group: OutcomeGroup) -> Iterator[str | DiffLine]:
    yield f"{_nodes(len(group.nodes))}: {group.title}"
    yield f"  {_list_names(group.nodes)}"
    for engine in group.planned["engines"]:
        yield from (f"  {engine['name']}: {note}" for note in engine["notes"])
    for text in list_diffs(group.planned):
        yield from (DiffLine(line, diff.colorize) for line in text.removesuffix("\n").split("\n"))


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"


def _list_names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{', '.join(nodes[:_SHOWN])}{more}"


_SOURCE_ROOT = "source_root"
_NOT_CAPTURED = "not-captured"
_CAPTURE_AGAIN = "capture the node again, with these options"


class ReplayOptions(msgspec.Struct, frozen=True):
    """The parameters of a replay. `given` are the option texts that replace those of the captures."""

    given: Mapping[str, Sequence[str]]
    payload: str | None = None
    each: bool = False
    as_json: bool = False
    html: str | None = None
    """The file to write the HTML page to."""
    versions: Mapping[str, str] = {}
    """The versions to assume for engines, by engine name."""
    debug: bool = False

    @property
    def options(self) -> dict[str, Sequence[str]]:
        """All option texts that replace those of the captures."""
        return {**self.given, **({_SOURCE_ROOT: (self.payload,)} if self.payload is not None else {})}

    @property
    def here(self) -> tuple[str, ...]:
        """The folders of this machine that the replay reads."""
        return tuple(self.options[_SOURCE_ROOT]) if _SOURCE_ROOT in self.options else ()


def replay(places: Sequence[str], how: ReplayOptions) -> int:
    """Print how the nodes would fare; return the exit code. Raises UsageError, OutputError, ConfigurationError."""
    if how.html is not None:
        new_file.require_new_file(how.html)
    files = list(dict.fromkeys(path for place in places for path in capture_workers.find_captures(place)))
    how = msgspec.structs.replace(how, each=how.each or (len(files) == 1 and not how.as_json))
    fleet = Fleet()
    refused: Refusal | None = None
    for outcome in capture_workers.each_capture(functools.partial(_replay_capture, how=how), files, _lose):
        fleet.add(outcome)
        refused = outcome.refusal or refused
        if how.each and not how.as_json:
            if len(files) > 1:
                output.show([title(outcome)])
            output.show(DiffLine(text, diff.colorize) if of_diff else text for text, of_diff in outcome.lines)
            output.show(list_unknowns(outcome))
            if outcome.refusal is not None:
                _log_refusal(outcome, outcome.refusal)
    summary = fleet.summary(__version__)
    if how.as_json:
        output.show(json.dumps(msgspec.to_builtins(summary), indent=2).split("\n"))
    elif len(files) > 1:
        output.show(lines(summary))
    if how.html is not None:
        _write_page(how, how.html, fleet, len(files))
    return ExitCode.DONE if refused is None else ExitCode.BAD_CONFIGURATION


def _write_page(how: ReplayOptions, path: str, fleet: Fleet, count: int) -> None:
    """Write the HTML page, and log that. Raises OutputError."""
    from toolkit_installer.fleet import forecast  # noqa: PLC0415  # for --html only

    supposed = "".join(f", with {engine} as if it were {version}" for engine, version in how.versions.items())
    about = f"Planned by toolkit-installer {__version__}, without touching a node{supposed}."
    rows, changes = forecast.make_rows(fleet.results)
    text = forecast.page(f"Replay of {count:,} capture{'' if count == 1 else 's'}", about, OUTCOMES, rows, changes)
    new_file.write(path, text.encode(errors="backslashreplace"))
    log.get().info("Wrote the page of the replay", key="replay-page-written", file=path, nodes=len(rows))


def _lose(path: str, _capture: str | None, refusal: Refusal) -> Outcome:
    return Outcome(path, path, refusal=refusal)


def _replay_capture(path: str, how: ReplayOptions) -> Outcome:
    """Return what a run would do on the node of a capture."""
    name, replayer, illnesses = path, None, None
    try:
        with capture_workers.apply_limits(path):
            found = capture_workers.read_capture(path)
            name, replayer = found.node, Replayer(found, how.here, how.versions)
            illnesses = _find_illnesses(found, path, replayer)
            return msgspec.structs.replace(_plan_node(found, path, how, replayer), illnesses=illnesses)
    except InstallerError as error:
        refusal = capture_workers.make_refusal(error)
    except NotCapturedError as error:
        refusal = Refusal(str(error), _CAPTURE_AGAIN, int(ExitCode.USAGE), _NOT_CAPTURED)
    supposed = _list_assumed(replayer, replayer.captured) if replayer is not None else ()
    return Outcome(name, path, refusal=refusal, supposed=supposed, illnesses=illnesses)


def _find_illnesses(found: Archive, path: str, replayer: Replayer) -> tuple[Finding, ...] | None:
    """Return what `diagnose` finds on the node, None if the capture lacks it. Raises InstallerError."""
    settings = capture_workers.build_settings(found.given, found.environment, path)
    try:
        with replayer.replaying():
            return diagnosis.diagnose(Node(found.root, found.programs_root, whole=found.whole), settings).findings
    except NotCapturedError:
        return None


def _plan_node(found: Archive, path: str, how: ReplayOptions, replayer: Replayer) -> Outcome:
    """Return what a run would do on the node. Raises InstallerError, NotCapturedError."""
    given = {**found.given, **how.options}
    if build.DESTINATION in how.given:  # it replaces the flag, too
        given.pop("install_dir", None)
    elif "install_dir" in how.given:
        given.pop(build.DESTINATION, None)
    settings = capture_workers.build_settings(given, found.environment, path)
    quiet = contextlib.nullcontext() if how.debug else log.suppress_lines()
    with quiet, replayer.replaying():
        node = Node(found.root, found.programs_root, whole=found.whole)
        own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
        holds = dry_run.find_running_installer(settings, node)
        seen = dry_run.simulate_run(settings, node)
        stops = holds or seen.stops
        planned = show_plan.as_value(node, settings, seen.seen, stops)
        lines = show_plan.as_lines(node, seen.seen, stops) if how.each else []
    # an upgrade replaces a running instance, so `holds` is no refusal by the node
    return Outcome(
        found.node,
        path,
        planned=msgspec.to_builtins(planned),
        refusal=capture_workers.make_refusal(seen.stops) if seen.stops is not None else None,
        lines=tuple((line, False) if isinstance(line, str) else (line.text, True) for line in lines),
        impact=_sum_impact(planned),
        at_work=holds is not None,
        systems=tuple(map(_describe_engine, seen.seen.facts.engines)) if seen.seen is not None else (),
        untried=tuple(replayer.untried),
        supposed=_list_assumed(replayer, [engine.name for engine in planned.engines]),
        incomplete=bool(found.unread),
    )


def _describe_engine(engine: EngineFacts) -> str:
    """Return an engine's name, version and distribution in words."""
    name, row = engine.request.target.name, engine.request.target.distribution
    whose = f" of {row.name}" if row is not None and row.name != name else ""
    live = engine.inspection.live
    return f"{name}{whose}, not running" if live is None else f"{name} {live.version}{whose}"


def _list_assumed(replayer: Replayer, engines: Iterable[str]) -> tuple[AssumedVersion, ...]:
    """Return those of these engines that were planned for with an assumed version."""
    return tuple(
        AssumedVersion(name, replayer.versions[name], replayer.captured.get(name))
        for name in engines
        if name in replayer.versions
    )


def _sum_impact(planned: Planned) -> Impact:
    found = [engine.impact for engine in planned.engines if engine.impact is not None]
    ends = [each for each in found if each.restarts and each.containers_keep_running is False]
    return Impact(
        reloads=len(found),
        restarts=sum(each.restarts for each in found),
        running=sum(each.running or 0 for each in found),
        through_handlers=sum(each.through_handlers or 0 for each in found),
        end=sum(each.running or 0 for each in ends),
        unknown=int(any(each.running is None or each.through_handlers is None for each in found)),
    )


def _log_refusal(outcome: Outcome, refusal: Refusal) -> None:
    """Log why a node would refuse."""
    log.get().error(
        "The node would refuse",
        key="replay-refused",
        node=outcome.node,
        reason=refusal.reason,
        code=refusal.code,
        capture=outcome.file,
        hint=refusal.hint,
    )
