"""Find what an engine's reload affects, other units and running containers, and log it before the reload.

Only reads. Anything that cannot be inspected is reported as unknown, and stops nothing. Containers are found by root's
shims and monitors, and by their bundles; docker itself reports how many run. Containers that only hold a pod's
namespaces do not count. The cost is one reading of the process list, and one systemd query for each level of dependent
units, so it is paid only if a reload is due.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping

import msgspec

from toolkit_installer import log
from toolkit_installer.engines.api import Inspection, Reload
from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.common.serving import is_same_socket
from toolkit_installer.engines.detect import kubelet
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.engines.registry import ENGINES, ContainerProcess, get_row
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, flag_value, root_of
from toolkit_installer.node.queries import Query
from toolkit_installer.node.trust import TrustLevel
from toolkit_installer.planning import toolkit_users
from toolkit_installer.planning.toolkit_users import MONITOR, RUNTIME_FILE, SHIM, TASKS, Bundle, is_same_file, read_text
from toolkit_installer.settings import EngineName

UNKNOWN = "unknown"
_NONE = "none"
_SHOWN = 10
"""How many container names are printed at most."""
_CONTAINER_FATES = {
    True: "its containers keep running",
    False: "ITS CONTAINERS END WITH IT",
    None: "whether its containers keep running is unknown",
}


class DependentUnit(msgspec.Struct, frozen=True):
    """A running unit that systemd restarts or stops with the unit `of`, by a `setting` in its unit file."""

    name: str
    setting: str
    of: str

    @property
    def words(self) -> str:
        """The unit's name and its setting, as its file has it."""
        return f"{self.name} ({self.setting}={self.of})"


class RunningContainers(msgspec.Struct, frozen=True):
    """The running containers of an engine. None means not visible; `unknown` says why."""

    total: int | None = None
    ours: int | None = None
    """How many of the containers run through handlers of this program."""
    names: tuple[str, ...] = ()
    """The names of those, without duplicates: NAMESPACE/NAME of the pod, docker's name, or the container's ID."""
    unknown: str = ""


class ReloadImpact(msgspec.Struct, frozen=True):
    """What a reload affects. None means not visible; `unknown` says why. `plan --json` prints these fields."""

    restarts: bool
    """Whether another process of the engine serves afterwards."""
    containers_keep_running: bool | None
    running: int | None
    through_handlers: int | None
    """How many of the running containers run through handlers of this program."""
    names: tuple[str, ...]
    """The names of those, without duplicates: NAMESPACE/NAME of the pod, docker's name, or the container's ID."""
    units: tuple[DependentUnit, ...] | None
    """The units that systemd restarts with the engine's own."""
    units_at_stop: tuple[DependentUnit, ...] | None
    """The units that systemd stops with the engine's own: systemd 252 leaves them alone at a restart, others may not.
    """
    kubelet_in_unit: bool
    """Whether a kubelet runs in the engine's own unit, as with k3s."""
    unknown: tuple[str, ...]


def describe_impact(engine: EngineName, unit: str | None, impact: ReloadImpact, *, by_systemd: bool) -> list[str]:
    """Return sentences about what a reload of the engine affects; `unit` is the engine's unit.

    `by_systemd`: systemd receives a restart request. Otherwise the engine ends, and systemd follows the units'
    settings.
    """
    sentences = [_describe_restart(engine, impact)]
    if impact.restarts:
        sentences += _describe_units(unit, impact, "restarts" if by_systemd else "restarts or stops")
    sentences.append(_describe_containers(impact))
    return [*sentences, *(f"Unknown: {why}." for why in impact.unknown)]


def _describe_restart(engine: EngineName, impact: ReloadImpact) -> str:
    if not impact.restarts:
        return f"{engine} is not restarted: no container is touched."
    fate, setting = _CONTAINER_FATES[impact.containers_keep_running], get_row(engine).restore_setting
    if setting and impact.containers_keep_running is None:
        fate = f"{fate}: {engine} does not say whether {setting} is on"
    elif setting:
        fate = f"{fate}: {setting} is {'on' if impact.containers_keep_running else 'off'}"
    return f"{engine} is restarted, and {fate}."


