"""Inspects a node for `status`: the installed toolkit, its condition, and who serves it; and why an engine is silent.

Reads, and never writes. An engine does not answer if its process is stopped or hangs, or its unit is masked, has failed
or was stopped.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

import msgspec

from toolkit_installer import __version__
from toolkit_installer.driver import gpus, roots
from toolkit_installer.engines.api import EngineSilentError, LiveState, get_adapter
from toolkit_installer.engines.common import serving
from toolkit_installer.node import locks, machine, processes, trust
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.planning import installed, other_installer
from toolkit_installer.planning.method import explain_choice
from toolkit_installer.planning.observe import find_unserved
from toolkit_installer.planning.other_installer import OtherInstaller
from toolkit_installer.receipt import file_records, schema
from toolkit_installer.receipt.schema import AS_WRITTEN, EngineRecord, FileRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.reporting import engine_faults, outcome, saved_state
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.reporting.status_verdict import (
    ABSENT,
    DriverHealth,
    EngineHealth,
    FileHealth,
    LastLook,
    LiveHealth,
    MethodHealth,
    NodeStatus,
    PendingReload,
    Places,
    PluginHealth,
    ProcessState,
    SilentEngine,
    ToolkitHealth,
)
from toolkit_installer.settings import PID_FILES, Method, Settings
from toolkit_installer.waiting import refresh_command

_QUERY_SECONDS = 5.0
_DRIVER_SECONDS = 20.0


@processes.cache_names()
def inspect_node(node: Node, settings: Settings, store: ReceiptStore, receipt: Receipt | None) -> NodeStatus:
    """Return the node's status; `receipt` is the one in `store`. Raises NodeError, ConfigurationError, Stopped."""
    seen = gpus.find_gpus(node)
    has_gpu = bool(seen.own) if seen.own or seen.known else None
    other = other_installer.find_running(node, settings.toolkit.install_dir)
    running, killed = _find_instances(node, settings, receipt, other)
    saved = saved_state.of_run(running) if running is not None else None
    command = saved.command if saved is not None else ()
    differences = dict(saved.differences) if saved is not None else {}
    driver = _inspect_driver(node, settings, has_gpu=has_gpu)
    toolkit = _inspect_toolkit(node, settings, receipt) if receipt is not None else None
    engines = (
        tuple(_inspect_engine(node, receipt, each, differences) for each in receipt.served_engines())
        if receipt is not None
        else ()
    )
    specifications = tuple(
        _inspect_file(node, file, differences) for file in (receipt.specifications if receipt is not None else ())
    )
    method = None
    if receipt is not None and receipt.state is State.INSTALLED and engines:
        obstacles = [
            *_find_obstacles(engines, driver, toolkit),
            *(_find_edited_specifications(specifications) if receipt.cdi else ()),
        ]
        method = _judge_method(node, receipt, engines, obstacles)
    return NodeStatus(
        version=__version__,
        looked_in=Places(settings.node_root or "/", f"{store.folder}/{schema.FILE}", settings.pid_file),
        installed=receipt is not None and receipt.state is State.INSTALLED,
        state=receipt.state.value if receipt is not None else ABSENT,
        changed=_format_change_time(node, store) if receipt is not None else None,
        running_pid=running,
        running_state=find_process_state(running) if running is not None else None,
        receipt_gone=receipt is None
        and running is not None
        and installed.is_toolkit_installed(node, settings.toolkit.folder),
        killed_pid=killed,
        other_installer=str(other) if other is not None else None,
        refresh=refresh_command.of_run(running, command) if running is not None else None,
        last_look=_build_last_look(saved),
        pending_reload=_build_pending_reload(saved),
        last_run=outcome.load_record(node, _list_pid_files(settings, receipt), settings.ready_file),
        gpus=seen.words,
        has_gpu=has_gpu,
        driver=driver,
        toolkit=toolkit,
        engines=engines,
        specifications=specifications,
        method=method,
        plugin=_build_plugin_health(saved),
    )


