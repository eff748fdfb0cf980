"""Compute what to change on the node, and in which order, from the target and the facts found. Pure.

`observe` fills in the facts. A fact that is expensive and seldom needed is a function: the node is inspected when the
plan calls it. With CDI, engines get no handlers and read the specification.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from toolkit_installer.documents import changes
from toolkit_installer.driver.roots import Driver
from toolkit_installer.engines.api import (
    DesiredFile,
    DesiredState,
    Inspection,
    LiveState,
    RecordedFile,
    Reload,
    get_adapter,
)
from toolkit_installer.engines.common import losses
from toolkit_installer.engines.ownership import Ownership, is_beneath
from toolkit_installer.engines.target import Request
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.planning import installed
from toolkit_installer.planning.installed import Generated, InstalledFile, SpecificationFacts, SpecificationWork
from toolkit_installer.planning.method import CdiSupport, Choice, refuse_unreadable
from toolkit_installer.receipt.schema import Copy, EngineRecord, FileRecord, Receipt, State
from toolkit_installer.settings import EngineName, Method, ReloadMode, Settings
from toolkit_installer.toolkit import layout
from toolkit_installer.toolkit.layout import ToolkitFile
from toolkit_installer.toolkit.payload import Payload


class Target(msgspec.Struct, frozen=True):
    """A run's target: the unchanged settings, and the values resolved from them once."""

    settings: Settings
    driver: Driver
    payload: Payload
    engines: tuple[Request, ...]
    """The handlers to register, by engine."""
    driver_away: bool
    """No driver is usable, and the driver root from the last installation is kept."""


class EngineFacts(msgspec.Struct, frozen=True):
    """The inspection of an engine that is to be configured, and the facts recorded about it."""

    request: Request
    inspection: Inspection
    recorded: EngineRecord | None
    records: Mapping[str, RecordedFile]
    """The receipt's records of its files, by path."""
    reload: Reload
    """How it is made to read its files."""
    dangers: tuple[str, ...]
    """The risks of reloading it, as text."""
    read_since: bool
    """Whether it started after its files were last changed, and so has read them. Unknown counts as not read: a
    needless reload is cheaper than an engine that never learned its handlers."""
    base_runtimes: Callable[[Sequence[str]], tuple[str, ...]]
    """Returns the paths of the low-level runtimes that its files name, as its process resolves them."""

    @property
    def reload_due(self) -> bool:
        """Whether a run changed its files and ended before it saw the engine serve the change."""
        return self.recorded is not None and self.recorded.reload_due and not self.read_since


class ToolkitFacts(msgspec.Struct, frozen=True):
    """The toolkit's folder as found, and the payload that fills it."""

    folder: str
    recorded: tuple[str, ...]
    """Names of files that this or an earlier installer put there."""
    present: Mapping[str, InstalledFile]
    """The existing files, by their names, of the recorded and the planned ones."""
    digests: Mapping[str, str | None]
    """SHA-256 of the payload's files that have an installed file, by payload path; None for a file that has vanished.

    Files whose installed file is known to be a copy are omitted.
    """
    copies: tuple[Copy, ...]
    """The stamps of installed files and their payload files, taken before their contents were read."""
    made: Mapping[str, bytes]
    """Known contents of generated files, by recipe."""
    in_use: Callable[[], bool]
    """Returns whether a container, or another program's CDI specification, needs a file of the folder."""
    named: Callable[[Collection[str]], frozenset[str]]
    """Returns the paths below the folder that engines' files name, except files that are about to change."""


class Facts(msgspec.Struct, frozen=True):
    """All facts found on the node."""

    receipt: Receipt | None
    originals: Mapping[str, bytes]
    """The backups of the engines' files that the receipt names, by SHA-256."""
    engines: tuple[EngineFacts, ...]
    toolkit: ToolkitFacts
    specifications: SpecificationFacts
    generated: Generated | None
    """None if no specification was requested."""
    cdi_support: tuple[CdiSupport, ...] = ()
    """The engines' CDI support, in the order of the engines."""
    choice: Choice = Choice()


