"""Looking at a node for `status`: what was installed, what became of it, and who serves it. Reads, and never writes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

import msgspec

from toolkit_installer import __version__
from toolkit_installer.driver import gpus, roots
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import EngineSilentError, Live
from toolkit_installer.engines.common import serving
from toolkit_installer.lifecycle import last_run, look_outcome, other_installer, refresh_command, waiting_state
from toolkit_installer.lifecycle.files import intact
from toolkit_installer.lifecycle.health import engine_faults, given, silence
from toolkit_installer.lifecycle.health.form import (
    DriverHealth,
    EngineHealth,
    FileHealth,
    Found,
    LastLook,
    LiveHealth,
    MethodHealth,
    PendingReload,
    Places,
    PluginHealth,
    ToolkitHealth,
)
from toolkit_installer.lifecycle.health.verdict import ABSENT
from toolkit_installer.lifecycle.method import said
from toolkit_installer.lifecycle.other_installer import OtherInstaller
from toolkit_installer.lifecycle.plugin import standing
from toolkit_installer.lifecycle.reading_cdi import unserved
from toolkit_installer.lifecycle.reload_when import pending
from toolkit_installer.lifecycle.waiting_state import Remembered
from toolkit_installer.node import clock, locks, processes
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import drift, schema
from toolkit_installer.receipt.schema import AS_WRITTEN, EngineRecord, FileRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import PID_FILES, Method, Settings

_ASK_SECONDS = 5.0
_DRIVER_SECONDS = 20.0


@processes.one_look()
def look(node: Node, settings: Settings, store: ReceiptStore, receipt: Receipt | None) -> Found:
    """Return how the node stands; `receipt` is the one in `store`. Raises NodeError, ConfigurationError, Stopped."""
    seen = gpus.find_gpus(node)
    has_gpu = bool(seen.own) if seen.own or seen.known else None
    other = other_installer.found(node, settings.toolkit.install_dir)
    running, killed = _instances(node, settings, receipt, other)
    remembered = waiting_state.of_instance(running) if running is not None else None
    told = dict(remembered.differences) if remembered is not None else {}
    driver = _driver(node, settings, has_gpu=has_gpu)
    toolkit = _toolkit(node, settings, receipt) if receipt is not None else None
    engines = tuple(_engine(node, receipt, each, told) for each in receipt.asked()) if receipt is not None else ()
    specifications = tuple(_file(node, file, told) for file in (receipt.specifications if receipt is not None else ()))
    method = None
    if receipt is not None and receipt.state is State.INSTALLED and engines:
        against = [*_against(engines, driver, toolkit), *(_against_reading(specifications) if receipt.cdi else ())]
        method = _method(node, receipt, engines, against)
    return Found(
        version=__version__,
        looked_in=Places(settings.node_root or "/", f"{store.folder}/{schema.FILE}", settings.pid_file),
        installed=receipt is not None and receipt.state is State.INSTALLED,
        state=receipt.state.value if receipt is not None else ABSENT,
        changed=_changed(node, store) if receipt is not None else None,
        running_pid=running,
        running_state=silence.process_state(running) if running is not None else None,
        receipt_gone=receipt is None and running is not None and intact.is_there(node, settings.toolkit.folder),
        killed_pid=killed,
        other_installer=str(other) if other is not None else None,
        refresh=refresh_command.of_run(running) if running is not None else None,
        last_look=_last_look(remembered),
        pending_reload=_pending(remembered),
        last_run=last_run.kept(node, _pid_files(settings, receipt), settings.ready_file),
        gpus=seen.words,
        has_gpu=has_gpu,
        driver=driver,
        toolkit=toolkit,
        engines=engines,
        specifications=specifications,
        method=method,
        plugin=_plugin(remembered),
    )


def _against(
    engines: tuple[EngineHealth, ...], driver: DriverHealth | None, toolkit: ToolkitHealth | None
) -> list[str]:
    """Return what keeps a container from being given the GPU now, whichever way it asks."""
    against = [f"{engine.name}: {'; '.join(engine.live.detail)}" for engine in engines if not engine.live.served]
    if driver is not None and not driver.usable:
        against.append("no driver is usable")
    if toolkit is not None:
        damaged = (*toolkit.missing, *(each.name for each in toolkit.damaged if each.certain))
        against += [f"{name} is missing or damaged" for name in damaged]
    return against


def _against_reading(specifications: tuple[FileHealth, ...]) -> list[str]:
    return [f"{file.path}: {file.state}" for file in specifications if file.state != AS_WRITTEN]


def _method(node: Node, receipt: Receipt, engines: tuple[EngineHealth, ...], against: list[str]) -> MethodHealth:
    """Return how containers get the GPU, what is against it now, and what they have to say for it. Raises NodeError."""
    if receipt.cdi:
        kinds = ", ".join(f"{_kind(file.path)}=all" for file in receipt.specifications)
        asked_by = f"a CDI device, such as {kinds}" if kinds else "a CDI device"
        why = said(Method.CDI, receipt.method_why)
        return MethodHealth(str(Method.CDI), why, asked_by, not against, tuple(against))
    handlers = {name: path for engine in receipt.engines for name, path in engine.handlers}
    settings = given.settings_of(node, receipt)
    running = [engine.live.pid for engine in engines if engine.live.pid is not None]
    no_runtime = given.no_low_level_runtime(node, settings, running)
    not_by = given.without_devices(node, settings, handlers)
    giving = [name for name in handlers if name not in not_by]
    against = [*against, *([no_runtime] if no_runtime is not None else [])]
    against += [] if giving else list(dict.fromkeys(not_by.values()))
    return MethodHealth(
        str(Method.HANDLERS),
        said(Method.HANDLERS, receipt.method_why),
        f"the handler {' or '.join(giving or handlers)}",
        not against,
        tuple(against),
        not_by if giving else {},
        no_runtime,
    )


def _kind(path: str) -> str:
    """Return the kind of a specification's devices, by the name of its file (`CdiSettings.path`)."""
    return posixpath.basename(path).removesuffix(".yaml").replace("-", "/", 1)