def _find_obstacles(
    engines: tuple[EngineHealth, ...], driver: DriverHealth | None, toolkit: ToolkitHealth | None
) -> list[str]:
    """Return what keeps every container from getting the GPU now, by handler or by CDI."""
    obstacles = [f"{engine.name}: {'; '.join(engine.live.detail)}" for engine in engines if not engine.live.served]
    if driver is not None and not driver.usable:
        obstacles.append("no driver is usable")
    if toolkit is not None:
        damaged = (*toolkit.missing, *(each.name for each in toolkit.damaged if each.certain))
        obstacles += [f"{name} is missing or damaged" for name in damaged]
    return obstacles


def _find_edited_specifications(specifications: tuple[FileHealth, ...]) -> list[str]:
    return [f"{file.path}: {file.state}" for file in specifications if file.state != AS_WRITTEN]


def _judge_method(
    node: Node, receipt: Receipt, engines: tuple[EngineHealth, ...], obstacles: list[str]
) -> MethodHealth:
    """Return how containers get the GPU, what prevents it now, and how they request it. Raises NodeError."""
    if receipt.cdi:
        kinds = ", ".join(f"{_parse_device_kind(file.path)}=all" for file in receipt.specifications)
        request = f"a CDI device, such as {kinds}" if kinds else "a CDI device"
        why = explain_choice(Method.CDI, receipt.method_why)
        return MethodHealth(str(Method.CDI), why, request, not obstacles, tuple(obstacles))
    handlers = {name: path for engine in receipt.engines for name, path in engine.handlers}
    settings = engine_faults.read_runtime_settings(node, receipt)
    running = [engine.live.pid for engine in engines if engine.live.pid is not None]
    no_runtime = engine_faults.describe_missing_runtimes(node, settings, running)
    not_by = engine_faults.find_handlers_without_devices(node, settings, handlers)
    giving = [name for name in handlers if name not in not_by]
    obstacles = [*obstacles, *([no_runtime] if no_runtime is not None else [])]
    obstacles += [] if giving else list(dict.fromkeys(not_by.values()))
    return MethodHealth(
        str(Method.HANDLERS),
        explain_choice(Method.HANDLERS, receipt.method_why),
        f"the handler {' or '.join(giving or handlers)}",
        not obstacles,
        tuple(obstacles),
        not_by if giving else {},
        no_runtime,
    )


def _parse_device_kind(path: str) -> str:
    """Return the kind of a specification's devices, by the name of its file (`CdiSettings.path`)."""
    return posixpath.basename(path).removesuffix(".yaml").replace("-", "/", 1)


def _find_instances(
    node: Node, settings: Settings, receipt: Receipt | None, other: OtherInstaller | None
) -> tuple[int | None, int | None]:
    """Return the PID of the running instance, under either of the program's names, and that of a killed one."""
    paths = _list_pid_files(settings, receipt)
    theirs = other.pid if other is not None else None
    holders = (locks.find_instance(node.files, path) for path in dict.fromkeys([*paths, *PID_FILES]))
    running = next((pid for pid in holders if pid not in (None, theirs)), None)
    if running is not None:
        return running, None
    named = (locks.read_pid(node.files, path) for path in paths)
    return None, next((pid for pid in named if pid not in (None, theirs)), None)


def _list_pid_files(settings: Settings, receipt: Receipt | None) -> list[str]:
    """Return the paths of runs' PID files, under either of the program's names."""
    return list(dict.fromkeys([settings.pid_file, *([receipt.pid_file] if receipt is not None else [])]))


def _build_last_look(saved: SavedState | None) -> LastLook | None:
    """Return the running instance's last inspection, None if it is at work, or saved none."""
    if saved is None or not saved.converged_at:
        return None
    outcome = saved.inspection
    at = machine.text(saved.converged_at)
    if not saved.failure:
        return LastLook(at, None)
    exit_code, file = (outcome.exit_code, outcome.file) if outcome is not None else (None, None)
    return LastLook(at, saved.failure, exit_code, file)


