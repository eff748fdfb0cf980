"""The output of `plan`, as text and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer import __version__
from toolkit_installer.cli import output
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.documents import diff
from toolkit_installer.documents.masking import mask
from toolkit_installer.driver import gpus
from toolkit_installer.driver.gpus import Gpus
from toolkit_installer.errors import InstallerError
from toolkit_installer.node.node import Node
from toolkit_installer.planning.method import RejectedMethod
from toolkit_installer.planning.plan import EngineWork, find_moved_engine, find_superseded
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.settings import ReloadMode, Settings
from toolkit_installer.toolkit import wrappers
from toolkit_installer.toolkit.layout import ToolkitFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit_installer.applying.impact import ReloadImpact
    from toolkit_installer.planning.prepare import Prepared


class PlannedFile(msgspec.Struct, frozen=True):
    """A file that would be changed, with its unified diff, secrets masked."""

    path: str
    diff: str


class PlannedMethod(msgspec.Struct, frozen=True):
    """How containers are to get the GPU, why, and which other methods were passed over."""

    name: str
    why: str
    passed_over: tuple[RejectedMethod, ...]


class PlannedEngine(msgspec.Struct, frozen=True):
    """What would change for an engine. `reload` is None if it would not be reloaded."""

    name: str
    notes: tuple[str, ...]
    files: tuple[PlannedFile, ...]
    reload: str | None
    unit: str | None
    why: str
    impact: ReloadImpact | None
    """What the reload affects, None if there is none."""


class Planned(msgspec.Struct, frozen=True):
    """The output of `plan --json`: what `run` would do. `schema` is the version of its form, as in `status --json`."""

    schema: int
    version: str
    summary: str
    stops: str | None
    """What would stop `run`, None if nothing would."""
    nothing_to_do: bool
    gpus: tuple[str, ...]
    toolkit_folder: str
    install: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    engines: tuple[PlannedEngine, ...] = ()
    given_back: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    files: tuple[PlannedFile, ...] = ()
    """The toolkit's config.toml, and CDI specifications."""
    waits_for: str | None = None
    """What `run` would wait for before it does any of this (`--reload-when`), None for nothing."""
    method: PlannedMethod | None = None
    """None if no engine was inspected."""
    nri_socket: str | None = None
    """Where `run` would serve the NRI plugin while it waits, None if it would serve none."""


_SCHEMA = 1
_CONTAINER_FATES = {
    True: "containers keep running",
    False: "its containers END, as live-restore is off",
    None: "its containers end unless live-restore is on",
}
"""What happens to containers, by what the engine reports: all engines but docker keep them."""
_LEFT_ALONE = "Nothing to do: the node is to be left alone without a GPU (--without-gpu idle)."
_NOTHING = "Nothing to do: the node is as it should be."


def show(node: Node, settings: Settings, seen: Prepared | None, stops: InstallerError | None, *, as_json: bool) -> None:
    """Print what `run` would do, and what would stop it; `seen` is None for a node without a GPU that is left alone.

    Raises OutputError, NodeError.
    """
    if as_json:
        planned = as_value(node, settings, seen, stops)
        output.show(json.dumps(msgspec.to_builtins(planned), indent=2).split("\n"))
    else:
        output.show(as_lines(node, seen, stops))


def as_value(node: Node, settings: Settings, seen: Prepared | None, stops: InstallerError | None) -> Planned:
    """Return what `run` would do, and what would stop it, as a value. Raises NodeError."""
    shown, why = gpus.find_gpus(node), str(stops) if stops is not None else None
    if seen is not None:
        return _planned(node, seen, why, shown)
    folder = settings.toolkit.folder
    return Planned(_SCHEMA, __version__, _LEFT_ALONE, why, nothing_to_do=True, gpus=shown.words, toolkit_folder=folder)


def as_lines(node: Node, seen: Prepared | None, stops: InstallerError | None) -> list[str | DiffLine]:
    """Return the same as lines for people. Raises NodeError."""
    shown = gpus.find_gpus(node)
    stopped = [f"`run` would stop before it does any of this: {stops.reason}", ""] if stops is not None else []
    told = lines(node, seen) if seen is not None else [_LEFT_ALONE]
    return [*stopped, *told, f"GPUs of the node: {shown}"]


