"""The part of the plan that is for CDI: engines without handlers, which read the specification. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.files.cdi import SpecificationWork
from toolkit_installer.lifecycle.method import refuse_unreadable
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.settings import Method, ReloadMode

if TYPE_CHECKING:
    from toolkit_installer.lifecycle.facts import Facts
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
    for specification in specifications:
        if specification.target is not None and specification.target != specification.base:
            refuse_unreadable(facts.ways, specification.target, specification.path)
