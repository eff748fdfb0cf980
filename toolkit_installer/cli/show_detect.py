"""The command `detect`: prints evidence on the node, the decision, and what a run would configure. Changes nothing."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import click

from toolkit_installer.cli import output
from toolkit_installer.driver import gpus
from toolkit_installer.engines.api import get_adapter
from toolkit_installer.engines.detect import decide
from toolkit_installer.engines.target import EngineTarget, Request
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.node.node import Node
from toolkit_installer.planning import observe
from toolkit_installer.planning.method import CdiSupport, choose_method, find_obstacle
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import Settings
from toolkit_installer.toolkit.payload import RUNTIMES


def show(node: Node, settings: Settings, *, as_json: bool) -> int:
    """Print evidence and decision; return 0, or the exit code of the error if undecided. Raises OutputError."""
    facts, error = gather_facts(node, settings)
    output.show(json.dumps(facts, indent=2).split("\n") if as_json else map(_painted, output.wrap_lines(_lines(facts))))
    # the error is part of the output, and is not reported again
    return ExitCode.DONE if error is None else error.exit_code


def _painted(line: str) -> str | output.DiffLine:
    """Return a line with the colour of its kind: a decision, or a problem."""
    color = next((color for start, color in _COLORS.items() if line.startswith(start)), None)
    return line if color is None else output.DiffLine(line, functools.partial(click.style, fg=color, bold=True))


_COLORS = {"Decided:": "green", "Not decided:": "red", "  But:": "yellow"}


def gather_facts(node: Node, settings: Settings) -> tuple[dict[str, Any], ConfigurationError | None]:
    """Return evidence and decision as JSON values, and the error if undecided."""
    seen = decide.gather_evidence(node, settings)
    decided: Sequence[EngineTarget] = ()
    error: ConfigurationError | None = None
    try:
        receipt, _ = _receipt(node, settings)
        recorded = [each.name for each in receipt.served_engines()] if receipt is not None else []
        decided = decide.detect_engines(node, settings, seen, recorded)
    except ConfigurationError as refusal:
        error = refusal
    facts = {
        "decided": [_facts(node, target) for target in decided],
        "error": None if error is None else {"reason": error.reason, "hint": error.hint},
        "method": _method(node, settings, decided),
        "evidence": [
            {
                "kind": each.kind.value,
                "distribution": each.row.name if each.row is not None else None,
                "engine": each.row.engine if each.row is not None else None,
                "words": each.words,
            }
            for each in seen
        ],
        "gpus": list(gpus.find_gpus(node).words),
    }
    return facts, error


def _method(node: Node, settings: Settings, decided: Sequence[EngineTarget]) -> dict[str, Any] | None:
    """Return a run's method, or why the requested method is not possible; None if no engine was found."""
    if not decided:
        return None
    folder = settings.toolkit.cdi.folder
    receipt, unread = _receipt(node, settings)
    ways = []
    for target in decided:
        request = Request.of(target, RUNTIMES, settings.toolkit.folder)
        try:
            inspection = get_adapter(target.name).inspect(node, target)
        except InstallerError as error:
            base = CdiSupport(target.name, silence=str(error), folder=folder)
            ways.append(observe.add_record(base, receipt))
            continue
        ways.append(observe.inspect_cdi_support(node, request, inspection, receipt, folder))
    possible = {str(way.engine): find_obstacle(way) or None for way in ways}
    standing = observe.installed_method(receipt) if receipt is not None else None
    facts: dict[str, Any] = {
        "asked": settings.method.value,
        "installed": standing.value if standing is not None else None,
        "unread": unread,
        "cdi_is_out": possible,
    }
    try:
        choice = choose_method(settings.method, ways)
    except InstallerError as error:
        return facts | {"name": None, "why": str(error), "passed_over": []}
    over = [{"method": each.method, "why": each.why} for each in choice.passed_over]
    return facts | {"name": choice.method.value, "why": choice.reason, "passed_over": over}


def _receipt(node: Node, settings: Settings) -> tuple[Receipt | None, str | None]:
    """Return the node's receipt, and the error if it cannot be read, which does not stop the command."""
    try:
        return trust.load(node, ReceiptStore(node, settings.toolkit.install_dir)), None
    except InstallerError as error:
        return None, str(error)


def _facts(node: Node, target: EngineTarget) -> dict[str, Any]:
    """Return what a run would configure. An error in the engine's files is included, and does not stop the command."""
    row = target.distribution
    assert row is not None  # noqa: S101  # detection sets the distribution
    facts: dict[str, Any] = {
        "engine": target.name,
        "distribution": row.name,
        "why": target.why,
        "how": row.configured,
        "socket": target.socket or row.socket,
        "config": target.config or row.config,
        "drop_in": target.settings.drop_in or row.drop_in,
        "unit": None,
        "files": [],
        "version": None,
        "trouble": None,
    }
    try:
        inspection = get_adapter(target.name).inspect(node, target)
    except InstallerError as error:
        facts["trouble"] = str(error)
        return facts
    facts["files"] = [
        {"role": file.role, "path": file.path, "exists": file.found is not None} for file in inspection.files
    ]
    facts["socket"] = inspection.socket
    if inspection.live is None:
        facts["trouble"] = inspection.silence or None
    else:
        facts["version"] = inspection.live.version
        facts["unit"] = inspection.process.unit if inspection.process is not None else None
    return facts


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = ["Seen:"] if facts["evidence"] else ["Seen: nothing of any engine"]
    lines += [f"  {each['kind']:8}{each['words']}" for each in facts["evidence"]]
    for decided in facts["decided"]:
        version = f" {decided['version']}" if decided["version"] else ""
        lines += [
            "",
            f"Decided: {decided['engine']}{version}, as {decided['distribution']} has it",
            f"  Why:    {decided['why']}",
            f"  How:    {decided['how']}",
            f"  Socket: {decided['socket']}",
        ]
        lines += [f"  Unit:   {decided['unit']}"] if decided["unit"] else []
        lines += [
            f"  File:   {file['path']} ({file['role']}{'' if file['exists'] else ', absent'})"
            for file in decided["files"]
        ]
        lines += [f"  But:    {decided['trouble']}"] if decided["trouble"] else []
    lines += _method_lines(facts["method"])
    lines += ["", "GPUs:", *(f"  {each}" for each in facts["gpus"])]
    if facts["error"] is not None:
        lines += ["", f"Not decided: {facts['error']['reason']}"]
        lines += [f"  Hint: {facts['error']['hint']}"] if facts["error"]["hint"] else []
    return lines


def _method_lines(method: dict[str, Any] | None) -> list[str]:
    if method is None:
        return []
    lines = ["", f"Method: {method['name'] or 'none'} ({method['why']})"]
    lines += [f"  not {each['method']}: {each['why']}" for each in method["passed_over"]]
    lines += [f"  the node has {method['installed']} now"] if method["installed"] else []
    lines += [f"  what the node has is not known: {method['unread']}"] if method["unread"] else []
    return lines + [
        f"  cdi is out with {engine}: {engine} {why}" if why else f"  cdi can be had from {engine}"
        for engine, why in method["cdi_is_out"].items()
    ]
