"""The command that says what is seen on the node, what that means, and what a run would work on. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolkit_installer.cli import output
from toolkit_installer.driver import gpus
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.detect import decide
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.node.node import Node
from toolkit_installer.settings import Settings


def show(node: Node, settings: Settings, *, as_json: bool) -> int:
    """Print what was seen and decided; return 0, or the exit code of why nothing was decided. Raises OutputError."""
    facts, error = look(node, settings)
    output.show(json.dumps(facts, indent=2).split("\n") if as_json else _lines(facts))
    # why nothing was decided is part of the answer, and is said once
    return ExitCode.DONE if error is None else error.exit_code


def look(node: Node, settings: Settings) -> tuple[dict[str, Any], ConfigurationError | None]:
    """Return what was seen and decided as JSON values, and why nothing was decided."""
    seen = decide.gather_evidence(node, settings)
    decided: Sequence[EngineTarget] = ()
    error: ConfigurationError | None = None
    try:
        decided = decide.detect(node, settings, seen)
    except ConfigurationError as refusal:
        error = refusal
    facts = {
        "decided": [_facts(node, target) for target in decided],
        "error": None if error is None else {"reason": error.reason, "hint": error.hint},
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


def _facts(node: Node, target: EngineTarget) -> dict[str, Any]:
    """Return what a run would work on. What is wrong with the engine's files is said, and no reason to say no more."""
    row = target.distribution
    assert row is not None  # noqa: S101  # whoever detects an engine says whose it is
    facts: dict[str, Any] = {
        "engine": target.name,
        "distribution": row.name,
        "why": target.why,
        "how": row.configured,
        "socket": target.socket or row.socket,
        "config": target.config or row.config,
        "drop_in": target.asked.drop_in or row.drop_in,
        "unit": None,
        "files": [],
        "version": None,
        "trouble": None,
    }
    try:
        inspection = adapter_of(target.name).inspect(node, target)
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
    lines += ["", "GPUs:", *(f"  {each}" for each in facts["gpus"])]
    if facts["error"] is not None:
        lines += ["", f"Not decided: {facts['error']['reason']}"]
        lines += [f"  Hint: {facts['error']['hint']}"] if facts["error"]["hint"] else []
    return lines
