"""Build the receipt of a change: all that it will do, before it begins; what is installed, once it is done."""

from __future__ import annotations

import os

import msgspec

from toolkit_installer import __version__
from toolkit_installer.engines.api import DesiredFile, Engine, get_adapter
from toolkit_installer.node.node import Node
from toolkit_installer.planning import installed, other_installer
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import Content, Copy, EngineRecord, FileRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineName, ReloadMode
from toolkit_installer.toolkit import layout
from toolkit_installer.toolkit.layout import ToolkitFile
from toolkit_installer.toolkit.payload import is_usable_runtime


class ReceiptBuilder:
    """Builds the receipt of a change that is about to begin. Inspects the node's folders, and writes nothing."""

    def __init__(self, node: Node, store: ReceiptStore, pid_path: str, pid_folders: tuple[str, ...]) -> None:
        """`pid_folders` are the folders that were created for the PID file."""
        self._node = node
        self._store = store
        self._pid_path = pid_path
        self._pid_folders = pid_folders

    def require_recordable(self, seen: Prepared) -> None:
        """Raise ConfigurationError if the receipt of the change could not be written and read back."""
        self._store.require_recordable(self.build(seen, ()))

    def build(self, seen: Prepared, created: tuple[str, ...]) -> Receipt:
        """Return the receipt to save before the first change; `created` are folders already created for it."""
        previous = seen.receipt
        work = seen.plan.toolkit
        old = previous.toolkit_files if previous is not None else ()
        others = previous.engines if previous is not None else ()
        old_pid_folders = previous.pid_folders if previous is not None else ()
        names = dict.fromkeys([*old, *(file.name for file in work.files)])
        known = previous.folders if previous is not None else self._find_adopted_folders(work.folder)
        folders = dict.fromkeys([*known, *created])
        for folder in dict.fromkeys(map(os.path.dirname, _list_written_paths(seen))):
            folders.update(dict.fromkeys(self._node.files.missing_folders(folder)))
        # the receipt's own folder is removed with the receipt, not with these
        folders.pop(self._store.folder, None)
        return Receipt(
            state=State.APPLYING,
            installer=__version__,
            toolkit_folder=work.folder,
            toolkit_files=tuple(names),
            folders=tuple(folders),
            pid_file=self._pid_path,
            pid_folders=tuple(dict.fromkeys([*old_pid_folders, *self._pid_folders])),
            # engines that are configured but not requested now stay recorded until they are reverted
            engines=(
                *(record for record in others if record.name not in {engine.name for engine in seen.plan.engines}),
                *(self._build_engine(seen, engine) for engine in seen.plan.engines),
            ),
            specifications=_build_specifications(seen),
            cdi=seen.plan.cdi,
            cdi_switched=_find_switched_engines(seen),
            method_why=seen.plan.choice.why,
            taken_over=other_installer.list_replaced(previous, seen.plan),
        )

    def _find_adopted_folders(self, folder: str) -> tuple[str, ...]:
        """Return the toolkit's folders if they hold an installer's files that no receipt names."""
        if not layout.find_installer_files(self._node.files.list(folder)):
            return ()
        return (folder, *(f"{folder}/{place}" for place in layout.FOLDERS))

    def _build_engine(self, seen: Prepared, work: EngineWork) -> EngineRecord:
        engine = get_adapter(work.name)
        previous = seen.receipt.engine(work.name) if seen.receipt is not None else None
        old = {file.path: file for file in previous.files} if previous is not None else {}
        files = [_build_file(engine, work, wanted, old.get(wanted.path)) for wanted in work.desired.files]
        process = work.inspection.process if work.reload_why else None
        if work.is_removal:
            files.reverse()  # the order of writing, which a revert after a kill reverses again
        return EngineRecord(
            name=work.name,
            socket=work.inspection.socket,
            reload=seen.target.settings.settings_of(work.name).reload_mode,
            handlers=tuple(work.desired.served.items()),
            default=work.desired.default,
            files=tuple(file for file in files if file is not None),
            low_level=tuple(filter(is_usable_runtime, work.desired.low_level)),
            defaults=_find_defaults(engine, work, previous),
            reload_due=bool(work.reload_why),
            unread_by=process.identity if process is not None else None,
        )


