"""What a run has done since it started, told by the lines of its log: reloads, how long they took, rollbacks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

REASONS = ("install", "rollback")
"""What reloads are for."""


class Counted(msgspec.Struct, frozen=True):
    """Is remembered while the run sleeps."""

    reloads: tuple[tuple[str, str, int], ...] = ()
    """Engine, why, how often."""
    away: tuple[tuple[str, float], ...] = ()
    """Engine, seconds from its last reload until it served again."""
    rollbacks: int = 0
    result: str = ""
    """The name of the exit code with which the last look ended; empty before the first."""
    converged_at: float = 0.0
    """When the node was last brought to where it should be, in seconds since 1970; 0: it was not."""
    since: tuple[tuple[str, float], ...] = ()
    """Engines that are being reloaded, with the time at which that began."""
    phase: str = "install"
    """What a reload is for now: install or rollback."""


def heard(counted: Counted, line: Mapping[str, Any], at: float) -> Counted:
    """Return what is counted after a line of the log, which was written at that time (seconds, of any clock)."""
    event, engine = line.get("event"), str(line.get("engine", ""))
    match event:
        case "rollback":
            return msgspec.structs.replace(counted, rollbacks=counted.rollbacks + 1, phase="rollback")
        case "reloading":
            reloads = {(name, why): count for name, why, count in counted.reloads}
            key = engine, counted.phase
            reloads[key] = reloads.get(key, 0) + 1
            return msgspec.structs.replace(
                counted,
                reloads=tuple((*key, count) for key, count in reloads.items()),
                since=_with(counted.since, engine, at),
            )
        case "engine-serves":
            began = dict(counted.since).get(engine)
            if began is None:
                return counted
            since = tuple(each for each in counted.since if each[0] != engine)
            return msgspec.structs.replace(counted, away=_with(counted.away, engine, at - began), since=since)
    return counted


def ended(counted: Counted, code: str, converged_at: float | None = None) -> Counted:
    """Return what is counted once a look has ended with this exit code's name.

    `converged_at` is when the node was where it should be, in seconds since 1970; None: this look did not bring it
    there.
    """
    at = counted.converged_at if converged_at is None else converged_at
    return msgspec.structs.replace(counted, result=code, converged_at=at, since=(), phase="install")


def plain(counted: Counted) -> dict[str, Any]:
    """Return it as JSON has it."""
    found: dict[str, Any] = msgspec.to_builtins(counted)
    return found


def understood(said: Any) -> Counted:
    """Return what was remembered; nothing where it is not understood: a counter may begin anew."""
    try:
        return msgspec.convert(said, Counted)
    except msgspec.ValidationError:
        return Counted()


def _with(pairs: tuple[tuple[str, float], ...], key: str, value: float) -> tuple[tuple[str, float], ...]:
    return *(each for each in pairs if each[0] != key), (key, value)
