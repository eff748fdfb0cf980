"""Find the leftovers of an installer that kept no receipt, or lost it, by the executables that its entries run."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.engines import registry
from toolkit_installer.engines.api import Engine, Inspection, RecordedFile, get_adapter
from toolkit_installer.engines.detect import decide
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.planning import files_naming, installed, other_installer
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.settings import Settings
from toolkit_installer.toolkit import layout, wrappers
from toolkit_installer.toolkit.payload import RUNTIMES


class Leftovers(msgspec.Struct, frozen=True):
    """The leftovers as a receipt (None: none found), and the errors about unreadable files that name the toolkit."""

    receipt: Receipt | None
    failures: tuple[ConfigurationError, ...] = ()


def find_leftovers(node: Node, settings: Settings) -> Leftovers:
    """Return the leftovers: entries and files in the toolkit folder that no receipt records count as ours.

    Inspects the engines that the settings name, else all. An engine that cannot be read does not keep the others from
    being reverted: the error is logged, and is a failure only if the file names the toolkit.
    """
    folder = settings.toolkit.folder
    records: list[EngineRecord] = []
    replaced: list[str] = []
    failures: list[ConfigurationError] = []
    for adapter in map(get_adapter, settings.runtimes or registry.names()):
        try:
            target = _find_target(node, settings, adapter)
            inspection = adapter.inspect(node, target)
            record = _build_record(target, inspection, adapter, folder)
        except ConfigurationError as error:
            failures += _find_failures(node, folder, adapter, error)
        else:
            records += [] if record is None else [record]
            replaced += other_installer.describe_handlers(
                [(file.path, file.content) for file in inspection.files], folder
            )
    return Leftovers(_build_receipt(node, settings, tuple(records), replaced), tuple(failures))


def _find_failures(node: Node, folder: str, adapter: Engine, error: ConfigurationError) -> list[ConfigurationError]:
    """Return the error if its file names the toolkit; else log it and return none, as it does not concern us."""
    path = error.path
    if path is not None and any(
        each.file == path for each in files_naming.find_naming_files(node, folder, known=[path])
    ):
        return [error]
    log.get().warning(
        "Left the engine alone: its files cannot be read, and they do not name the toolkit",
        key="engine-left-alone",
        engine=adapter.name,
        file=path,
        line=error.line,
        reason=error.reason,
    )
    return []


def _build_receipt(
    node: Node, settings: Settings, engines: tuple[EngineRecord, ...], replaced: Sequence[str]
) -> Receipt | None:
    """Return a receipt for these engines and the files in the toolkit's folder, None if there are neither."""
    folder = settings.toolkit.folder
    names = layout.find_installer_files(node.files.list(folder))
    inner = [name for name in (wrappers.CONFIG_NAME,) if node.files.is_file(posixpath.join(folder, name))]
    specification = installed.recognize_specification(node, settings.toolkit.cdi.path, folder)
    if specification is not None and not engines and _is_left_by_us(node, folder):
        specification = None
    if not engines and not names and not inner and specification is None:
        return None
    created = node.files.folders_of_ours(posixpath.dirname(folder))
    folders = (*created, folder, *(posixpath.join(folder, place) for place in layout.FOLDERS))
    own = () if specification is None else (specification,)
    present = tuple(place for place in folders if node.files.status(place) is not None)
    return Receipt(
        state=State.REVERTING,
        installer=__version__,
        toolkit_folder=folder,
        toolkit_files=(*inner, *names),
        folders=present,
        pid_file=settings.pid_file,
        pid_folders=(),
        engines=engines,
        specifications=own,
        taken_over=(*replaced, *other_installer.describe_folder(folder, (*inner, *names))),
    )


def _is_left_by_us(node: Node, folder: str) -> bool:
    """Return whether the toolkit in `folder` is this installer's own.

    The caller has found no receipt and no engine that names it: then a finished cleanup left the toolkit on purpose,
    and had removed its own CDI specification. One that still names the toolkit was edited by another program, or is
    newer. A cleanup of NVIDIA's own installer leaves toolkit and specification alike.
    """
    path = posixpath.join(folder, RUNTIMES[0])
    content = node.files.content(path) if node.files.is_file(path) else None
    return content is not None and f"\n{wrappers.SIGNATURE}".encode() in content


def _find_target(node: Node, settings: Settings, adapter: Engine) -> EngineTarget:
    """Return where this engine's files are: a distribution may have them in unusual places."""
    try:
        return decide.locate_engines(node, settings, (adapter.name,))[0]
    except ConfigurationError as error:
        log.get().debug("Looking in the usual places", engine=adapter.name, reason=error.reason)
        return EngineTarget(adapter.name, settings.asked_of(adapter.name))


def _build_record(target: EngineTarget, inspection: Inspection, adapter: Engine, folder: str) -> EngineRecord | None:
    """Return a record of the engine's files that name something of ours, or None. Raises ConfigurationError."""
    if not any(folder.encode() in (file.content or b"") for file in inspection.files):
        for file in inspection.files:
            adapter.remove_ours(file, RecordedFile(), folder)  # raises for a broken file, although it is not ours
        return None
    recognised = adapter.find_unrecorded(inspection, folder)
    files = []
    for file in reversed(inspection.files):  # revert the importing files before the imported ones
        ownership = recognised.get(file.path, Ownership())
        if adapter.remove_ours(file, RecordedFile(ownership=ownership), folder).base != file.content:
            files.append(file_records.build_adopted_record(adapter, file, ownership))
    if not files:
        return None
    return EngineRecord(adapter.name, inspection.socket, target.settings.reload_mode, (), None, tuple(files))
