"""Looking at the node: the payload, the installed toolkit, the receipt, the engine. Reads, never writes."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import posixpath
import re
import time
from collections.abc import Mapping

from toolkit_installer.driver import cdi, roots
from toolkit_installer.engines.api import Engine, EngineFile, Memory, Request, Survey
from toolkit_installer.engines.common import runtime_paths, stranding
from toolkit_installer.engines.detect import decide, own_container
from toolkit_installer.engines.ownership import OurHandlers
from toolkit_installer.engines.registry import room
from toolkit_installer.errors import ConfigurationError, DriverNotReadyError, UsageError, located
from toolkit_installer.lifecycle import cdi_files, node_checks, plan, versions
from toolkit_installer.lifecycle.plan import EngineWork, Installed, Plan, SpecificationWork, ToolkitWork
from toolkit_installer.lifecycle.still_needed import holders, named_in_files
from toolkit_installer.node.disk import tree
from toolkit_installer.node.disk.tree import Tree
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import FILE as RECEIPT_FILE
from toolkit_installer.receipt.schema import FOLDER as RECEIPT_FOLDER
from toolkit_installer.receipt.schema import EngineRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode, Settings, ToolkitSettings
from toolkit_installer.toolkit import handlers, layout, payload, security, wrappers
from toolkit_installer.toolkit.layout import ToolkitFile
from toolkit_installer.toolkit.payload import Payload

_CLOCK_SECONDS = 2.0
"""How far the start of a process may be off: the kernel tells the instant of its own boot in whole seconds."""
_KEPT = "no driver is usable now, so it stays as it is; once one is, a run renews it, the one that waits too"


@dataclasses.dataclass(frozen=True)
class Observation:
    """The node as it was found, and what is to be done about it."""

    receipt: Receipt | None
    originals: Mapping[str, bytes]
    """The kept copies that the receipt names, by SHA-256."""
    payload: Payload
    toolkit: ToolkitSettings
    """What was asked for, with the driver's paths found."""
    plan: Plan
    warnings: tuple[str, ...] = ()
    """What an engineer should know about the security of what is about to be installed."""
    driver_away: bool = False
    """No driver is usable: what was made for the one that was stays."""


def observe(settings: Settings, node: Node, store: ReceiptStore) -> Observation:
    """Look at everything and plan. Nothing was changed when this raises.

    Raises PayloadError, ConfigurationError, UsageError, DriverNotReadyError.
    """
    return observe_from(store.load(), settings, node, store)


def observe_from(receipt: Receipt | None, settings: Settings, node: Node, store: ReceiptStore) -> Observation:
    """Look and plan as `observe` does, with `receipt` as what was recorded before. Raises what that raises."""
    settings, away = roots.settled(settings, node)
    source = payload.source_root(
        settings.toolkit.source_root, settings.toolkit.package_type, node.programs.find("rpm") is not None, tree.exists
    )
    found = payload.find(Tree(source), source, os.uname().machine)
    originals: dict[str, bytes] = {}
    engines: tuple[EngineWork, ...] = ()
    if settings.configure_engine:
        decided = decide.detect(node, settings)
        engines = tuple(_engine(each.settings, node, store, receipt, found, originals) for each in decided)
        own = tuple(runtime for engine in engines for runtime in engine.goals.low_level)
    else:  # those that are configured stay so
        own = tuple(runtime for record in (receipt.engines if receipt else ()) for runtime in record.low_level)
    made_here, device_nodes, kept = _specifications(settings, node, store, receipt, found)
    toolkit = _toolkit(settings, node, found, receipt, own, engines)
    made = Plan(toolkit, engines, made_here, device_nodes)
    for work in made_here:
        if work.base is not None:
            originals[memory.digest(work.base)] = work.base
    if not made.empty:
        own_container.refuse(node, settings, plan.folders(engines))
    if toolkit.write:
        node_checks.shell(node)
    if not made.empty:
        node_checks.toolkit_folder(node, toolkit.folder)
        node_checks.engine_files(node, engines)
        node_checks.specifications(node, made_here)
    warnings = _warnings(settings, toolkit, found) if toolkit.write else ()
    return Observation(receipt, originals, found, settings.toolkit, made, warnings, driver_away=away or kept)


