"""Revert everything: engines first, then the binaries that they no longer name, then the receipt."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import msgspec

from toolkit_installer import log
from toolkit_installer.applying import files
from toolkit_installer.applying.files import retry_if_changed
from toolkit_installer.errors import InstallerError, gravest
from toolkit_installer.node.node import Node
from toolkit_installer.planning import files_naming, installed, other_installer, toolkit_users
from toolkit_installer.planning.files_naming import Naming
from toolkit_installer.planning.other_installer import OtherInstaller
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import AS_BEFORE, AS_WRITTEN, EngineRecord, FileRecord, Receipt, State
from toolkit_installer.receipt.store import recover_engine, recover_specifications, refuse_strangers, sweep
from toolkit_installer.revert.engine import EngineReverter
from toolkit_installer.settings import EngineName

_OUR_STATES = frozenset({AS_WRITTEN, AS_BEFORE})
"""The states of a file that no other installer has written."""


class Remainder(msgspec.Struct, frozen=True):
    """What is left on the node after everything was reverted.

    `left_to_systemd`: engines that are still to come back. `named`: the files, not ours, that name the toolkit.
    """

    toolkit_stays: bool
    left_to_systemd: tuple[str, ...] = ()
    named: tuple[Naming, ...] = ()
    recorded: bool = True
    other: OtherInstaller | None = None
    """Another running installer, which now owns the files that were left to it."""


def revert_recorded(
    engines: EngineReverter,
    receipt: Receipt,
    *,
    keep_toolkit: bool,
    known: Sequence[str] = (),
    other: OtherInstaller | None = None,
) -> Remainder:
    """Revert everything; may be repeated after a crash, and is not refused then.

    The toolkit stays if `keep_toolkit` is set, or if something still needs or names it; `known` are more files of
    engines to search for its name. Each engine is tried, even if another one fails. If an `other` installer works on
    the same folder, it owns the toolkit and the files that are not as this installer wrote them: they stay as they are.

    Raises the gravest of the failures: EngineDownError, EngineRejectedError, ConfigurationError; the receipt stays.
    """
    node, store = engines.node, engines.store
    sweep(node, receipt, store.folder)
    if receipt.state is not State.INSTALLED:
        _flush(node, receipt)
    found = receipt  # unchanged: only by its state may files beside the engines' count as a killed run's
    receipt = _drop_others_engines(node, receipt)
    failures = []
    left: list[EngineRecord] = []
    for record in reversed(receipt.engines):
        if other is not None and _find_others_files(node, record.files, other, record.name):
            left.insert(0, record)
            continue
        try:
            refuse_strangers(node, found, [file.path for file in record.files])
            recover_engine(node, record, store.folder)
            receipt = retry_if_changed(partial(_revert_engine, engines, receipt, record))
        except InstallerError as failure:
            log.get().error(
                "The handlers could not be taken back",
                key="handlers-not-removed",
                engine=record.name,
                file=failure.path,
                line=failure.line,
                reason=failure.reason,
                hint=failure.hint,
            )
            failures.append(failure)
    if failures:
        raise gravest(failures)
    theirs: tuple[FileRecord, ...] = ()
    if other is not None:
        paths = _find_others_files(node, receipt.specifications, other)
        theirs = tuple(file for file in receipt.specifications if file.path in paths)
        ours = tuple(file for file in receipt.specifications if file.path not in paths)
        receipt = msgspec.structs.replace(receipt, specifications=ours)
        keep_toolkit = True
    refuse_strangers(node, found, [file.path for file in receipt.specifications])
    recover_specifications(node, receipt)
    receipt = _revert_specifications(engines, receipt)
    if left or theirs:
        # keep the record for them: an administrator's edit looks the same, and the originals come back once the other
        # installer has gone
        kept = msgspec.structs.replace(receipt, state=State.REVERTING, engines=tuple(left), specifications=theirs)
        store.save(kept, {})
        return Remainder(toolkit_stays=True, left_to_systemd=tuple(engines.switcher.left_to_systemd), other=other)
    folder = receipt.toolkit_folder
    known = (*files_naming.list_recorded_files(receipt), *known)
    named = () if keep_toolkit else files_naming.find_naming_files(node, folder, known=known)
    if named:
        # keep the whole record: without it, the leftovers would be taken for an older installer's, and all removed
        store.save(msgspec.structs.replace(receipt, state=State.REVERTING), {})
        return Remainder(toolkit_stays=True, left_to_systemd=tuple(engines.switcher.left_to_systemd), named=named)
    # another program's specification is generated anew: no record is needed for it
    specified = () if keep_toolkit else files_naming.find_naming_specifications(node, folder)
    stays = bool(keep_toolkit or specified or toolkit_users.is_still_needed(node, folder, receipt.engines))
    if stays:
        log.get().info("Left the toolkit in place", key="toolkit-left", folder=folder)
    else:
        files.remove_toolkit_files(node, receipt)
        log.get().info("Removed the toolkit", key="toolkit-removed", folder=folder)
    # before the receipt goes, so that a killed run is finished by the next; its own folder's parents go after it
    files.remove_folders(node, receipt, store)
    return Remainder(stays, tuple(engines.switcher.left_to_systemd), specified, recorded=False, other=other)


def _find_others_files(
    node: Node, files: Sequence[FileRecord], other: OtherInstaller, engine: EngineName | None = None
) -> tuple[str, ...]:
    """Log and return the files that are not as we wrote them: another running installer owns them now.

    An engine's files depend on each other: if one stays, all stay.
    """
    left = tuple(file.path for file in files if file_records.describe_state(node, file) not in _OUR_STATES)
    if left:
        log.get().warning(
            "Left to another installer: the files are not as this one wrote them",
            key="left-to-other",
            installer=str(other),
            engine=engine,
            files=", ".join(left),
        )
    return left


def _drop_others_engines(node: Node, receipt: Receipt) -> Receipt:
    """Return the receipt without the engines whose files another installation wrote while this one was half done.

    They run the other installation's programs and none of ours. The other one restores them when it is reverted.
    """
    folder = receipt.toolkit_folder
    engines = []
    for record in receipt.engines:
        try:
            found = [node.locate_file(file.path)[1] for file in record.files]
        except InstallerError:
            engines.append(record)  # its own revert reports that, after the other engines are reverted
            continue
        contents = [each.content for each in found if each is not None]
        named = [
            each for content in contents for each in other_installer.find_named_installations(node, content, folder)
        ]
        if not named or any(f"{folder}/".encode() in content for content in contents):
            engines.append(record)
            continue
        log.get().warning(
            "The engine's files are another installation's: they stay as they are",
            key="left-to-other-installation",
            engine=record.name,
            folder=named[0],
        )
    return msgspec.structs.replace(receipt, engines=tuple(engines))


def _flush(node: Node, receipt: Receipt) -> None:
    """Make files durable that a killed run may have restored: an old entry would name what is removed here."""
    for folder in sorted({node.files.canonical(os.path.dirname(path)) for path in receipt.file_paths()}):
        if node.files.own_status(folder) is not None:
            node.files.flush_folder(folder)


def _revert_engine(engines: EngineReverter, receipt: Receipt, record: EngineRecord) -> Receipt:
    """Revert an engine by the newest receipt: an earlier attempt may have recorded new facts."""
    learnt = engines.store.load() or receipt
    return engines.revert(learnt, next(each for each in learnt.engines if each.name == record.name))


def _revert_specifications(engines: EngineReverter, receipt: Receipt) -> Receipt:
    """Revert the CDI specifications; return the receipt with the facts found meanwhile."""
    seen = installed.read_specifications(engines.node, engines.store, [file.path for file in receipt.specifications])
    works = [installed.plan_revert(seen, file, receipt.toolkit_folder) for file in receipt.specifications]
    if not works:
        return receipt
    files = (installed.build_record(work, file) for work, file in zip(works, receipt.specifications, strict=True))
    receipt = msgspec.structs.replace(
        receipt, state=State.REVERTING, specifications=tuple(file for file in files if file is not None)
    )
    originals = {file_records.digest_of(work.base): work.base for work in works if work.base is not None}
    engines.store.save(receipt, originals)
    for work in works:
        if work.note:
            log.get().warning(
                "Somebody changed the CDI specification", key="cdi-changed", file=work.path, what=work.note
            )
        engines.switcher.writer.write(None, work.file, work.target)
    return receipt