_KEPT = "no driver is usable now, so it stays as it is; once one is, a run renews it, the one that waits too"


class ToolkitWork(msgspec.Struct, frozen=True):
    """The changes of the toolkit: `write` in this order, `remove` last of all."""

    folder: str
    files: tuple[ToolkitFile, ...]
    write: tuple[ToolkitFile, ...]
    remove: tuple[str, ...]
    present: frozenset[str] = frozenset()
    """Names of files that existed before, whoever installed them."""


class EngineWork(msgspec.Struct, frozen=True):
    """The changes of an engine, for installing or reverting. `reload_why` is the reason for its reload."""

    name: EngineName
    inspection: Inspection
    desired: DesiredState
    reload: Reload = Reload(ReloadMode.NONE)
    reload_why: str = ""
    is_removal: bool = False
    """No entry of ours is to stay in its files, which are in the order of a cleanup."""

    @property
    def changes(self) -> bool:
        """Whether any of the engine's files is to be changed."""
        return any(wanted.changes for wanted in self.desired.files)


class Plan(msgspec.Struct, frozen=True):
    """All changes of a run."""

    toolkit: ToolkitWork
    engines: tuple[EngineWork, ...]
    """The engines whose files this run manages; other engines in the receipt are reverted in the end."""
    specifications: tuple[SpecificationWork, ...] = ()
    device_nodes: tuple[str, ...] = ()
    """The driver's device nodes to create first, as paths that the installer sees; what depends on them is then planned
    again."""
    cdi: tuple[EngineRecord, ...] = ()
    """The engines whose containers are to get the GPU by CDI."""
    choice: Choice = Choice()

    @property
    def empty(self) -> bool:
        """Whether the node is as it should be."""
        return (
            not self.toolkit.write
            and not self.toolkit.remove
            and not any(engine.changes or engine.reload_why for engine in self.engines)
            and not any(specification.changes for specification in self.specifications)
            and not self.device_nodes
        )


def build_plan(target: Target, facts: Facts) -> Plan:
    """Return the changes that bring the node to the target; an empty plan if there are none.

    Raises ConfigurationError if an engine's files cannot be edited, PayloadError, UsageError; DriverNotReadyError if a
    CDI specification can be neither generated nor kept.
    """
    method = facts.choice.method
    works = tuple(_plan_engine(each, method) for each in facts.engines)
    if target.settings.configure_engine:
        low_level = tuple(runtime for engine in works for runtime in engine.desired.low_level)
    else:  # configured engines stay so
        recorded = facts.receipt.engines if facts.receipt is not None else ()
        low_level = tuple(runtime for record in recorded for runtime in record.low_level)
    missing = facts.generated.missing_nodes if facts.generated is not None else ()
    specifications = _plan_specifications(facts)
    engines = works
    if method is Method.NRI:
        given_back = (_plan_removal(*each) for each in zip(facts.engines, works, strict=True))
        engines = tuple(work for work in given_back if work is not None)
        require_readable_by_all(facts, specifications)
    elif method is Method.CDI:
        found = zip(facts.engines, facts.cdi_support, works, strict=True)
        engines = tuple(work for each in found if (work := _plan_cdi(*each)) is not None)
        require_cdi_devices(facts, engines, specifications)
    toolkit = _plan_toolkit(target, facts, low_level, engines)
    return Plan(toolkit, engines, specifications, missing, list_cdi_readers(target, facts), facts.choice)


def _plan_engine(seen: EngineFacts, method: Method) -> EngineWork:
    engine = get_adapter(seen.request.target.name)
    request = seen.request if method is Method.HANDLERS else seen.request.by_cdi_alone()
    with losses.name_backups_in_errors(seen.records):
        desired = engine.build_desired_state(seen.inspection, request, seen.records)
    desired = msgspec.structs.replace(
        desired,
        dangers=seen.dangers,
        low_level=seen.base_runtimes(desired.low_level),
        cdi_on=method is Method.CDI,
        freed=request.toolkit_folder if request.by_cdi else "",
    )
    return build_engine_work(engine.name, seen.inspection, desired, seen.reload, reload_due=seen.reload_due)