def _specifications(
    settings: Settings, node: Node, store: ReceiptStore, receipt: Receipt | None, found: Payload
) -> tuple[tuple[SpecificationWork, ...], tuple[str, ...], bool]:
    """Return what is to become of the CDI specifications, and which device nodes are to be created before.

    And whether the one that stands is kept because no driver is usable.
    """
    kept = False
    asked = settings.toolkit.cdi
    missing: tuple[str, ...] = ()
    wanted = None
    if asked.enabled:
        generator = cdi.Generator(found, settings.toolkit)
        try:
            missing = generator.missing_nodes()
            made = generator.specification(nodes_to_come=bool(missing))
            wanted = cdi_files.Wanted(asked.path, made)
        except DriverNotReadyError as error:
            # a driver that is being replaced is no reason to leave the rest undone; what is not there cannot be kept
            ours = cdi_files.standing(node, receipt, asked.path)
            if ours is None:
                raise
            missing, kept = (), True
            wanted = cdi_files.Wanted(asked.path, ours, f"{_KEPT} ({error.reason})")
    return cdi_files.works(node, store, receipt, settings.toolkit.folder, wanted), missing, kept


def _warnings(settings: Settings, toolkit: ToolkitWork, found: Payload) -> tuple[str, ...]:
    """Return the security notes on a toolkit that is about to change."""
    config = next(file.content for file in toolkit.files if file.name == wrappers.CONFIG_NAME)
    assert config is not None  # noqa: S101  # it is always written, never copied
    runtime = dict(found.programs)[payload.RUNTIMES[0]]
    return security.notes(settings.toolkit, config, versions.said_by(found.root, runtime))


def memories(
    engine: Engine, recorded: EngineRecord | None, store: ReceiptStore, originals: dict[str, bytes]
) -> dict[str, Memory]:
    """Return what the receipt remembers of an engine's files, by path; the kept copies go into `originals`."""
    result = {}
    for file in recorded.files if recorded is not None else ():
        before = None
        if file.before is not None:
            before = store.original(file.before)
            originals[file.before.sha256] = before
        result[file.path] = memory.remembered(engine, file, before)
    return result


def engine_record(receipt: Receipt | None, name: EngineName) -> EngineRecord | None:
    """Return the receipt's record of an engine, if it has one."""
    return next((engine for engine in receipt.engines if engine.name == name), None) if receipt is not None else None


def _engine(  # all that an engine's plan depends on
    settings: Settings,
    node: Node,
    store: ReceiptStore,
    receipt: Receipt | None,
    found: Payload,
    originals: dict[str, bytes],
) -> EngineWork:
    (name,) = settings.runtimes
    engine = room(name)
    folder = settings.toolkit.folder
    registered = handlers.handlers(settings.engine.runtime_name, found.executables, folder)
    default = settings.engine.runtime_name if settings.engine.set_as_default else None
    if default is not None and all(handler.name != default for handler in registered):
        raise UsageError(
            f"--runtime-name {default} cannot be the default: the payload has no executable for it",
            hint="choose another name, or a payload that has it",
        )
    request = Request(registered, default, folder, settings.engine)
    recorded = engine_record(receipt, engine.name)
    survey = engine.survey(node, settings.engine)
    _refuse_unread(engine, survey, settings.engine)
    for file in survey.files:
        _refuse_another_installation(node, file, folder)
    goals = engine.goals(survey, request, memories(engine, recorded, store, originals))
    reload = engine.reload(node, survey, settings.engine)
    process = survey.live.process if survey.live is not None else None
    goals = dataclasses.replace(
        goals,
        dangers=engine.dangers(node, survey, reload),
        low_level=runtime_paths.absolute(node, goals.low_level, folder, process),
    )
    due = recorded is not None and recorded.reload_due and not _read_since(survey)
    work = plan.engine_work(engine.name, survey, goals, reload, reload_due=due)
    _refuse_deadly_signal(work)
    if work.changes and survey.live is not None:
        ours = OurHandlers(folder, frozenset(dict(recorded.handlers) if recorded is not None else {}))
        hint = "or keep the handler's name"
        stranding.refuse(node, engine, survey.socket, survey.live, goals.files, ours, hint)
    if work.changes or work.reload_why:
        engine.try_out(node, survey, goals)
    return work


def _refuse_unread(engine: Engine, survey: Survey, settings: EngineSettings) -> None:
    """Raise ConfigurationError if the running engine would not read the file that was named."""
    process = survey.live.process if survey.live is not None else None
    if survey.elsewhere and process is not None:
        raise ConfigurationError(
            f"the running {engine.name} (PID {process.pid}) reads {survey.elsewhere}, and not this file",
            path=settings.config,
            hint="nothing was changed; name that one, or leave --config out; where only single folders of the node are "
            "mounted, mount the folder that it is in, and name it as it is seen there",
        )