def _instances(
    node: Node, settings: Settings, receipt: Receipt | None, other: OtherInstaller | None
) -> tuple[int | None, int | None]:
    """Return the PID of the running instance, under whichever of the program's names, and that of a killed one."""
    paths = _pid_files(settings, receipt)
    theirs = other.pid if other is not None else None
    holders = (locks.holder(node.files, path) for path in dict.fromkeys([*paths, *PID_FILES]))
    running = next((pid for pid in holders if pid not in (None, theirs)), None)
    if running is not None:
        return running, None
    named = (locks.named(node.files, path) for path in paths)
    return None, next((pid for pid in named if pid not in (None, theirs)), None)


def _pid_files(settings: Settings, receipt: Receipt | None) -> list[str]:
    """Return where the PID files of runs may be, under whichever of the program's names."""
    return list(dict.fromkeys([settings.pid_file, *([receipt.pid_file] if receipt is not None else [])]))


def _last_look(remembered: Remembered | None) -> LastLook | None:
    """Return what the running instance remembers of its last look, None where it is at work, or remembers none."""
    if remembered is None or not remembered.looked_at:
        return None
    outcome = look_outcome.parsed(remembered.look)
    at = clock.text(remembered.looked_at)
    if not remembered.failure:
        return LastLook(at, None)
    exit_code, file = (outcome.exit_code, outcome.file) if outcome is not None else (None, None)
    return LastLook(at, remembered.failure, exit_code, file)


def _pending(remembered: Remembered | None) -> PendingReload | None:
    """Return the reload that the running instance waits for, None where it waits for none, or is at work."""
    waits = pending.understood(remembered.pending) if remembered is not None else None
    if waits is None:
        return None
    opens = clock.text(waits.opens) if waits.opens is not None else None
    return PendingReload(waits.engines, waits.reason, clock.text(waits.since), opens)