def _planned(node: Node, seen: Prepared, stops: str | None, shown: Gpus) -> Planned:
    plan, others = seen.plan, _find_removed_engines(seen)
    nothing = plan.empty and not others
    files = [(each.path, each.file.content, each.target) for each in plan.specifications if each.changes]
    return Planned(
        schema=_SCHEMA,
        version=__version__,
        summary=_NOTHING if nothing else _summary(seen, others),
        stops=stops,
        nothing_to_do=nothing,
        gpus=shown.words,
        toolkit_folder=plan.toolkit.folder,
        install=tuple(file.name for file in plan.toolkit.write),
        remove=plan.toolkit.remove,
        engines=tuple(_planned_engine(work, _impact(node, seen, work)) for work in plan.engines),
        given_back=tuple(str(record.name) for record in others),
        waits_for=_waits_for(node, seen),
        nri_socket=nri.socket if (nri := seen.target.settings.nri) is not None else None,
        device_nodes=plan.device_nodes,
        files=(
            *(PlannedFile(path, _own_diff(path, *both)) for path, *both in _config(node, seen)),
            *(PlannedFile(path, diff.format_diff(path, *both)) for path, *both in files),
        ),
        method=_method(seen),
    )


def _method(seen: Prepared) -> PlannedMethod | None:
    if not seen.target.engines:
        return None
    choice = seen.plan.choice
    return PlannedMethod(choice.method.value, choice.reason, choice.passed_over)


def _impact(node: Node, seen: Prepared, work: EngineWork) -> ReloadImpact | None:
    """Return what the engine's reload affects; without a reload nothing is inspected."""
    if not work.reload_why:
        return None
    from toolkit_installer.applying import impact  # noqa: PLC0415  # only where a reload is due

    return impact.find_impact(node, work.name, work.inspection, work.reload, seen.plan.toolkit.folder)


def _waits_for(node: Node, seen: Prepared) -> str | None:
    """Return in words what `run` would wait for, None for nothing."""
    from toolkit_installer.applying.reload_gate import ReloadGate  # noqa: PLC0415  # as above

    pending = ReloadGate(seen.target.settings.reload_when, node).find_pending(seen)
    return pending.reason if pending is not None else None


def _planned_engine(work: EngineWork, impact: ReloadImpact | None) -> PlannedEngine:
    changed = [wanted for wanted in work.desired.files if wanted.changes]
    return PlannedEngine(
        name=str(work.name),
        notes=(*work.desired.faults, *work.desired.notes),
        files=tuple(
            PlannedFile(wanted.path, diff.format_diff(wanted.path, wanted.file.content, wanted.target))
            for wanted in changed
        ),
        reload=work.reload.mode.value if work.reload_why else None,
        unit=work.reload.unit,
        why=work.reload_why,
        impact=impact,
    )


def _find_removed_engines(seen: Prepared) -> tuple[EngineRecord, ...]:
    """Return the engines whose handlers are to be removed."""
    return find_superseded(seen.receipt.engines if seen.receipt is not None else (), seen.plan)


def _config(node: Node, seen: Prepared) -> list[tuple[str, bytes | None, bytes | None]]:
    """Return path, current and new content of the toolkit's config.toml, if it is to be written."""
    work = seen.plan.toolkit
    written = [file for file in work.write if file.name == wrappers.CONFIG_NAME]
    paths = [(f"{work.folder}/{file.name}", file.content) for file in written]
    return [(path, node.files.content(path), content) for path, content in paths]


def lines(node: Node, seen: Prepared) -> list[str | DiffLine]:
    """Return what `run` would do, with unified diffs in which secrets are masked."""
    work = seen.plan.toolkit
    recorded = seen.receipt.engines if seen.receipt is not None else ()
    others = _find_removed_engines(seen)
    lines: list[str | DiffLine] = [
        f"CDI specification: {each.path}: {each.note}" for each in seen.plan.specifications if each.note
    ]
    method = [f"Method: {seen.plan.choice}"] if seen.target.engines else []
    nri = seen.target.settings.nri
    if nri is not None:
        stay = "" if seen.plan.engines else "; the engine's files stay as they are"
        lines.insert(0, f"NRI plugin: served on {nri.socket} while `run` waits{stay}.")
    if seen.plan.empty and not others:
        return [*lines, _NOTHING, *method]
    waits_for = _waits_for(node, seen)
    waits = [f"`run` would wait before it does any of this, as --reload-when says: {waits_for}."] if waits_for else []
    lines = [_summary(seen, others), *waits, "", *lines, *method]
    if (record := find_moved_engine(recorded, seen.plan.engines)) is not None:
        lines.append(f"Engine {record.name}: the handlers are taken back first, from {_paths(record)}")
    lines += [f"Toolkit in {work.folder}: {len(work.write)} of {len(work.files)} files to write"]
    lines += [f"  {_describe_file(file)}" for file in work.write]
    lines += [f"  remove {name}" for name in work.remove]
    for path, now, to_come in _config(node, seen):
        lines += ["", "The toolkit's configuration:", *_painted(_own_diff(path, now, to_come))]
    for engine in seen.plan.engines:
        lines += ["", f"Engine {engine.name}:", *_engine_lines(engine, _impact(node, seen, engine))]
    lines += [f"Engine {record.name}: the handlers are taken back at last, from {_paths(record)}" for record in others]
    if seen.plan.device_nodes:
        lines += ["", f"Device nodes to create: {', '.join(seen.plan.device_nodes)}"]
    for each in seen.plan.specifications:
        if each.changes:
            lines += ["", "CDI specification:", *_diff_lines(each.path, each.file.content, each.target)]
    return lines