def _build_pending_reload(saved: SavedState | None) -> PendingReload | None:
    """Return the reload that the running instance waits for, None if it waits for none, or is at work."""
    waits = saved.pending if saved is not None else None
    if waits is None:
        return None
    opens = machine.text(waits.opens) if waits.opens is not None else None
    return PendingReload(waits.engines, waits.reason, machine.text(waits.since), opens)


def _build_plugin_health(saved: SavedState | None) -> PluginHealth | None:
    """Return the NRI plugin's status, None if no plugin is served, or the running instance is at work."""
    if saved is None or saved.plugin is None:
        return None
    plugin = saved.plugin.status
    return PluginHealth(plugin.connected, plugin.engine or None, plugin.reason or None)


def _format_change_time(node: Node, store: ReceiptStore) -> str | None:
    status = node.files.own_status(f"{store.folder}/{schema.FILE}")
    return None if status is None else machine.text(status.st_mtime)


def _inspect_driver(node: Node, settings: Settings, *, has_gpu: bool | None) -> DriverHealth | None:
    """Return the status of the driver that `run` would find.

    None if no driver is expected: the node has no GPU, or that is unknown and there is no trace of a driver.
    """
    if has_gpu is False:
        return None
    seen = roots.find_driver(node, settings.toolkit, _DRIVER_SECONDS)
    found = seen.driver
    if found is None and has_gpu is None and seen.nothing_there:
        return None
    meant_for = roots.find_installed_root(node, settings.toolkit.folder)
    if found is not None:
        return DriverHealth(usable=True, root=found.root, version=found.version, wrong=(), meant_for=meant_for)
    return DriverHealth(
        usable=False,
        root=None,
        version=None,
        wrong=seen.missing,
        meant_for=meant_for,
        hangs=seen.hangs,
        absent=seen.nothing_there,
    )


def _inspect_toolkit(node: Node, settings: Settings, receipt: Receipt) -> ToolkitHealth:
    damage = installed.find_damage(node, settings.toolkit, receipt)
    missing = tuple(each.name for each in damage if each.what == installed.MISSING)
    damaged = tuple(each for each in damage if each.what != installed.MISSING)
    return ToolkitHealth(receipt.toolkit_folder, len(receipt.toolkit_files), missing, damaged, receipt.release)


def _inspect_engine(node: Node, receipt: Receipt, engine: EngineRecord, differences: Mapping[str, str]) -> EngineHealth:
    files = tuple(_inspect_engine_file(node, engine, file, differences) for file in engine.files)
    health, live = _query_engine(node, receipt, engine)
    changed = [file.path for file in files if file.state != AS_WRITTEN]
    return EngineHealth(
        str(engine.name),
        engine.socket,
        dict(engine.handlers),
        engine.default,
        files,
        health,
        tuple(engine_faults.find_faults(node, engine, live, changed)),
        explain_silence(node, engine, health.detail[0]) if live is None else None,
    )


def _query_engine(node: Node, receipt: Receipt, engine: EngineRecord) -> tuple[LiveHealth, LiveState | None]:
    """Return the engine's status, and its answer, None if it gave none."""
    adapter = get_adapter(engine.name)
    if serving.is_socket_activated(node, engine.name, engine.socket):
        stopped = "it is not running, and systemd starts it as soon as anybody asks it"
        return LiveHealth(answers=False, served=None, detail=(stopped,)), None
    try:
        live = adapter.ask(node, engine.socket, _QUERY_SECONDS)
    except EngineSilentError as error:
        return LiveHealth(answers=False, served=None, detail=(error.reason,)), None
    wrong = tuple(find_unserved(node, receipt, engine, live))
    reads = adapter.find_other_config(node, live, {file.role: file.path for file in engine.files}) if wrong else ""
    health = LiveHealth(
        answers=True,
        served=not wrong,
        detail=wrong,
        default=live.default,
        version=live.version,
        own=tuple(sorted(live.own)),
        pid=live.process.pid if live.process is not None else None,
        since=machine.text(live.process.started) if live.process is not None else None,
        reads=reads or None,
    )
    return health, live