def _refuse_deadly_signal(work: EngineWork) -> None:
    """Raise ConfigurationError if a signal on what the files are to be, or on what they go back to, ends the engine."""
    live = work.survey.live
    if live is None or not work.reload_why or work.reload.mode is not ReloadMode.SIGNAL:
        return
    for goal in work.goals.files:
        now = work.survey.file(goal.role).content
        with located(goal.path):
            for content in (goal.target, goal.base, now):
                live.refuse_signal(content, now)


def _read_since(survey: Survey) -> bool:
    """Tell whether the live engine was started after the last change of its files, and so has read them.

    Where that cannot be told, it has not.
    """
    process = survey.live.process if survey.live is not None else None
    changed = [file.found.identity.ctime_ns / 1e9 for file in survey.files if file.found is not None]
    if process is None or len(changed) < len(survey.files):
        return False
    return max(changed) + _CLOCK_SECONDS < process.started <= time.time() + _CLOCK_SECONDS


_RUNTIME_OF_A_TOOLKIT = re.compile(rb"(/[^\"'\s]*)/toolkit/nvidia-container-runtime\b")


def _refuse_another_installation(node: Node, file: EngineFile, folder: str) -> None:
    """Raise ConfigurationError if the file has handlers of ours from another install folder.

    They would count as the operator's, and come back on cleanup when their files may be gone.
    """
    for match in _RUNTIME_OF_A_TOOLKIT.finditer(file.content or b""):
        other = os.fsdecode(match[1])
        if f"{other}/toolkit" != folder and node.files.is_file(f"{other}/{RECEIPT_FOLDER}/{RECEIPT_FILE}"):
            raise ConfigurationError(
                f"names handlers of another installation, in {other}",
                path=file.path,
                hint=f"take that one back first: toolkit-installer uninstall {other}",
            )


def _toolkit(  # all that the toolkit's plan depends on
    settings: Settings,
    node: Node,
    found: Payload,
    receipt: Receipt | None,
    low_level: tuple[str, ...],
    engines: tuple[EngineWork, ...],
) -> ToolkitWork:
    folder = settings.toolkit.folder
    files = layout.desired(found, settings.toolkit, low_level, folder)
    source = Tree(found.root)
    wanted = {file.name: _wanted(file, source) for file in files}
    # without a receipt, what an installer of another time left
    recorded = receipt.toolkit_files if receipt is not None else layout.known(node.files.list(folder))
    names = dict.fromkeys([*wanted, *recorded])
    present = {name: state for name in names if (state := installed(node, folder, name)) is not None}
    work = plan.toolkit_work(folder, files, wanted, present, recorded)
    return dataclasses.replace(work, remove=_removable(node, work, receipt, engines))


def _removable(
    node: Node, work: ToolkitWork, receipt: Receipt | None, engines: tuple[EngineWork, ...]
) -> tuple[str, ...]:
    """Return which of the files that no longer belong may go: none that an engine names, or a container runs with."""
    if not work.remove or (not engines and receipt is not None and receipt.engines):
        return ()
    if holders.holders(node, work.folder, cdi_files.ours(receipt)):
        return ()
    changing = {goal.path for engine in engines for goal in engine.goals.files}
    naming = named_in_files.naming(node, work.folder, instead=changing)
    named = {path for each in naming for path in (each.path, node.files.canonical(each.path))}
    unreloaded = [engine.survey.live for engine in engines if engine.reload.mode is ReloadMode.NONE]
    offered = named | {path for live in unreloaded if live is not None for path in live.handlers.values()}
    return tuple(name for name in work.remove if posixpath.join(work.folder, name.removesuffix(".real")) not in offered)


def _wanted(file: ToolkitFile, source: Tree) -> Installed:
    if file.target is not None:
        return Installed(link=file.target)
    if file.content is not None:
        return Installed(digest=hashlib.sha256(file.content).hexdigest(), mode=file.mode)
    assert file.source is not None  # noqa: S101  # one of the three is set
    return Installed(digest=source.digest(file.source), mode=file.mode)


def installed(node: Node, folder: str, name: str) -> Installed | None:
    """Return one of the toolkit's files as it is on the node, None where there is nothing."""
    path = posixpath.join(folder, name)
    link = node.files.link_target(path)
    if link is not None:
        return Installed(link=link)
    status = node.files.own_status(path)
    if status is None:
        return None
    return Installed(digest=node.files.digest(path), mode=status.st_mode & 0o7777)
