"""Why an engine does not answer: its process is stopped or hangs, or its unit is masked, has failed or was stopped."""

from __future__ import annotations

import re

from toolkit_installer.engines.common import answering, serving
from toolkit_installer.lifecycle.health.form import ProcessState, SilentEngine
from toolkit_installer.node import trust
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt.schema import EngineRecord

_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "InactiveExitTimestamp")
_LOG_LINES = 3
_READ_LINES = 20
_LONGEST_LINE = 300
_STOPPED, _IN_KERNEL = "Tt", "D"
"""States of proc_pid_stat(5): stopped by a signal or by a debugger, and waiting in the kernel."""
_LEVEL = r'^(?:time="?[^" ]*"? )?level=\w+ (?:msg=)?|^\S+ dockerd\[\d+\]: '


def explain(node: Node, engine: EngineRecord, heard: str) -> SilentEngine:
    """Return why an engine does not answer, as far as its process and systemd show it.

    `heard` is how the question ended. The lines of its log may quote its files: values that may be secret are hidden.
    """
    process = serving.process_of(node, engine.name, engine.socket)
    unit, told = _unit(node, engine, process)
    state = _state(process, heard)
    active = told.get("ActiveState", "")
    is_masked = told.get("LoadState") == "masked"
    # of a unit that somebody stopped, the last lines are those of an ordinary end
    wants_log = (
        unit is not None and not is_masked and (active not in ("", "inactive") and state is not ProcessState.STOPPED)
    )
    return SilentEngine(
        pid=process.pid if process is not None else None,
        process=state,
        unit=unit,
        unit_state="masked" if is_masked and active != "active" else active or None,
        result=None if told.get("Result") in (None, "", "success") else told["Result"],
        log=_log(node, unit, told.get("InactiveExitTimestamp", "")) if unit is not None and wants_log else (),
    )


def process_state(pid: int) -> ProcessState | None:
    """Return whether a process is stopped, or waits in the kernel; None: neither, or it is gone."""
    letter = trust.state_of(pid)
    if letter and letter in _STOPPED:
        return ProcessState.STOPPED
    return ProcessState.IN_KERNEL if letter == _IN_KERNEL else None


def _state(process: Process | None, heard: str) -> ProcessState | None:
    """Return the state of an engine's process, None where none runs, or it refuses to answer without hanging."""
    if process is None:
        return None
    return process_state(process.pid) or (ProcessState.SILENT if heard.endswith(answering.SILENCE) else None)


def _unit(node: Node, engine: EngineRecord, process: Process | None) -> tuple[str | None, dict[str, str]]:
    """Return the engine's unit and what systemd says of it; nothing where there is none, or systemd does not tell."""
    units = serving.usual_units(engine.name, engine.socket)
    if process is not None and process.unit is not None:
        units = [process.unit]
    known = node.services.properties(units, _PROPERTIES) if units else None
    for unit, told in (known or {}).items():
        if told.get("LoadState") not in (None, "", "not-found"):
            return unit, told
    return None, {}


def _log(node: Node, unit: str, since: str) -> tuple[str, ...]:
    """Return the last lines of a unit's log that tell of trouble, as people may see them."""
    from toolkit_installer import foreign_words  # noqa: PLC0415  # of an engine that fails

    lines = node.services.trouble(unit, since, _READ_LINES) if since else []
    # that the unit has failed is known; why, the program itself says
    own = [line for line in lines if not line.startswith((f"{unit}: ", "Failed to start "))] or lines
    shown = (foreign_words.of_program(re.sub(_LEVEL, "", line)) for line in own[-_LOG_LINES:])
    return tuple(" ".join(line.split())[:_LONGEST_LINE] for line in shown)