def _describe_units(unit: str | None, impact: ReloadImpact, does: str) -> list[str]:
    sentences = [f"The kubelet is restarted as well: it runs in {unit}, too."] if impact.kubelet_in_unit else []
    if impact.units is None:
        return [*sentences, f"Which other units systemd {does} with it is unknown."]
    named = ", ".join(each.words for each in impact.units) or "no other unit"
    sentences.append(f"With it systemd {does} {named}.")
    if impact.units_at_stop:
        named = ", ".join(each.words for each in impact.units_at_stop)
        sentences.append(f"It would stop with it, and not every release of systemd leaves alone at a restart, {named}.")
    return [
        *sentences,
        *(
            f"The containers of {row.name} end with {each.name} unless {row.restore_setting} is on."
            for row in ENGINES
            for each in impact.units
            if row.restore_setting and each.name in row.distributions[-1].units
        ),
    ]


def _describe_containers(impact: ReloadImpact) -> str:
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


def build_log_fields(impact: ReloadImpact) -> dict[str, object]:
    """Return the fields of a log line; an unknown value is the word `unknown`."""
    return {
        "restarts": impact.restarts,
        "containers_keep_running": _known(impact.containers_keep_running),
        "units": _join_names(impact.units),
        "units_at_stop": _join_names(impact.units_at_stop) if impact.units_at_stop else None,
        "kubelet_in_unit": impact.kubelet_in_unit,
        "running": _known(impact.running),
        "through_handlers": _known(impact.through_handlers),
        "names": ",".join(impact.names) or None,
        "unknown": "; ".join(impact.unknown) or None,
    }


def _join_names(units: tuple[DependentUnit, ...] | None) -> str:
    return UNKNOWN if units is None else ",".join(each.name for each in units) or _NONE


def _known(value: object) -> object:
    return UNKNOWN if value is None else value


_DOCKERS_NAMESPACE = "moby"
"""The containerd namespace of dockerd's containers, unless dockerd's flag sets another."""
_NAMESPACE_FLAG = "--containerd-namespace"
_PODMAN_FLAG = "--exit-command"
"""A flag that podman passes to conmon and CRI-O does not: the program that cleans up after the container."""
_OTHER_MONITOR = "conmonrs"
"""One process for many containers, which CRI-O can be configured to use (`runtime_type = "pod"`)."""
_SHORT = 12
"""Characters of an ID, as docker and crictl print it."""


class _EngineContainer(msgspec.Struct, frozen=True):
    """A running container. `runtime` is None if unknown; `pid` is a process of its engine."""

    identity: str
    runtime: str | None
    pid: int
    bundle: Bundle | None


class _UninspectableError(Exception):
    """A process that may be the engine's cannot be inspected; the message says why."""


@Query(ignored=("inspection",), os_errors=True)
def find_running_containers(node: Node, name: EngineName, inspection: Inspection, folder: str) -> RunningContainers:
    """Return the engine's running containers; `folder` is the toolkit's. Raises NodeError, OSError."""
    live, engine = inspection.live, inspection.process
    reported = live.running if live is not None else None
    if engine is None or processes.inspect_process(engine.pid) != engine:
        return RunningContainers(reported, unknown="the engine's process is not seen any more")
    try:
        found = {each.identity: each for each in _list_containers(node, name, engine, inspection.socket)}
    except _UninspectableError as error:
        return RunningContainers(reported, unknown=str(error))
    total = len(found) if reported is None else reported
    if total > len(found):  # some are outside the places that are searched
        return RunningContainers(total, unknown=f"{total} containers run, and {len(found)} of them are seen from here")
    if unclear := [each.identity for each in found.values() if each.runtime is None]:
        return RunningContainers(
            total, unknown=f"what {len(unclear)} of the containers run through is not told by their shims"
        )
    ours = [each for each in found.values() if is_beneath(each.runtime, folder) and _is_ours(node, each)]
    return RunningContainers(total, len(ours), tuple(sorted({_get_name(each) for each in ours})))


def _is_ours(node: Node, container: _EngineContainer) -> bool:
    return container.runtime is not None and is_same_file(node, container.pid, container.runtime)


def _get_name(container: _EngineContainer) -> str:
    known = toolkit_users.find_name(container.identity, container.bundle)
    return known.pod or known.docker or container.identity[:_SHORT]