def _plan_cdi(seen: EngineFacts, support: CdiSupport, work: EngineWork) -> EngineWork | None:
    """Return an engine's changes with CDI: the edit that enables it, or the removal of our entries.

    None if the engine reads specifications as it is, and its files have no entry of ours.
    """
    return work if support.edited else _plan_removal(seen, work)


def _plan_removal(seen: EngineFacts, work: EngineWork) -> EngineWork | None:
    """Return the changes that remove our entries from an engine's files; None if there are none."""
    files = remove_handlers(seen)
    if not files:
        return None
    notes = tuple(note for wanted in files for note in wanted.notes)
    desired = msgspec.structs.replace(work.desired, files=files, notes=notes, restart_why="")
    again = build_engine_work(work.name, seen.inspection, desired, seen.reload, reload_due=seen.reload_due)
    return msgspec.structs.replace(again, is_removal=True)


def _plan_specifications(facts: Facts) -> tuple[SpecificationWork, ...]:
    """Return the changes of the requested CDI specification, and of those no longer requested."""
    made, remark = facts.generated, ""
    failure = made.failure if made is not None else None
    if made is not None and failure is not None:
        # while a driver is being replaced, the rest is still done; but without a specification there is none to keep
        ours = installed.find_our_content(facts.specifications, facts.receipt, made.path)
        if ours is None:
            raise failure
        made, remark = msgspec.structs.replace(made, content=ours), f"{_KEPT} ({failure.reason})"
    return installed.plan_specifications(facts.specifications, facts.receipt, facts.toolkit.folder, made, remark)


def _plan_toolkit(
    target: Target, facts: Facts, low_level: tuple[str, ...], engines: Sequence[EngineWork]
) -> ToolkitWork:
    seen = facts.toolkit
    files = layout.desired_files(
        target.payload, target.settings.toolkit, low_level, seen.folder, target.driver.root, seen.made
    )
    wanted = {file.name: _wanted(file, seen) for file in files}
    work = build_toolkit_work(seen.folder, files, wanted, seen.present, seen.recorded)
    others = not engines and facts.receipt is not None and facts.receipt.engines
    return msgspec.structs.replace(work, remove=() if others else _find_removable(work, seen, engines))


def _wanted(file: ToolkitFile, seen: ToolkitFacts) -> InstalledFile:
    if file.target is not None:
        return InstalledFile(link=file.target)
    if file.content is not None:
        return InstalledFile(digest=changes.sha256(file.content), mode=file.mode)
    assert file.source is not None  # noqa: S101  # one of the three is set
    known = seen.present.get(file.name)
    if known is not None and known.copy_of == file.source:
        return InstalledFile(mode=file.mode, copy_of=file.source)
    return InstalledFile(digest=seen.digests.get(file.source), mode=file.mode)


def _find_removable(work: ToolkitWork, seen: ToolkitFacts, engines: Iterable[EngineWork]) -> tuple[str, ...]:
    """Return which obsolete files may be removed: those that no engine names and no container uses."""
    if not work.remove or seen.in_use():
        return ()
    named = seen.named({wanted.path for engine in engines for wanted in engine.desired.files})
    unreloaded = [engine.inspection.live for engine in engines if engine.reload.mode is ReloadMode.NONE]
    offered = named | {path for live in unreloaded if live is not None for path in live.handlers.values()}
    return tuple(name for name in work.remove if posixpath.join(work.folder, name.removesuffix(".real")) not in offered)


def list_changed_folders(engines: Sequence[EngineWork]) -> list[str]:
    """Return the folders of the engines' files that are to be changed."""
    desired = [wanted for work in engines for wanted in work.desired.files if wanted.changes]
    return list(dict.fromkeys(posixpath.dirname(wanted.path) for wanted in desired))