def _inspect_engine_file(
    node: Node, engine: EngineRecord, file: FileRecord, differences: Mapping[str, str]
) -> FileHealth:
    """Return the status of an engine's file, and which of our settings it no longer has."""
    health = _inspect_file(node, file, differences)
    if health.state == AS_WRITTEN:
        return health
    return msgspec.structs.replace(
        health, lost=engine_faults.describe_lost_values(node, engine, file, list(dict(engine.handlers)))
    )


def _inspect_file(node: Node, file: FileRecord, differences: Mapping[str, str]) -> FileHealth:
    """Return a file's status; `differences` is of the waiting instance's last inspection, and may be out of date."""
    state = file_records.describe_state(node, file)
    return FileHealth(file.path, state, differences.get(file.path) if state != AS_WRITTEN else None)


_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "InactiveExitTimestamp")
_LOG_LINES = 3
_READ_LINES = 20
_LONGEST_LINE = 300
_STOPPED, _IN_KERNEL = "Tt", "D"
"""States of proc_pid_stat(5): stopped by a signal or by a debugger, and waiting in the kernel."""
_LEVEL = r'^(?:time="?[^" ]*"? )?level=\w+ (?:msg=)?|^\S+ dockerd\[\d+\]: '


def explain_silence(node: Node, engine: EngineRecord, silence: str) -> SilentEngine:
    """Return why an engine does not answer, as far as its process and systemd show it.

    `silence` is how the request ended. The lines of its log may quote its files: values that may be secret are hidden.
    """
    process = serving.find_process(node, engine.name, engine.socket)
    unit, properties = _find_unit(node, engine, process)
    state = _find_engine_state(process, silence)
    active = properties.get("ActiveState", "")
    is_masked = properties.get("LoadState") == "masked"
    # the last lines of a unit that an administrator stopped show an ordinary end
    wants_log = (
        unit is not None and not is_masked and (active not in ("", "inactive") and state is not ProcessState.STOPPED)
    )
    return SilentEngine(
        pid=process.pid if process is not None else None,
        process=state,
        unit=unit,
        unit_state="masked" if is_masked and active != "active" else active or None,
        result=None if properties.get("Result") in (None, "", "success") else properties["Result"],
        log=_read_log(node, unit, properties.get("InactiveExitTimestamp", ""))
        if unit is not None and wants_log
        else (),
    )


def find_process_state(pid: int) -> ProcessState | None:
    """Return whether a process is stopped, or waits in the kernel; None: neither, or it is gone."""
    letter = trust.state_of(pid)
    if letter and letter in _STOPPED:
        return ProcessState.STOPPED
    return ProcessState.IN_KERNEL if letter == _IN_KERNEL else None


def _find_engine_state(process: Process | None, silence: str) -> ProcessState | None:
    """Return the state of an engine's process, None if none runs, or it refuses requests without hanging."""
    if process is None:
        return None
    return find_process_state(process.pid) or (ProcessState.SILENT if silence.endswith(serving.SILENCE) else None)


def _find_unit(node: Node, engine: EngineRecord, process: Process | None) -> tuple[str | None, dict[str, str]]:
    """Return the engine's unit and its properties; (None, {}) if there is no unit, or systemd does not answer."""
    units = serving.list_usual_units(engine.name, engine.socket)
    if process is not None and process.unit is not None:
        units = [process.unit]
    known = node.services.properties(units, _PROPERTIES) if units else None
    for unit, properties in (known or {}).items():
        if properties.get("LoadState") not in (None, "", "not-found"):
            return unit, properties
    return None, {}


def _read_log(node: Node, unit: str, since: str) -> tuple[str, ...]:
    """Return the last lines of a unit's log that report trouble, with secrets masked."""
    from toolkit_installer import foreign_words  # noqa: PLC0415  # only for an engine that fails

    lines = node.services.trouble(unit, since, _READ_LINES) if since else []
    # the unit's failure is known; the program's own lines give the reason
    own = [line for line in lines if not line.startswith((f"{unit}: ", "Failed to start "))] or lines
    shown = (foreign_words.mask_program_text(re.sub(_LEVEL, "", line)) for line in own[-_LOG_LINES:])
    return tuple(" ".join(line.split())[:_LONGEST_LINE] for line in shown)
