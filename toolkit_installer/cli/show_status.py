"""The output of `status`, the verdict first, and of `diagnose`, each illness with its effect and its remedy."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Iterator

import click
import msgspec

from toolkit_installer.cli import output
from toolkit_installer.receipt.schema import AS_WRITTEN
from toolkit_installer.reporting import status_verdict
from toolkit_installer.reporting.diagnosis_form import TITLES, Diagnosis, Finding
from toolkit_installer.reporting.outcome import LastRun
from toolkit_installer.reporting.status_verdict import (
    ABSENT,
    INSTALLED,
    EngineHealth,
    FileHealth,
    Health,
    MethodHealth,
    PluginHealth,
    SilentEngine,
    ToolkitHealth,
    Verdict,
)
from toolkit_installer.settings import Method

_LABEL = 9
"""Columns of the label before each fact."""


def show_status(health: Health, *, as_json: bool) -> None:
    """Print the node's status. Raises OutputError."""
    output.show(status_json(health).split("\n") if as_json else map(_painted, status_lines(health, output.width())))


_COLORS = {Verdict.OK: "green", Verdict.DEGRADED: "yellow", Verdict.BROKEN: "red"}


def _painted(line: str) -> str | output.DiffLine:
    """Return a line with the colour of the verdict that it begins with."""
    word = line.removeprefix("Verdict:").lstrip().partition(":")[0]
    if word not in list(Verdict):
        return line
    return output.DiffLine(line, functools.partial(click.style, fg=_COLORS[Verdict(word)]))


def status_json(health: Health) -> str:
    """Return the status as JSON text, the verdict first."""
    body = msgspec.to_builtins(health)
    first = {name: body.pop(name) for name in ("schema", "verdict", "reasons")}
    return json.dumps(first | body, indent=2)


def status_lines(health: Health, width: int | None) -> list[str]:
    """Return the status for people, in lines of at most `width` columns (None: of any length)."""
    return [line for label, text in _facts(health) for line in _fact_lines(label, text, width)]


_AS_IT_IS = "\0"
"""The label of a line that is not wrapped, such as a line of a diff."""


def _fact_lines(label: str, text: str, width: int | None) -> list[str]:
    """Return a fact's lines: the label before the first, and as many spaces before the others."""
    if label == _AS_IT_IS:
        return [f"{'':{_LABEL}}{text}"]
    head = f"{label:{_LABEL}}"
    return [f"{head}{text}".rstrip()] if width is None else _wrap(head, text, width)


def _facts(health: Health) -> Iterator[tuple[str, str]]:
    """Yield each fact with its label, which is empty if it belongs to the fact before."""
    yield "Verdict:", f"{health.verdict}{'' if health.reasons else _praise(health)}"
    for reason in health.reasons:
        yield "", f"{reason.verdict}: {reason.what}"
        yield "", f"-> {reason.remedy}"
    yield "State:", {ABSENT: "not installed"}.get(health.state, health.state) + _since(health.changed)
    yield "Running:", _running(health)
    if health.pending_reload is not None:
        waits = health.pending_reload
        yield "Pending:", f"a reload of {', '.join(waits.engines)}, since {waits.since}: {waits.reason}"
    if health.last_run is not None:
        yield from _last_run(health, health.last_run)
    yield from _gpus(health)
    if health.toolkit is not None:
        yield from _toolkit(health.toolkit)
    if health.method is not None:
        yield from _method(health.method, _would(health, health.method))
    for engine in health.engines:
        yield from _engine(engine)
    if health.plugin is not None:
        yield "Plugin:", _plugin(health.plugin)
    for specification in health.specifications:
        yield from _file("CDI:", specification)
    places = health.looked_in
    yield "Looked:", f"in {places.node_root} for {places.receipt} and {places.pid_file}"


def _praise(health: Health) -> str:
    if health.state == INSTALLED:
        by_cdi = health.method is not None and health.method.name == Method.CDI
        serves = "every engine gives CDI devices" if by_cdi else "every engine serves its handlers"
        if health.plugin is not None:
            serves = "the NRI plugin is connected"
        elif not health.engines:
            serves = "no engine is configured for it"
        return f": the toolkit is whole, and {serves}"
    return ": nothing is installed, and the node shows no GPU"


def _gpus(health: Health) -> Iterator[tuple[str, str]]:
    for gpu in health.gpus:
        yield "GPU:", gpu
    if (driver := health.driver) is not None:
        yield "Driver:", f"{driver.version} in {driver.root}" if driver.usable else "; ".join(driver.wrong)


def _plugin(plugin: PluginHealth) -> str:
    return f"NRI, connected to {plugin.engine}" if plugin.connected else f"NRI, NOT connected: {plugin.reason}"


def _since(changed: str | None) -> str:
    return "" if changed is None else f" (last changed {changed})"


def _running(health: Health) -> str:
    if health.running_pid is None:
        return "nobody" if health.killed_pid is None else f"nobody: PID {health.killed_pid} was killed"
    look = health.last_look
    did = "" if look is None else "last failed" if look.failure else "last brought the node up to date"
    over = look is not None and look.failure and health.verdict is Verdict.OK
    said = "" if look is None else f", which {did} at {look.at}{', and what it failed at is over' if over else ''}"
    return f"PID {health.running_pid}{said}"