def _summary(seen: Prepared, others: Sequence[EngineRecord]) -> str:
    """Return a summary in one line: what is written, and what happens to the engines."""
    plan = seen.plan
    edited = sum(wanted.changes for engine in plan.engines for wanted in engine.desired.files)
    parts = [
        _counted(len(plan.toolkit.write), "file", "installed"),
        _counted(len(plan.toolkit.remove), "file", "removed"),
        _counted(edited, "file of the engine", "edited", "files of the engine"),
        _counted(sum(each.changes for each in plan.specifications), "CDI specification", "written"),
        *(_describe_reload(engine) for engine in plan.engines),
        *(f"{record.name} is given back" for record in others),
    ]
    before = {record.name: record.default for record in (seen.receipt.engines if seen.receipt is not None else ())}
    defaults = [
        f"{engine.desired.default} becomes the default runtime of {engine.name}"
        for engine in plan.engines
        if engine.changes and engine.desired.default not in (None, before.get(engine.name))
    ]
    return f"{', '.join(part for part in (*parts, *defaults) if part)}."


def _counted(number: int, noun: str, done: str, nouns: str = "") -> str:
    return f"{number} {noun if number == 1 else nouns or f'{noun}s'} {done}" if number else ""


def _describe_reload(engine: EngineWork) -> str:
    """Return in words whether an engine is reloaded or restarted."""
    if not engine.reload_why:
        return "" if not engine.changes else f"{engine.name} is not reloaded"
    if engine.reload.watched_by:
        return f"{engine.name} will be RESTARTED by {engine.reload.watched_by} (containers keep running)"
    if engine.reload.mode is ReloadMode.SIGNAL and not engine.reload.restarts:
        return f"{engine.name} will be reloaded (nothing is restarted)"
    live = engine.inspection.live
    fate = _CONTAINER_FATES[live.containers_outlive_it if live is not None else None]
    return f"{engine.name} will be RESTARTED ({fate})"


def _paths(record: EngineRecord) -> str:
    return ", ".join(file.path for file in record.files)


def _describe_file(file: ToolkitFile) -> str:
    if file.target is not None:
        return f"link   {file.name} -> {file.target}"
    if file.source is not None:
        return f"copy   {file.name} from {file.source}"
    return f"write  {file.name}"


def _own_diff(path: str, now: bytes | None, to_come: bytes | None) -> str:
    """Return the diff of a file that is wholly ours: its new lines are shown, and all others masked as in any file."""
    ours = frozenset((to_come or b"").decode(errors="backslashreplace").split("\n"))

    def shown(text: str) -> str:
        pairs = zip(text.split("\n"), mask(text).split("\n"), strict=True)
        return "\n".join(line if line in ours else masked for line, masked in pairs)

    return diff.format_diff(path, now, to_come, shown=shown)


def _diff_lines(path: str, now: bytes | None, to_come: bytes | None) -> list[DiffLine]:
    return _painted(diff.format_diff(path, now, to_come))


def _painted(text: str) -> list[DiffLine]:
    return [DiffLine(line, diff.colorize) for line in text.removesuffix("\n").split("\n")]


def _engine_lines(engine: EngineWork, impact: ReloadImpact | None) -> list[str | DiffLine]:
    lines: list[str | DiffLine] = [f"  {note}" for note in (*engine.desired.faults, *engine.desired.notes)]
    for wanted in engine.desired.files:
        if wanted.changes:
            lines += _diff_lines(wanted.path, wanted.file.content, wanted.target)
    if engine.reload_why:
        unit = f" of {engine.reload.unit}" if engine.reload.unit else ""
        lines.append(f"  Reload by {engine.reload.watched_by or engine.reload.mode}{unit}: {engine.reload_why}.")
        lines += _impact_lines(engine, impact) if impact is not None else []
    elif engine.reload.by_itself:
        lines.append("  No reload: the engine takes the change over by itself.")
    elif engine.reload.mode is ReloadMode.NONE:
        lines.append("  No reload: the engine serves the change after its next restart.")
    else:
        lines.append("  No reload: the engine serves this already.")
    return lines


def _impact_lines(engine: EngineWork, found: ReloadImpact) -> list[str]:
    from toolkit_installer.applying import impact  # noqa: PLC0415  # as above

    unit, by_systemd = (
        impact.find_restarted_unit(engine.inspection, engine.reload),
        engine.reload.mode is ReloadMode.SYSTEMD,
    )
    return [f"  {line}" for line in impact.describe_impact(engine.name, unit, found, by_systemd=by_systemd)]