def find_moved_engine(recorded: Sequence[EngineRecord], engines: Sequence[EngineWork]) -> EngineRecord | None:
    """Return the record of an engine that is now configured in another file; None if there is none."""
    now = {engine.name: {wanted.path for wanted in engine.desired.files} for engine in engines}
    for record in recorded:
        if record.name in now and any(
            file.path not in now[record.name] and _may_hold_ours(file) for file in record.files
        ):
            return record
    return None


def _may_hold_ours(file: FileRecord) -> bool:
    """Return whether a file may hold entries of ours; from some, only an older installer's were removed."""
    return any(file.before is None or digest != file.before.sha256 for digest in file.written)


def is_done(receipt: Receipt | None, plan: Plan) -> bool:
    """Return whether nothing is to be changed, and the receipt has all engines and specifications of the plan.

    A correct engine may be unrecorded: a distribution may have copied a file with our handlers to a new place.
    """
    if receipt is None or receipt.state is not State.INSTALLED or not plan.empty:
        return False
    if any(engine.is_removal for engine in plan.engines):
        return False  # its record is to be removed
    if any(_has_other_original(receipt, work) for work in plan.engines):
        return False  # record an administrator's changes, as a lost file is restored from the backup
    if (receipt.cdi, receipt.method_why) != (plan.cdi, plan.choice.why):
        return False
    paths = {work.path for work in plan.specifications if work.target not in (None, work.base)}
    return {engine.name for engine in plan.engines} <= {record.name for record in receipt.engines} and paths <= {
        record.path for record in receipt.specifications
    }


def _has_other_original(receipt: Receipt, work: EngineWork) -> bool:
    """Return whether a file without our entries differs from its backup."""
    record = receipt.engine(work.name)
    kept = {file.path: file.before.sha256 for file in record.files if file.before is not None} if record else {}
    return any(
        wanted.path in kept and wanted.base is not None and changes.sha256(wanted.base) != kept[wanted.path]
        for wanted in work.desired.files
    )


def find_superseded(recorded: Sequence[EngineRecord], plan: Plan) -> tuple[EngineRecord, ...]:
    """Return the records of engines that this run does not manage, and that are to be reverted.

    If the plan has no engines and the method is `handlers`, configured engines stay as they are.
    """
    now = {engine.name for engine in plan.engines}
    looked_after = plan.engines or plan.choice.method is not Method.HANDLERS
    return tuple(record for record in recorded if looked_after and record.name not in now)


def build_toolkit_work(
    folder: str,
    files: Sequence[ToolkitFile],
    wanted: Mapping[str, InstalledFile],
    present: Mapping[str, InstalledFile],
    recorded: Sequence[str],
) -> ToolkitWork:
    """Return which of `files` differ on the node, and which recorded ones are obsolete."""
    write = tuple(file for file in files if present.get(file.name) != wanted[file.name])
    remove = tuple(name for name in recorded if name not in wanted and name in present)
    return ToolkitWork(folder, tuple(files), write, remove, frozenset(present))


def build_engine_work(
    name: EngineName, inspection: Inspection, desired: DesiredState, reload: Reload, *, reload_due: bool
) -> EngineWork:
    """Return an engine's part of the plan."""
    why = ""
    if reload.mode is not ReloadMode.NONE:
        if any(wanted.changes for wanted in desired.files):
            why = "its configuration changes"
        elif reload_due:
            why = "it was not reloaded after the last change"
        elif inspection.live is not None:
            why = "; ".join(find_differences(inspection.live, desired))
            why = why or (desired.restart_why if reload.restarts else "")
    return EngineWork(name, inspection, desired, reload, why)


def find_differences(live: LiveState, desired: DesiredState) -> list[str]:
    """Return how the live engine differs from its desired state, as text; an empty list if it does not."""
    wrong = find_mismatches(live, desired.served, desired.default)
    if desired.cdi_on and live.cdi_folders == ():
        wrong.append("CDI is off in it")
    ours = [name for name, path in live.handlers.items() if desired.freed and is_beneath(path, desired.freed)]
    return wrong + [f"it still lists the handler {name}" for name in ours if name not in live.own]


