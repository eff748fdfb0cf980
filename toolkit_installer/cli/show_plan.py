"""What `plan` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toolkit_installer.cli import output
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.driver import gpus
from toolkit_installer.engines.api import DesiredFile
from toolkit_installer.lifecycle.plan import EngineWork, moved, superseded
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.settings import EngineName, ReloadMode
from toolkit_installer.toolkit.layout import ToolkitFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit_installer.lifecycle.prepare import Prepared


def show_gpus(node: Node, *words: str | DiffLine) -> None:
    """Print these words, and which GPUs the node shows. Raises OutputError, NodeError."""
    output.show([*words, f"GPUs of the node: {gpus.find_gpus(node)}"])


def plan_lines(seen: Prepared) -> list[str | DiffLine]:
    """Return what `run` would do, with unified diffs in which secrets are masked."""
    work = seen.plan.toolkit
    recorded = seen.receipt.engines if seen.receipt is not None else ()
    others = superseded(recorded, seen.plan.engines)
    lines: list[str | DiffLine] = [
        f"CDI specification: {each.path}: {each.note}" for each in seen.plan.specifications if each.note
    ]
    if seen.plan.empty and not others:
        return [*lines, "Nothing to do: the node is as it should be."]
    lines = [_summary(seen, others), "", *lines]
    if (record := moved(recorded, seen.plan.engines)) is not None:
        lines.append(f"Engine {record.name}: the handlers are taken back first, from {_paths(record)}")
    lines += [f"Toolkit in {work.folder}: {len(work.write)} of {len(work.files)} files to write"]
    lines += [f"  {_described(file)}" for file in work.write]
    lines += [f"  remove {name}" for name in work.remove]
    for engine in seen.plan.engines:
        lines += ["", f"Engine {engine.name}:", *_engine_lines(engine)]
    lines += [f"Engine {record.name}: the handlers are taken back at last, from {_paths(record)}" for record in others]
    if seen.plan.device_nodes:
        lines += ["", f"Device nodes to create: {', '.join(seen.plan.device_nodes)}"]
    for specification in seen.plan.specifications:
        if specification.changes:
            lines += ["", "CDI specification:", *_diff_lines(specification)]
    return lines


def _summary(seen: Prepared, others: Sequence[EngineRecord]) -> str:
    """Return in one line what people want to know first: what is written, and what becomes of the engines."""
    plan = seen.plan
    edited = sum(wanted.changes for engine in plan.engines for wanted in engine.desired.files)
    parts = [
        _counted(len(plan.toolkit.write), "file", "installed"),
        _counted(len(plan.toolkit.remove), "file", "removed"),
        _counted(edited, "file of the engine", "edited", "files of the engine"),
        _counted(sum(each.changes for each in plan.specifications), "CDI specification", "written"),
        *(_fate(engine) for engine in plan.engines),
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


def _fate(engine: EngineWork) -> str:
    """Return what becomes of an engine."""
    if not engine.reload_why:
        return "" if not engine.changes else f"{engine.name} is not reloaded"
    if engine.reload.watched_by:
        return f"{engine.name} will be RESTARTED by {engine.reload.watched_by} (containers keep running)"
    if engine.reload.mode is ReloadMode.SIGNAL and not engine.reload.restarts:
        return f"{engine.name} will be reloaded (nothing is restarted)"
    ends = engine.name is EngineName.DOCKER
    kept = "its containers end unless live-restore is set" if ends else "containers keep running"
    return f"{engine.name} will be RESTARTED ({kept})"


def _paths(record: EngineRecord) -> str:
    return ", ".join(file.path for file in record.files)


def _described(file: ToolkitFile) -> str:
    if file.target is not None:
        return f"link   {file.name} -> {file.target}"
    if file.source is not None:
        return f"copy   {file.name} from {file.source}"
    return f"write  {file.name}"


def _diff_lines(wanted: DesiredFile) -> list[DiffLine]:
    from toolkit_installer.documents import diff  # noqa: PLC0415  # `status` needs none

    text = diff.unified(wanted.path, wanted.file.content, wanted.target)
    return [DiffLine(line, diff.painted) for line in text.removesuffix("\n").split("\n")]


def _engine_lines(engine: EngineWork) -> list[str | DiffLine]:
    lines: list[str | DiffLine] = [f"  {note}" for note in engine.desired.notes]
    for wanted in engine.desired.files:
        if wanted.changes:
            lines += _diff_lines(wanted)
    if engine.reload_why:
        unit = f" of {engine.reload.unit}" if engine.reload.unit else ""
        lines.append(f"  Reload by {engine.reload.watched_by or engine.reload.mode}{unit}: {engine.reload_why}.")
    elif engine.reload.by_itself:
        lines.append("  No reload: the engine takes the change over by itself.")
    elif engine.reload.mode is ReloadMode.NONE:
        lines.append("  No reload: the engine serves the change after its next restart.")
    else:
        lines.append("  No reload: the engine serves this already.")
    return lines
