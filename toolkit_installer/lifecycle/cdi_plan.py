"""The part of the plan that is for CDI: engines without handlers, which read the specification. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import DesiredFile, Recorded
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.files.cdi import SpecificationWork
from toolkit_installer.lifecycle.method import refuse_unreadable
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.settings import Method, ReloadMode

if TYPE_CHECKING:
    from toolkit_installer.lifecycle.facts import EngineFacts, Facts
    from toolkit_installer.lifecycle.plan import EngineWork
    from toolkit_installer.lifecycle.target import Target


def readers(target: Target, facts: Facts) -> tuple[EngineRecord, ...]:
    """Return the engines whose containers are to get the GPU by CDI; without a look at any, they stay what they are."""
    if facts.choice.method is not Method.CDI:
        kept = not target.settings.configure_engine and target.settings.toolkit.cdi.enabled
        return facts.receipt.cdi if kept and facts.receipt is not None else ()
    found = [(each.request, each.inspection.socket) for each in facts.engines]
    return tuple(
        EngineRecord(request.target.name, socket, request.settings.reload_mode, (), None, ())
        for request, socket in found
    )


def without_handlers(seen: EngineFacts) -> tuple[DesiredFile, ...]:
    """Return an engine's files without us, in the order of a cleanup; none where nothing of ours is in them.

    None as well where a recorded one is not among those that the engine has now: it is given back as it is recorded.
    Raises ConfigurationError.
    """
    recorded = [file.path for file in reversed(seen.recorded.files)] if seen.recorded is not None else []
    present = {file.path: file for file in seen.inspection.files}
    if not present.keys() >= set(recorded):
        return ()
    engine, folder = adapter_of(seen.request.target.name), seen.request.toolkit_folder
    known = engine.recognised(seen.inspection, folder)
    files = []
    for path in dict.fromkeys([*recorded, *present]):
        remembered = seen.records.get(path) or Recorded(ownership=known.get(path, Ownership()))
        files.append(engine.without_us(present[path], remembered, folder))
    of_ours = tuple(wanted for wanted in files if wanted.path in recorded or wanted.changes)
    return of_ours if seen.recorded is not None or any(wanted.changes for wanted in of_ours) else ()


def refuse_what_gives_no_devices(
    facts: Facts, engines: Sequence[EngineWork], specifications: Sequence[SpecificationWork]
) -> None:
    """Raise ConfigurationError where CDI would stay off in an engine, or it could not read the specification."""
    ways = {way.engine: way for way in facts.ways}
    for work in engines:
        edited = any(wanted.target != wanted.base for wanted in work.desired.files)
        if not ways[work.name].off:
            continue
        if not edited:
            said = f": {'; '.join(work.desired.notes)}" if work.desired.notes else ""
            raise ConfigurationError(
                f"--method cdi: CDI is off in the running {work.name}, and no edit of its files switches it on{said}",
                path=work.inspection.socket,
                hint="nothing was changed; restart it, if its files have CDI on already, or use --method handlers",
            )
        if work.reload.mode is ReloadMode.SIGNAL and not work.reload.restarts and not work.reload.watched_by:
            raise ConfigurationError(
                f"--method cdi: CDI is off in the running {work.name}, and it is switched on by a restart only",
                path=work.inspection.socket,
                hint="nothing was changed; --restart-mode systemd with --allow-restart restarts it",
            )
    refuse_what_nobody_reads(facts, specifications)


def refuse_what_nobody_reads(facts: Facts, specifications: Sequence[SpecificationWork]) -> None:
    """Raise ConfigurationError where an engine could not read a specification that is to be written."""
    for specification in specifications:
        if specification.target is not None and specification.target != specification.base:
            refuse_unreadable(facts.ways, specification.target, specification.path)