def find_mismatches(live: LiveState, served: Mapping[str, str], default: str | None) -> list[str]:
    """Return how the live engine differs from what it should serve, as text; an empty list if it does not."""
    wrong = []
    for name, path in served.items():
        if name not in live.handlers:
            wrong.append(f"it does not list the handler {name}")
        elif live.handlers[name] not in (None, path):
            wrong.append(f"its handler {name} runs {live.handlers[name]}, not {path}")
    if default is not None and live.default not in (None, default):
        wrong.append(f"its default runtime is {live.default}, not {default}")
    return wrong


def find_unreverted(now: LiveState, work: EngineWork) -> list[str]:
    """Return what the engine still serves of a rolled-back change, as text; an empty list if nothing."""
    before = work.inspection.live
    known = before.handlers if before is not None else {}
    wrong = []
    for name, path in work.desired.served.items():
        told = now.handlers.get(name)
        # an earlier handler with another path has to be back; an engine may report no path
        left = told == path and known[name] not in (None, path) if name in known else told in (None, path)
        if left and name in now.handlers and name not in now.own:
            wrong.append(f"it still lists the handler {name}")
    if before is not None and now.default != before.default and now.default == work.desired.default:
        wrong.append(f"its default runtime is still {now.default}")
    return wrong


def list_cdi_readers(target: Target, facts: Facts) -> tuple[EngineRecord, ...]:
    """Return the engines whose containers get the GPU by CDI; if no engine was inspected, the recorded ones."""
    if facts.choice.method is not Method.CDI:
        kept = not target.settings.configure_engine and target.settings.toolkit.cdi.enabled
        return facts.receipt.cdi if kept and facts.receipt is not None else ()
    found = [(each.request, each.inspection.socket) for each in facts.engines]
    return tuple(
        EngineRecord(request.target.name, socket, request.settings.reload_mode, (), None, ())
        for request, socket in found
    )


def remove_handlers(seen: EngineFacts) -> tuple[DesiredFile, ...]:
    """Return an engine's files without our entries, in the order of a cleanup; none if they have no entry of ours.

    Also none if the engine no longer has a recorded file: then it is reverted by its record. Raises ConfigurationError.
    """
    recorded = [file.path for file in reversed(seen.recorded.files)] if seen.recorded is not None else []
    present = {file.path: file for file in seen.inspection.files}
    if not present.keys() >= set(recorded):
        return ()
    engine, folder = get_adapter(seen.request.target.name), seen.request.toolkit_folder
    known = engine.find_unrecorded(seen.inspection, folder)
    files = []
    for path in dict.fromkeys([*recorded, *present]):
        record = seen.records.get(path) or RecordedFile(ownership=known.get(path, Ownership()))
        files.append(engine.remove_ours(present[path], record, folder))
    of_ours = tuple(wanted for wanted in files if wanted.path in recorded or wanted.changes)
    return of_ours if seen.recorded is not None or any(wanted.changes for wanted in of_ours) else ()


def require_cdi_devices(
    facts: Facts, engines: Sequence[EngineWork], specifications: Sequence[SpecificationWork]
) -> None:
    """Raise ConfigurationError if CDI would stay off in an engine, or it could not read the specification."""
    supports = {each.engine: each for each in facts.cdi_support}
    for work in engines:
        edited = any(wanted.target != wanted.base for wanted in work.desired.files)
        if not supports[work.name].off:
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
    require_readable_by_all(facts, specifications)


def require_readable_by_all(facts: Facts, specifications: Sequence[SpecificationWork]) -> None:
    """Raise ConfigurationError if an engine could not read a specification that is to be written."""
    for specification in specifications:
        if specification.target is not None and specification.target != specification.base:
            refuse_unreadable(facts.cdi_support, specification.target, specification.path)
