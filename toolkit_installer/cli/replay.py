"""The command that plans for nodes by what was captured of them: in several processes, and one node after the other."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.cli import captures, new_file, output, show_plan, show_replay
from toolkit_installer.cli.options import build
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.cli.show_plan import Planned
from toolkit_installer.documents import diff
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.fleet import record
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.forecast import OUTCOMES, Fleet, Impact, Outcome, Refusal, Supposed
from toolkit_installer.fleet.record import NotCapturedError, Player
from toolkit_installer.node.node import Node
from toolkit_installer.planning.plan import EngineFacts
from toolkit_installer.reporting import diagnosis
from toolkit_installer.reporting.diagnosis_form import Finding
from toolkit_installer.run import dry_run

_SOURCE_ROOT = "source_root"
_NOT_CAPTURED = "not-captured"
_CAPTURE_AGAIN = "capture the node again, with these options"


class How(msgspec.Struct, frozen=True):
    """What is asked of a replay. `given` are the texts of the options that stand in for those of the captures."""

    given: Mapping[str, Sequence[str]]
    payload: str | None = None
    each: bool = False
    as_json: bool = False
    html: str | None = None
    """Where the page is to be written."""
    versions: Mapping[str, str] = {}
    """Of which version engines are supposed to be, by their names."""
    debug: bool = False

    @property
    def options(self) -> dict[str, Sequence[str]]:
        """The texts of all options that stand in for those of the captures."""
        return {**self.given, **({_SOURCE_ROOT: (self.payload,)} if self.payload is not None else {})}

    @property
    def here(self) -> tuple[str, ...]:
        """The folders of this machine that are looked at."""
        return tuple(self.options[_SOURCE_ROOT]) if _SOURCE_ROOT in self.options else ()


def replay(places: Sequence[str], how: How) -> int:
    """Print how the nodes would fare; return the exit code. Raises UsageError, OutputError, ConfigurationError."""
    if how.html is not None:
        new_file.require(how.html)
    files = list(dict.fromkeys(path for place in places for path in captures.files(place)))
    how = msgspec.structs.replace(how, each=how.each or (len(files) == 1 and not how.as_json))
    fleet = Fleet()
    refused: Refusal | None = None
    for outcome in captures.each(functools.partial(_replayed, how=how), files, _lost):
        fleet.add(outcome)
        refused = outcome.refusal or refused
        if how.each and not how.as_json:
            if len(files) > 1:
                output.show([show_replay.title(outcome)])
            output.show(DiffLine(text, diff.painted) if of_diff else text for text, of_diff in outcome.lines)
            output.show(show_replay.unknown(outcome))
            if outcome.refusal is not None:
                _explain(outcome, outcome.refusal)
    summary = fleet.summary(__version__)
    if how.as_json:
        output.show(json.dumps(msgspec.to_builtins(summary), indent=2).split("\n"))
    elif len(files) > 1:
        output.show(show_replay.lines(summary))
    if how.html is not None:
        _write_page(how, how.html, fleet, len(files))
    return ExitCode.DONE if refused is None else ExitCode.BAD_CONFIGURATION


def _write_page(how: How, path: str, fleet: Fleet, count: int) -> None:
    """Write the page, and say so. Raises OutputError."""
    from toolkit_installer.fleet import page  # noqa: PLC0415  # where it is asked for

    supposed = "".join(f", with {engine} as if it were {version}" for engine, version in how.versions.items())
    about = f"Planned by toolkit-installer {__version__}, without touching a node{supposed}."
    rows, changes = page.shown(fleet.fates)
    text = page.page(f"Replay of {count:,} capture{'' if count == 1 else 's'}", about, OUTCOMES, rows, changes)
    new_file.write(path, text.encode(errors="backslashreplace"))
    log.get().info("Wrote the page of the replay", key="replay-page-written", file=path, nodes=len(rows))


def _lost(path: str, _capture: str | None, refusal: Refusal) -> Outcome:
    return Outcome(path, path, refusal=refusal)


def _replayed(path: str, how: How) -> Outcome:
    """Return how the node of a capture would fare."""
    name, player, illnesses = path, None, None
    try:
        with captures.limited(path):
            found = captures.read(path)
            name, player = found.node, Player(found, how.here, how.versions)
            illnesses = _illnesses(found, path, player)
            return msgspec.structs.replace(_planned(found, path, how, player), illnesses=illnesses)
    except InstallerError as error:
        refusal = captures.refusal(error)
    except NotCapturedError as error:
        refusal = Refusal(str(error), _CAPTURE_AGAIN, int(ExitCode.USAGE), _NOT_CAPTURED)
    supposed = _supposed(player, player.captured) if player is not None else ()
    return Outcome(name, path, refusal=refusal, supposed=supposed, illnesses=illnesses)


def _illnesses(found: Archive, path: str, player: Player) -> tuple[Finding, ...] | None:
    """Return what `diagnose` found on the node, None where the capture does not have it. Raises InstallerError."""
    settings = captures.settings(found.given, found.environment, path)
    try:
        with record.played_by(player):
            return diagnosis.diagnose(Node(found.root, found.programs_root, whole=found.whole), settings).findings
    except NotCapturedError:
        return None


def _planned(found: Archive, path: str, how: How, player: Player) -> Outcome:
    """Return how the node would fare. Raises InstallerError, NotCapturedError."""
    given = {**found.given, **how.options}
    if build.DESTINATION in how.given:  # it stands in for the flag, too
        given.pop("install_dir", None)
    elif "install_dir" in how.given:
        given.pop(build.DESTINATION, None)
    settings = captures.settings(given, found.environment, path)
    quiet = contextlib.nullcontext() if how.debug else log.unheard()
    with quiet, record.played_by(player):
        node = Node(found.root, found.programs_root, whole=found.whole)
        own_container.refuse(node, settings, own_container.asked_for(settings))
        holds = dry_run.holder(settings, node)
        seen = dry_run.foresee(settings, node)
        stops = holds or seen.stops
        planned = show_plan.as_value(node, settings, seen.seen, stops)
        lines = show_plan.as_lines(node, seen.seen, stops) if how.each else []
    # an instance that is at work is what an upgrade takes the place of: no reason of the node's
    return Outcome(
        found.node,
        path,
        planned=msgspec.to_builtins(planned),
        refusal=captures.refusal(seen.stops) if seen.stops is not None else None,
        lines=tuple((line, False) if isinstance(line, str) else (line.text, True) for line in lines),
        impact=_impact(planned),
        at_work=holds is not None,
        systems=tuple(map(_system, seen.seen.facts.engines)) if seen.seen is not None else (),
        untried=tuple(player.untried),
        supposed=_supposed(player, [engine.name for engine in planned.engines]),
        incomplete=bool(found.unread),
    )


def _system(engine: EngineFacts) -> str:
    """Return an engine in words: its name, its version and whose it is."""
    name, row = engine.request.target.name, engine.request.target.distribution
    whose = f" of {row.name}" if row is not None and row.name != name else ""
    live = engine.inspection.live
    return f"{name}{whose}, not running" if live is None else f"{name} {live.version}{whose}"


def _supposed(player: Player, engines: Iterable[str]) -> tuple[Supposed, ...]:
    """Return which of these engines were planned for as if they were of another version."""
    return tuple(
        Supposed(name, player.versions[name], player.captured.get(name)) for name in engines if name in player.versions
    )


def _impact(planned: Planned) -> Impact:
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


def _explain(outcome: Outcome, refusal: Refusal) -> None:
    """Say in the log why a node would refuse."""
    log.get().error(
        "The node would refuse",
        key="replay-refused",
        node=outcome.node,
        reason=refusal.reason,
        code=refusal.code,
        capture=outcome.file,
        hint=refusal.hint,
    )