def _find_defaults(engine: Engine, work: EngineWork, previous: EngineRecord | None) -> tuple[tuple[str, str], ...]:
    """Return the default runtimes that the engine's files name, by role; the recorded one if they name ours."""
    ours = {*work.desired.served, *(dict(previous.handlers) if previous is not None else ())}
    earlier = dict(previous.defaults) if previous is not None else {}
    found = {file.role: engine.read_default(file) for file in work.inspection.files}
    known = {role: earlier.get(role) if name in ours else name for role, name in found.items()}
    return tuple((role, name) for role, name in known.items() if name is not None)


def build_final_receipt(seen: Prepared, receipt: Receipt, copies: tuple[Copy, ...]) -> Receipt:
    """Return the receipt of a finished change, which records only what is on the node now."""
    works = {work.path: work for work in seen.plan.specifications}
    kept = (installed.settled(works[file.path], file) for file in receipt.specifications)
    left = {work.name for work in seen.plan.engines if work.is_removal}
    return msgspec.structs.replace(
        receipt,
        state=State.INSTALLED,
        engines=tuple(_build_final_engine(seen, engine) for engine in receipt.engines if engine.name not in left),
        cdi_switched=tuple(name for name in receipt.cdi_switched if not _has_read(seen, name)),
        specifications=tuple(record for record in kept if record is not None),
        copies=copies,
        contents=tuple(map(_build_content, seen.plan.toolkit.files)),
    )


def _find_switched_engines(seen: Prepared) -> tuple[EngineName, ...]:
    """Return the engines in which our edit that enables CDI is removed, by this change or an earlier one."""
    previous = seen.receipt
    if previous is None:
        return ()
    works = {work.name: work for work in seen.plan.engines}
    taken_out = [each.name for each in previous.engines if each.switches_cdi and each.name in works]
    names = dict.fromkeys([*previous.cdi_switched, *taken_out])
    return tuple(
        name for name in names if name not in works or not works[name].desired.cdi_on or works[name].is_removal
    )


def _has_read(seen: Prepared, name: EngineName) -> bool:
    """Return whether an engine has read its files without our CDI edit: it was restarted, or has CDI off."""
    work = next((work for work in seen.plan.engines if work.name == name), None)
    if work is None:
        return False
    live = work.inspection.live
    return live is None or not live.cdi_folders or bool(work.reload_why and work.reload.restarts)


def _build_content(file: ToolkitFile) -> Content:
    sha256 = file_records.digest_of(file.content) if file.content is not None else None
    return Content(file.name, file.mode, sha256, file.target, file.recipe)


def _list_written_paths(seen: Prepared) -> list[str]:
    """Return the paths of all files that the change writes."""
    work = seen.plan.toolkit
    paths = [f"{work.folder}/{file.name}" for file in work.files]
    paths += [
        wanted.path for engine in seen.plan.engines for wanted in engine.desired.files if wanted.target is not None
    ]
    paths += [work.path for work in seen.plan.specifications if work.target is not None]
    return paths


def _build_specifications(seen: Prepared) -> tuple[FileRecord, ...]:
    old = {file.path: file for file in (seen.receipt.specifications if seen.receipt is not None else ())}
    works = {work.path: work for work in seen.plan.specifications}
    records = [installed.build_record(work, old.get(path)) for path, work in works.items()]
    # a specification that needs device nodes which do not exist yet is not planned: it stays recorded
    unknown = [record for path, record in old.items() if path not in works]
    return tuple(record for record in (*records, *unknown) if record is not None)


def _build_file(
    engine: Engine, work: EngineWork, wanted: DesiredFile, previous: FileRecord | None
) -> FileRecord | None:
    if wanted.target == wanted.base and previous is None and not wanted.changes:
        return None  # not ours, and not changed
    signalled = work.reload.mode is ReloadMode.SIGNAL
    if work.is_removal and previous is not None:
        return file_records.build_revert_record(engine, previous, wanted, signalled=signalled)
    contents = [wanted.target]
    if signalled:
        contents += map(engine.build_transitional_content, (wanted.target, wanted.base, wanted.file.content))
    return file_records.build_record(engine, wanted, wanted.file.found, previous, contents)


def _build_final_engine(seen: Prepared, record: EngineRecord) -> EngineRecord:
    """Return an engine's record after its change; unchanged if the change was about another engine."""
    work = next((work for work in seen.plan.engines if work.name == record.name), None)
    if work is None:
        return record
    targets = {wanted.path: wanted.target for wanted in work.desired.files}
    files = []
    for file in record.files:
        target = targets[file.path]
        files.append(msgspec.structs.replace(file, written=() if target is None else (file_records.digest_of(target),)))
    return msgspec.structs.replace(record, files=tuple(files), reload_due=False, unread_by=None)