def _last_run(health: Health, ended: LastRun) -> Iterator[tuple[str, str]]:
    """Yield how the last failed run ended, and its error, unless that is among the reasons."""
    yield "Last:", f"`{ended.command}` failed at {ended.ended} with exit code {ended.exit_code} ({ended.event})"
    if not status_verdict.is_failure_relevant(health):
        yield "", status_verdict.format_failure(ended)
        if status_verdict.is_cause_gone(health):
            yield "", "its cause is gone: nothing is wrong with the engine's files now, and it serves"
        elif ended.remedy:
            yield "", f"-> {ended.remedy}"


def _toolkit(toolkit: ToolkitHealth) -> Iterator[tuple[str, str]]:
    version = f", version {toolkit.version}" if toolkit.version else ""
    yield "Toolkit:", f"{toolkit.folder}, {toolkit.files} files{version}"
    if toolkit.missing:
        yield "", f"MISSING: {', '.join(toolkit.missing)}"
    for words, certain in status_verdict.group_damage(toolkit.damaged):
        yield "", f"{'DAMAGED' if certain else 'TOUCHED'}: {words}"


def _would(health: Health, method: MethodHealth) -> str:
    """Return what happens to a container that requests the GPU, in words."""
    if not method.met:
        return "would NOT be given it"
    if health.has_gpu is False:
        return "finds none: the node shows no NVIDIA GPU"
    return "is given it" if health.driver is not None else "would be given it, if the node has one"


def _method(method: MethodHealth, would: str) -> Iterator[tuple[str, str]]:
    yield "Method:", f"{method.name} ({method.why})"
    yield "", f"a container that asks for the GPU by {method.asked_by} {would}"
    for why in method.against:
        yield "", why
    for name, why in method.not_by.items():
        yield "", f"by the handler {name} it would NOT be given it: {why}"


def _engine(engine: EngineHealth) -> Iterator[tuple[str, str]]:
    live = engine.live
    what = "them" if engine.handlers else "CDI devices"
    served = "does not answer" if not live.answers else f"serves {what}" if live.served else f"does NOT serve {what}"
    since = f" (PID {live.pid}, since {live.since})" if live.pid is not None else ""
    yield "Engine:", f"{engine.name} on {engine.socket}: {served}{since}"
    for detail in live.detail:
        yield "", detail
    if engine.silent is not None:
        yield from _silent(engine, engine.silent)
    for name, path in engine.handlers.items():
        default = _default(engine) if name == (engine.default if live.default is None else live.default) else ""
        also = ", which the distribution registers too" if name in live.own else ""
        yield "Handler:", f"{name}{default} -> {path}{also}"
    for file in engine.files:
        yield from _file("File:", file)


def _silent(engine: EngineHealth, seen: SilentEngine) -> Iterator[tuple[str, str]]:
    """Yield what is known of an engine that does not respond: its unit, its log, and the faults of its files."""
    if seen.unit is not None:
        result = f" ({seen.result})" if seen.result is not None else ""
        yield "", f"{seen.unit} is {seen.unit_state or 'in an unknown state'}{result}"
    for line in seen.log:
        yield "", f"its log: {line}"
    faults = [fault.what for fault in engine.faults if fault.stops]
    yield "", f"its configuration: {'; '.join(faults) or 'it can be parsed'}"


def _default(engine: EngineHealth) -> str:
    """Return the note for the default runtime: the live engine's, else that of its files if they are as written."""
    if engine.live.default is not None:
        return " (default)"
    written = bool(engine.files) and all(file.state == AS_WRITTEN for file in engine.files)
    return " (default in its files)" if written else ""


def _file(label: str, file: FileHealth) -> Iterator[tuple[str, str]]:
    yield label, f"{file.path}: {file.state}"
    for line in (file.difference or "").splitlines():
        yield _AS_IT_IS, line.expandtabs(4)


def show_diagnosis(diagnosis: Diagnosis, *, as_json: bool) -> None:
    """Print a diagnosis. Raises OutputError."""
    if as_json:
        output.show(diagnosis_json(diagnosis).split("\n"))
    else:
        output.show(diagnosis_lines(diagnosis, output.width()))


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as JSON."""
    return json.dumps(msgspec.to_builtins(diagnosis), indent=2)


def diagnosis_lines(diagnosis: Diagnosis, width: int | None = None) -> list[str]:
    """Return a diagnosis as lines of at most `width` columns; None: of any length."""
    count = len(diagnosis.findings)
    found = [line for finding in diagnosis.findings for line in _finding_lines(finding, width)]
    unseen = [line for each in diagnosis.unseen for line in _wrap("Not inspected: ", each, width)]
    return [
        f"{count} {'illness' if count == 1 else 'illnesses'} found" if count else "No illness found",
        *found,
        *([""] if unseen else []),
        *unseen,
    ]


def _finding_lines(finding: Finding, width: int | None) -> Iterator[str]:
    where = finding.path if finding.line is None else f"{finding.path}:{finding.line}"
    yield ""
    yield f"{where}: {TITLES[finding.illness]}"
    yield from _wrap("  What:   ", finding.what, width)
    yield from _wrap("  Causes: ", finding.causes, width)
    yield from _wrap("  Remedy: ", finding.remedy, width)


def _wrap(label: str, text: str, width: int | None) -> list[str]:
    if width is None:
        return [f"{label}{text}"]
    return textwrap.wrap(
        text,
        width,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
