"""Logs the remarks that planning made."""

from __future__ import annotations

from toolkit_installer import log
from toolkit_installer.lifecycle.prepare import Prepared
from toolkit_installer.receipt.schema import State
from toolkit_installer.toolkit import payload, wrappers


def say(seen: Prepared) -> None:
    """Log the plan's notes, dangers and warnings."""
    if seen.receipt is not None and seen.receipt.state is not State.INSTALLED:
        log.get().warning("An earlier run was interrupted: finishing what it began", state=seen.receipt.state)
    for warning in _security(seen):
        log.get().warning(warning)
    for specification in seen.plan.specifications:
        if specification.note:
            log.get().warning("A CDI specification", file=specification.path, what=specification.note)
    for engine in seen.plan.engines:
        for note in engine.desired.notes:
            log.get().info(note, engine=engine.name)
        for danger in engine.desired.dangers if engine.reload_why else ():
            log.get().warning(danger, engine=engine.name)
        for wanted in engine.desired.files:
            for left in wanted.left:
                log.get().warning("Somebody changed what was ours", file=wanted.path, engine=engine.name, what=left)


def _security(seen: Prepared) -> tuple[str, ...]:
    """Return what an engineer should know about the security of a toolkit that is about to change."""
    work, found = seen.plan.toolkit, seen.target.payload
    if not work.write:
        return ()
    from toolkit_installer.lifecycle import versions
    from toolkit_installer.toolkit import security

    config = next(file.content for file in work.files if file.name == wrappers.CONFIG_NAME)
    assert config is not None  # noqa: S101  # it is always written, never copied
    runtime = dict(found.programs)[payload.RUNTIMES[0]]
    return security.notes(seen.target.settings.toolkit, config, versions.said_by(found.root, runtime))
