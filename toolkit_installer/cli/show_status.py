"""What `plan` and `status` show to people and machines."""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any

from toolkit_installer import __version__
from toolkit_installer.cli import output
from toolkit_installer.cli.output import DiffLine
from toolkit_installer.driver import gpus
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import DesiredFile, EngineSilentError
from toolkit_installer.lifecycle.plan import EngineWork, mismatches, moved, superseded
from toolkit_installer.node import locks
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import drift
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt, State
from toolkit_installer.settings import EngineName, ReloadMode, Settings
from toolkit_installer.toolkit.layout import ToolkitFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from toolkit_installer.lifecycle.prepare import Prepared

_ASK_SECONDS = 5.0


# --- plan ----------------------------------------------------------------------------------------------------------


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


# --- status --------------------------------------------------------------------------------------------------------


def show_status(node: Node, settings: Settings, receipt: Receipt | None, *, as_json: bool) -> None:
    """Print whether and how the node is configured. Raises OutputError."""
    facts = _facts(node, settings, receipt)
    output.show(json.dumps(facts, indent=2).split("\n") if as_json else _status_lines(facts))


def _facts(node: Node, settings: Settings, receipt: Receipt | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "version": __version__,
        "installed": receipt is not None and receipt.state is State.INSTALLED,
        "state": receipt.state.value if receipt is not None else "absent",
        "running_pid": _holder(node, settings, receipt),
        "gpus": list(gpus.find_gpus(node).words),
        "toolkit": None,
        "engines": [],
        "specifications": [],
    }
    if receipt is not None:
        places = {name: posixpath.join(receipt.toolkit_folder, name) for name in receipt.toolkit_files}
        missing = [name for name, path in places.items() if node.files.own_status(path) is None]
        facts["toolkit"] = {"folder": receipt.toolkit_folder, "files": len(receipt.toolkit_files), "missing": missing}
        facts["engines"] = [_engine_facts(node, engine) for engine in receipt.engines]
        facts["specifications"] = [_file_facts(node, file) for file in receipt.specifications]
    return facts


def _holder(node: Node, settings: Settings, receipt: Receipt | None) -> int | None:
    """Return the PID of the running instance, under whichever of the program's names it runs."""
    paths = [settings.pid_file, *([receipt.pid_file] if receipt is not None else [])]
    return next((pid for path in paths if (pid := locks.holder(node.files, path)) is not None), None)


def _engine_facts(node: Node, engine: EngineRecord) -> dict[str, Any]:
    try:
        live = adapter_of(engine.name).ask(node, engine.socket, _ASK_SECONDS)
    except EngineSilentError as error:
        answer: dict[str, Any] = {"answers": False, "served": None, "detail": [str(error)], "own": []}
    else:
        wrong = mismatches(live, dict(engine.handlers), engine.default)
        own = sorted(live.own)
        answer = {"answers": True, "served": not wrong, "detail": wrong, "version": live.version, "own": own}
    return {
        "name": engine.name,
        "socket": engine.socket,
        "handlers": dict(engine.handlers),
        "default": engine.default,
        "files": [_file_facts(node, file) for file in engine.files],
        "live": answer,
    }


def _file_facts(node: Node, file: FileRecord) -> dict[str, Any]:
    return {"path": file.path, "state": drift.state_of(node, file)}


def _status_lines(facts: dict[str, Any]) -> list[str]:
    state = "installed" if facts["installed"] else {"absent": "not installed"}.get(facts["state"], facts["state"])
    running = f"PID {facts['running_pid']}" if facts["running_pid"] else "nobody"
    lines = [f"State:   {state}", f"Running: {running}", *(f"GPU:     {each}" for each in facts["gpus"])]
    if facts["toolkit"] is not None:
        missing = facts["toolkit"]["missing"]
        lines.append(
            f"Toolkit: {facts['toolkit']['folder']}, {facts['toolkit']['files']} files"
            + (f", MISSING: {', '.join(missing)}" if missing else "")
        )
    for engine in facts["engines"]:
        live = engine["live"]
        served = "does not answer" if not live["answers"] else "serves them" if live["served"] else "SERVES THEM NOT"
        lines.append(f"Engine:  {engine['name']} on {engine['socket']}: {served}")
        lines += [f"         {detail}" for detail in live["detail"]]
        for name, path in engine["handlers"].items():
            default = " (default)" if name == engine["default"] else ""
            also = ", which the distribution registers too" if name in live["own"] else ""
            lines.append(f"Handler: {name}{default} -> {path}{also}")
        lines += [f"File:    {file['path']}: {file['state']}" for file in engine["files"]]
    lines += [f"CDI:     {file['path']}: {file['state']}" for file in facts["specifications"]]
    return lines