def _list_containers(node: Node, name: EngineName, engine: Process, socket: str) -> Iterator[_EngineContainer]:
    """Yield the engine's containers. Raises _UninspectableError, OSError."""
    process = get_row(name).container_process
    if process is None:
        raise _UninspectableError(f"where {name} keeps its containers is not known here")
    if process is ContainerProcess.MONITOR:
        yield from _list_monitor_containers(engine)
    elif process is ContainerProcess.SHIM_OF_NAMESPACE:
        namespaces = command_line.flag_values(engine.arguments[1:], _NAMESPACE_FLAG) or [_DOCKERS_NAMESPACE]
        yield from _list_shim_containers(engine, lambda shim: flag_value(shim.arguments, "-namespace") in namespaces)
    else:
        yield from _list_shim_containers(engine, lambda shim: _speaks_to(shim, node, socket))


def _speaks_to(shim: Process, node: Node, socket: str) -> bool:
    return is_same_socket(root_of(shim), flag_value(shim.arguments, "-address") or "", node.root, socket)


def _list_shim_containers(engine: Process, belongs: Callable[[Process], bool]) -> Iterator[_EngineContainer]:
    """Yield the containers of a containerd's shims. Raises _UninspectableError, OSError."""
    places: dict[tuple[int, int], int] = {}
    for shim in filter(belongs, _list_processes(engine, SHIM)):
        try:
            bundle = os.readlink(f"/proc/{shim.pid}/cwd")
            around = os.stat(f"/proc/{shim.pid}/cwd/..")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        workdir = flag_value(shim.arguments, "-workdir")
        if posixpath.basename(posixpath.dirname(posixpath.dirname(bundle))) == TASKS:
            places.setdefault((around.st_dev, around.st_ino), shim.pid)
        elif workdir is not None:
            # the shim of containerd before 1.3 and docker before 20.10: only its containerd knows the runtime
            yield _EngineContainer(posixpath.basename(workdir), None, shim.pid, None)
    for pid in places.values():
        yield from _list_bundle_containers(pid)


def _list_bundle_containers(pid: int) -> Iterator[_EngineContainer]:
    """Yield the containers with bundles next to a shim's own (one shim may have many).

    Raises _UninspectableError, OSError.
    """
    place = f"/proc/{pid}/cwd/.."
    try:
        names = os.listdir(place)
    except (FileNotFoundError, ProcessLookupError):
        raise _UninspectableError("a shim ended while its containers were counted") from None
    for name in sorted(names):
        bundle = Bundle(f"{place}/{name}", f"/proc/{pid}/root")
        if toolkit_users.is_sandbox(bundle) is False:
            # other shims, such as Kata's, name no executable: they run none of ours
            yield _EngineContainer(name, read_text(f"{bundle.folder}/{RUNTIME_FILE}") or "", pid, bundle)


def _list_monitor_containers(engine: Process) -> Iterator[_EngineContainer]:
    """Yield the containers of CRI-O, by their conmons (conmon(8)). Raises _UninspectableError."""
    for monitor in _list_processes(engine, MONITOR):
        if monitor.name == _OTHER_MONITOR:
            raise _UninspectableError("conmonrs does not tell its containers")
        arguments = monitor.arguments
        if monitor.name != MONITOR or _PODMAN_FLAG in arguments:
            continue
        folder = flag_value(arguments, "-b", "--bundle") or ""
        bundle = Bundle(f"/proc/{monitor.pid}/root{folder}", f"/proc/{monitor.pid}/root")
        identity, runtime = flag_value(arguments, "-c", "--cid"), flag_value(arguments, "-r", "--runtime")
        if identity is not None and not toolkit_users.is_sandbox(bundle):
            yield _EngineContainer(identity, runtime, monitor.pid, bundle)


def _list_processes(engine: Process, named: str) -> Iterator[Process]:
    """Yield the processes with the engine's `/` and a name that begins with `named`. Raises _UninspectableError."""
    for pid, name, trust_level in processes.find_matching(lambda each: each.startswith(named)):
        seen = processes.inspect_process(pid) if trust_level is not TrustLevel.UNSEEN else None
        if trust_level is TrustLevel.UNSEEN:
            raise _UninspectableError(f"this user may not look at the process {pid} ({name}), root may")
        if seen is None or not processes.has_root(seen, root_of(engine)):
            continue  # it ended meanwhile, or it belongs to a container
        if seen.hidden:
            raise _UninspectableError(f"the process {pid} ({name}) has wiped its command line")
        yield seen


_RESTARTED = {"RequiredBy": "Requires", "RequisiteOf": "Requisite", "BoundBy": "BindsTo", "ConsistsOf": "PartOf"}
"""Properties of a unit that name the units that restart with it, and those units' settings (systemd.unit(5))."""
_STOPPED = {"PropagatesStopTo": "StopPropagatedFrom"}
"""The same for units that stop with it. Seen on systemd 252: a restart leaves them alone."""
_STATE = "ActiveState"
_DOWN = ("inactive", "failed")
"""A unit in one of these states is neither stopped nor restarted."""
_MAX_UNITS = 200
"""The number of units at which the search ends: more than any node has behind one engine."""


