"""Finds what a reload touches, and says it in the log. Reads only; what cannot be seen is unknown, and stops nothing.

Asked only where a reload is due: it takes a look at the node's processes, and one question to systemd for each level of
units that depend on each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit_installer import log
from toolkit_installer.engines.api import Inspection, Reload
from toolkit_installer.engines.detect import kubelet
from toolkit_installer.errors import InstallerError
from toolkit_installer.lifecycle.impact import running, words
from toolkit_installer.lifecycle.impact.words import Impact, Running, Unit
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName

_RESTARTED = {"RequiredBy": "Requires", "RequisiteOf": "Requisite", "BoundBy": "BindsTo", "ConsistsOf": "PartOf"}
"""What a unit says of those that restart with it, and what those say themselves (systemd.unit(5))."""
_STOPPED = {"PropagatesStopTo": "StopPropagatedFrom"}
"""Likewise of those that stop with it. Seen on systemd 252: a restart leaves them alone."""
_STATE = "ActiveState"
_DOWN = ("inactive", "failed")
"""A unit in one of these states is neither stopped nor restarted."""
_MOST = 200
"""Units. More than any node has behind one engine: they are not all asked about."""


def of_reload(node: Node, name: EngineName, inspection: Inspection, reload: Reload, folder: str) -> Impact:
    """Return what this reload touches; `folder` is the toolkit's. Raises Stopped, and nothing else that is expected."""
    live = inspection.live
    restarts = reload.restarts or bool(reload.watched_by)
    found = _running(node, name, inspection, folder)
    unit, unknown = unit_of(inspection, reload), [found.unknown] if found.unknown else []
    units: tuple[Unit, ...] | None = ()
    if restarts:
        units, why = _units(node, unit)
        unknown += [why] if why else []
    return Impact(
        restarts=restarts,
        containers_keep_running=True if not restarts else live.containers_outlive_it if live is not None else None,
        running=found.total,
        through_handlers=found.ours,
        names=found.names,
        units=_only(units, _RESTARTED),
        units_at_stop=_only(units, _STOPPED),
        kubelet_in_unit=restarts and unit is not None and unit in {each.unit for each in kubelet.of_node(node)},
        unknown=tuple(unknown),
    )


def tell(node: Node, name: EngineName, inspection: Inspection, reload: Reload, folder: str) -> None:
    """Say in one line of the log what this reload touches. Raises Stopped."""
    impact = of_reload(node, name, inspection, reload, folder)
    log.get().info("What the reload touches", key="reload-impact", engine=name, **words.for_log(impact))


def unit_of(inspection: Inspection, reload: Reload) -> str | None:
    """Return the unit that a restart of the engine restarts; None where that is a distribution's doing, or unknown.

    Where the engine ends at a signal, systemd starts its unit again, and with it what depends on that.
    """
    if reload.unit is not None or reload.watched_by:
        return reload.unit
    return inspection.process.unit if inspection.process is not None else None


def _running(node: Node, name: EngineName, inspection: Inspection, folder: str) -> Running:
    try:
        return running.containers(node, name, inspection, folder)
    except (InstallerError, OSError) as error:
        return Running(unknown=f"the running containers cannot be looked at: {error}")


def _units(node: Node, unit: str | None) -> tuple[tuple[Unit, ...] | None, str]:
    """Return the running units that systemd restarts or stops with `unit`; None, and why, where it does not say."""
    if unit is None:
        return None, "the engine is not restarted by a unit of its own"
    try:
        return _followed(node, unit)
    except (InstallerError, OSError) as error:
        return None, f"systemd cannot be asked: {error}"


def _followed(node: Node, unit: str) -> tuple[tuple[Unit, ...] | None, str]:
    """Return the same for a unit that is known, however long the way to those that depend on it."""
    known = {unit}
    found: list[Unit] = []
    asked: dict[str, Unit | None] = {unit: None}
    while asked:
        if len(known) > _MOST:
            return None, f"more than {_MOST} units depend on {unit}"
        shown = node.services.properties(list(asked), (_STATE, *_RESTARTED, *_STOPPED))
        if shown is None:
            return None, f"systemd does not say which units depend on {', '.join(asked)}"
        # what is down stays as it is, and so does what depends on that alone
        up = {name: why for name, why in asked.items() if shown[name].get(_STATE) not in _DOWN}
        found += [why for why in up.values() if why is not None]
        asked = {}
        for of, why in up.items():
            # one that only stops with another is not restarted, and so nothing is for its sake
            leads_on = why is None or why.setting in _RESTARTED.values()
            for theirs, setting in (_RESTARTED | _STOPPED).items() if leads_on else ():
                new = [name for name in shown[of].get(theirs, "").split() if name not in known]
                asked |= {name: Unit(name, setting, of) for name in new}
                known.update(new)
    return tuple(found), ""


def _only(units: tuple[Unit, ...] | None, settings: Mapping[str, str]) -> tuple[Unit, ...] | None:
    """Return those of the units that have one of the settings."""
    return None if units is None else tuple(each for each in units if each.setting in settings.values())
