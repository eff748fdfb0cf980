"""What a reload touches, as a value, and how it is said. Pure."""

from __future__ import annotations

import msgspec

from toolkit_installer.engines.registry import usual_row
from toolkit_installer.settings import EngineName

UNKNOWN = "unknown"
_NONE = "none"
_SHOWN = 10
"""How many names a person is shown."""
_LIVE_RESTORE = {
    True: "live-restore is on",
    False: "live-restore is off",
    None: "docker does not say whether live-restore is on",
}
_KEPT = {
    True: "its containers keep running",
    False: "ITS CONTAINERS END WITH IT",
    None: "whether its containers keep running is unknown",
}


class Unit(msgspec.Struct, frozen=True):
    """A unit that runs, and that systemd restarts or stops with the unit `of`; its file says why, in `setting`."""

    name: str
    setting: str
    of: str

    @property
    def words(self) -> str:
        """The unit, and why, as its file says it."""
        return f"{self.name} ({self.setting}={self.of})"


class Running(msgspec.Struct, frozen=True):
    """The containers of an engine that run. None stands for what cannot be seen; `unknown` says why."""

    total: int | None = None
    ours: int | None = None
    """How many of them run through handlers of this program."""
    names: tuple[str, ...] = ()
    """What these are called, each once: NAMESPACE/NAME of the pod, docker's name, or the container's ID."""
    unknown: str = ""


class Impact(msgspec.Struct, frozen=True):
    """What a reload touches. None stands for what cannot be seen; `unknown` says why. `plan --json` shows it so."""

    restarts: bool
    """Another process of the engine serves afterwards."""
    containers_keep_running: bool | None
    running: int | None
    through_handlers: int | None
    """How many of these run through handlers of this program."""
    names: tuple[str, ...]
    """What those are called, each once: NAMESPACE/NAME of the pod, docker's name, or the container's ID."""
    units: tuple[Unit, ...] | None
    """The units that systemd restarts with the engine's own."""
    units_at_stop: tuple[Unit, ...] | None
    """The units that it stops where it stops that one: a restart leaves them alone with systemd 252, if not with all.
    """
    kubelet_in_unit: bool
    """A kubelet runs in the engine's own unit, as that of k3s does."""
    unknown: tuple[str, ...]


def lines(engine: EngineName, unit: str | None, impact: Impact, *, by_systemd: bool) -> list[str]:
    """Return in full sentences what a reload of the engine touches; `unit` is the one in which it runs.

    `by_systemd`: systemd is asked for the restart. Else the engine ends, and systemd does what the units say of that.
    """
    said = [_fate(engine, impact)]
    if impact.restarts:
        said += _units(unit, impact, "restarts" if by_systemd else "restarts or stops")
    said.append(_running(impact))
    return [*said, *(f"Unknown: {why}." for why in impact.unknown)]


def _fate(engine: EngineName, impact: Impact) -> str:
    if not impact.restarts:
        return f"{engine} is not restarted: no container is touched."
    why = f": {_LIVE_RESTORE[impact.containers_keep_running]}" if engine is EngineName.DOCKER else ""
    return f"{engine} is restarted, and {_KEPT[impact.containers_keep_running]}{why}."


def _units(unit: str | None, impact: Impact, does: str) -> list[str]:
    said = [f"The kubelet is restarted as well: it runs in {unit}, too."] if impact.kubelet_in_unit else []
    if impact.units is None:
        return [*said, f"Which other units systemd {does} with it is unknown."]
    named = ", ".join(each.words for each in impact.units) or "no other unit"
    said.append(f"With it systemd {does} {named}.")
    if impact.units_at_stop:
        named = ", ".join(each.words for each in impact.units_at_stop)
        said.append(f"It would stop with it, and not every release of systemd leaves alone at a restart, {named}.")
    docker = [each.name for each in impact.units if each.name in usual_row(EngineName.DOCKER).units]
    return [*said, *(f"The containers of docker end with {name} unless live-restore is on." for name in docker)]


def _running(impact: Impact) -> str:
    if impact.running is None:
        return "How many containers run now is unknown."
    if impact.running == 0:
        return "No container runs now."
    counted = f"{impact.running} container{'' if impact.running == 1 else 's'}"
    if impact.through_handlers is None:
        return f"Running now: {counted}; how many of them run through handlers of this program is unknown."
    if impact.through_handlers == 0:
        return f"Running now: {counted}, none of them through a handler of this program."
    more = f" and {len(impact.names) - _SHOWN} more" if len(impact.names) > _SHOWN else ""
    named = f"{', '.join(impact.names[:_SHOWN])}{more}"
    return f"Running now: {counted}, {impact.through_handlers} of them through handlers of this program: {named}."


def for_log(impact: Impact) -> dict[str, object]:
    """Return the keys and values of a line of the log; a value that is not known is the word `unknown`."""
    return {
        "restarts": impact.restarts,
        "containers_keep_running": _known(impact.containers_keep_running),
        "units": _names(impact.units),
        "units_at_stop": _names(impact.units_at_stop) if impact.units_at_stop else None,
        "kubelet_in_unit": impact.kubelet_in_unit,
        "running": _known(impact.running),
        "through_handlers": _known(impact.through_handlers),
        "names": ",".join(impact.names) or None,
        "unknown": "; ".join(impact.unknown) or None,
    }


def _names(units: tuple[Unit, ...] | None) -> str:
    return UNKNOWN if units is None else ",".join(each.name for each in units) or _NONE


def _known(value: object) -> object:
    return UNKNOWN if value is None else value