def _plugin(remembered: Remembered | None) -> PluginHealth | None:
    """Return how the NRI plugin stands, None where none is served, or the running instance is at work."""
    if remembered is None or not remembered.plugin:
        return None
    stands = standing.remembered(remembered.plugin)
    return PluginHealth(stands.connected, stands.engine or None, stands.reason or None)


def _changed(node: Node, store: ReceiptStore) -> str | None:
    status = node.files.own_status(f"{store.folder}/{schema.FILE}")
    return None if status is None else clock.text(status.st_mtime)


def _driver(node: Node, settings: Settings, *, has_gpu: bool | None) -> DriverHealth | None:
    """Return how the driver stands that `run` would find.

    None where none is to be expected: the node has no GPU, or nobody can tell, and there is nothing of a driver.
    """
    if has_gpu is False:
        return None
    seen = roots.find_driver(node, settings.toolkit, _DRIVER_SECONDS)
    found = seen.driver
    if found is None and has_gpu is None and seen.nothing_there:
        return None
    meant_for = roots.installed_root(node, settings.toolkit.folder)
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


def _toolkit(node: Node, settings: Settings, receipt: Receipt) -> ToolkitHealth:
    damage = intact.damaged(node, settings, receipt)
    missing = tuple(each.name for each in damage if each.what == intact.MISSING)
    damaged = tuple(each for each in damage if each.what != intact.MISSING)
    return ToolkitHealth(receipt.toolkit_folder, len(receipt.toolkit_files), missing, damaged, receipt.release)


def _engine(node: Node, receipt: Receipt, engine: EngineRecord, told: Mapping[str, str]) -> EngineHealth:
    files = tuple(_engine_file(node, engine, file, told) for file in engine.files)
    health, live = _live(node, receipt, engine)
    changed = [file.path for file in files if file.state != AS_WRITTEN]
    return EngineHealth(
        str(engine.name),
        engine.socket,
        dict(engine.handlers),
        engine.default,
        files,
        health,
        tuple(engine_faults.find(node, engine, live, changed)),
        silence.explain(node, engine, health.detail[0]) if live is None else None,
    )


def _live(node: Node, receipt: Receipt, engine: EngineRecord) -> tuple[LiveHealth, Live | None]:
    """Return how the engine stands, and its answer, None where it gave none."""
    adapter = adapter_of(engine.name)
    if serving.starts_when_asked(node, engine.name, engine.socket):
        stopped = "it is not running, and systemd starts it as soon as anybody asks it"
        return LiveHealth(answers=False, served=None, detail=(stopped,)), None
    try:
        live = adapter.ask(node, engine.socket, _ASK_SECONDS)
    except EngineSilentError as error:
        return LiveHealth(answers=False, served=None, detail=(error.reason,)), None
    wrong = tuple(unserved(node, receipt, engine, live))
    reads = adapter.reads_instead(node, live, {file.role: file.path for file in engine.files}) if wrong else ""
    health = LiveHealth(
        answers=True,
        served=not wrong,
        detail=wrong,
        default=live.default,
        version=live.version,
        own=tuple(sorted(live.own)),
        pid=live.process.pid if live.process is not None else None,
        since=clock.text(live.process.started) if live.process is not None else None,
        reads=reads or None,
    )
    return health, live


def _engine_file(node: Node, engine: EngineRecord, file: FileRecord, told: Mapping[str, str]) -> FileHealth:
    """Return how an engine's file stands, and what of ours is no longer in it."""
    health = _file(node, file, told)
    if health.state == AS_WRITTEN:
        return health
    return msgspec.structs.replace(health, lost=engine_faults.lost(node, engine, file, list(dict(engine.handlers))))


def _file(node: Node, file: FileRecord, told: Mapping[str, str]) -> FileHealth:
    """Return how a file stands; `told` is what the waiting instance saw, which may be a look behind."""
    state = drift.state_of(node, file)
    return FileHealth(file.path, state, told.get(file.path) if state != AS_WRITTEN else None)
