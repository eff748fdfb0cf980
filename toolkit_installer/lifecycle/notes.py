"""What a run noticed while it planned, for its log."""

from __future__ import annotations

from toolkit_installer import log
from toolkit_installer.lifecycle.observe import Observation
from toolkit_installer.receipt.schema import State


def say(seen: Observation) -> None:
    """Log what was noticed while planning."""
    if seen.receipt is not None and seen.receipt.state is not State.INSTALLED:
        log.get().warning("An earlier run was interrupted: finishing what it began", state=seen.receipt.state)
    for warning in seen.warnings:
        log.get().warning(warning)
    for specification in seen.plan.specifications:
        if specification.note:
            log.get().warning("A CDI specification", file=specification.path, what=specification.note)
    for engine in seen.plan.engines:
        for note in engine.goals.notes:
            log.get().info(note, engine=engine.name)
        for danger in engine.goals.dangers if engine.reload_why else ():
            log.get().warning(danger, engine=engine.name)
        for goal in engine.goals.files:
            for left in goal.left:
                log.get().warning("Somebody changed what was ours", file=goal.path, engine=engine.name, what=left)