def find_impact(node: Node, name: EngineName, inspection: Inspection, reload: Reload, folder: str) -> ReloadImpact:
    """Return what this reload affects; `folder` is the toolkit's. Raises no expected error but Stopped."""
    live = inspection.live
    restarts = reload.restarts or bool(reload.watched_by)
    found = _find_running(node, name, inspection, folder)
    unit, unknown = find_restarted_unit(inspection, reload), [found.unknown] if found.unknown else []
    units: tuple[DependentUnit, ...] | None = ()
    if restarts:
        units, why = _find_units(node, unit)
        unknown += [why] if why else []
    return ReloadImpact(
        restarts=restarts,
        containers_keep_running=True if not restarts else live.containers_outlive_it if live is not None else None,
        running=found.total,
        through_handlers=found.ours,
        names=found.names,
        units=_filter_units(units, _RESTARTED),
        units_at_stop=_filter_units(units, _STOPPED),
        kubelet_in_unit=restarts
        and unit is not None
        and unit in {each.unit for each in kubelet.find_kubelet_processes(node)},
        unknown=tuple(unknown),
    )


def log_impact(node: Node, name: EngineName, inspection: Inspection, reload: Reload, folder: str) -> None:
    """Log in one line what this reload affects. Raises Stopped."""
    impact = find_impact(node, name, inspection, reload, folder)
    log.get().info("What the reload touches", key="reload-impact", engine=name, **build_log_fields(impact))


def find_restarted_unit(inspection: Inspection, reload: Reload) -> str | None:
    """Return the unit that restarts with the engine; None if a distribution restarts the engine, or if unknown.

    If the engine ends at a signal, systemd starts its unit again, and the units that depend on it.
    """
    if reload.unit is not None or reload.watched_by:
        return reload.unit
    return inspection.process.unit if inspection.process is not None else None


def _find_running(node: Node, name: EngineName, inspection: Inspection, folder: str) -> RunningContainers:
    try:
        return find_running_containers(node, name, inspection, folder)
    except (InstallerError, OSError) as error:
        return RunningContainers(unknown=f"the running containers cannot be looked at: {error}")


def _find_units(node: Node, unit: str | None) -> tuple[tuple[DependentUnit, ...] | None, str]:
    """Return the running units that systemd restarts or stops with `unit`; None and the reason if unknown."""
    if unit is None:
        return None, "the engine is not restarted by a unit of its own"
    try:
        return _find_dependent_units(node, unit)
    except (InstallerError, OSError) as error:
        return None, f"systemd cannot be asked: {error}"


def _find_dependent_units(node: Node, unit: str) -> tuple[tuple[DependentUnit, ...] | None, str]:
    """Return the same for a known unit, including indirectly dependent units."""
    known = {unit}
    found: list[DependentUnit] = []
    pending: dict[str, DependentUnit | None] = {unit: None}
    while pending:
        if len(known) > _MAX_UNITS:
            return None, f"more than {_MAX_UNITS} units depend on {unit}"
        shown = node.services.properties(list(pending), (_STATE, *_RESTARTED, *_STOPPED))
        if shown is None:
            return None, f"systemd does not say which units depend on {', '.join(pending)}"
        # a unit that is down stays down, and so do the units that depend on it alone
        up = {name: why for name, why in pending.items() if shown[name].get(_STATE) not in _DOWN}
        found += [why for why in up.values() if why is not None]
        pending = {}
        for of, why in up.items():
            # a unit that is only stopped is not restarted, so it restarts no other unit
            leads_on = why is None or why.setting in _RESTARTED.values()
            for theirs, setting in (_RESTARTED | _STOPPED).items() if leads_on else ():
                new = [name for name in shown[of].get(theirs, "").split() if name not in known]
                pending |= {name: DependentUnit(name, setting, of) for name in new}
                known.update(new)
    return tuple(found), ""


def _filter_units(
    units: tuple[DependentUnit, ...] | None, settings: Mapping[str, str]
) -> tuple[DependentUnit, ...] | None:
    """Return the units that have one of the settings."""
    return None if units is None else tuple(each for each in units if each.setting in settings.values())
