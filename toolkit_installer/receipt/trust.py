"""What a receipt may speak of: it decides what root writes and removes, so it is believed only where it can be ours.

The folder that it lies in is root's alone. But a copy from another node, an edit by hand, a file that somebody else
left there, or a flaw in an older version would all be carried out as well.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator

from toolkit_installer import log
from toolkit_installer.engines.api import get_adapter
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.engines.registry import SWITCHES as CDI_SWITCHES
from toolkit_installer.errors import ConfigurationError, InstallerError, located
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import NodeError, find_ownership_defect
from toolkit_installer.receipt import file_records, schema
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.toolkit import layout, wrappers

PID_FILE_NAME = "toolkit.pid"
_TOOLKIT = "toolkit"
_SPECIFICATION = r"[A-Za-z0-9_.-][A-Za-z0-9_.]*-[A-Za-z0-9_.-]+\.yaml"
"""What a CDI specification is called: after its vendor and its class."""
_TRACES = (b"runtimes", b"imports", b"hooks_dir", *CDI_SWITCHES.values())
"""What every text says that we write into an engine's file: a runtimes map, the import of the file that has it, the
folder of our hook, or that CDI is on."""


def load(node: Node, store: ReceiptStore) -> Receipt | None:
    """Return the receipt, None where there is none.

    Raises ConfigurationError for one that is not to be believed, as it names anything that an installer would not have
    made, and NodeError where the node cannot be looked at. Reads, never writes.
    """
    path = f"{store.folder}/{schema.FILE}"
    require_ours(node, path)
    found = store.load()
    if found is not None:
        with located(path):
            for wrong in _wrong(node, store.folder, found):
                raise schema.damaged(wrong)
    return found


def load_if_usable(node: Node, store: ReceiptStore) -> Receipt | None:
    """Return the receipt, None also where it cannot be used, which is said: no reason for a waiting run to end."""
    try:
        return load(node, store)
    except InstallerError as error:
        log.get().error("The receipt cannot be used", key="receipt-unusable", reason=str(error))
        return None


def require_ours(node: Node, path: str) -> None:
    """Raise ConfigurationError unless what is at `path`, the receipt's, can only have been put there by root or us."""
    status = node.files.own_status(path)
    wrong = find_ownership_defect(status) if status is not None else None
    if wrong is not None:
        with located(path):
            raise schema.damaged(wrong)


def _wrong(node: Node, folder: str, found: Receipt) -> Iterator[str]:
    """Yield in words what the receipt cannot say."""
    place = found.toolkit_folder
    if (
        posixpath.basename(place) != _TOOLKIT
        or node.files.in_folder(place) != f"{posixpath.dirname(folder)}/{_TOOLKIT}"
    ):
        yield f"names the toolkit folder {place}, which is not the one beside it"
    yield from (f"names {name}, which is no file of the toolkit" for name in found.toolkit_files if not _known(name))
    yield from _wrong_engines(found)
    for engine in found.engines:
        for file in engine.files:
            yield from _wrong_file(node, folder, found, engine, file)
    for file in found.specifications:
        yield from _wrong_specification(node, folder, found, file)
    if posixpath.basename(found.pid_file) != PID_FILE_NAME:
        yield f"names the PID file {found.pid_file}, which is none"
    files = found.file_paths()
    inner = [posixpath.join(place, name) for name in (*layout.FOLDERS, wrappers.CONFIG_NAME)]
    yield from _wrong_folders(node, found.folders, [*files, *inner, folder])
    yield from _wrong_folders(node, found.pid_folders, [found.pid_file])


def _known(name: str) -> bool:
    return name == wrappers.CONFIG_NAME or ("/" not in name and bool(layout.find_installer_files([name])))


def _wrong_engines(found: Receipt) -> Iterator[str]:
    for name, count in Counter(engine.name for engine in found.engines).items():
        if count > 1:
            yield f"names {name} twice"
    yield from (
        f"names files or handlers of {engine.name} as of one that reads CDI specifications"
        for engine in found.cdi
        if engine.files or engine.handlers
    )
    for engine in found.engines:
        for handler, path in engine.handlers:
            if not is_beneath(path, found.toolkit_folder):
                yield f"names the handler {handler}, whose executable {path} is not in the toolkit folder"


def _wrong_file(node: Node, folder: str, found: Receipt, engine: EngineRecord, file: FileRecord) -> Iterator[str]:
    """Yield why `file` cannot be one of the engine's.

    Its name proves nothing, as --config may have been any file: one with a name of its own is believed where it is
    gone, or has something of ours in it. That nobody but root could have written the receipt is what counts.
    """
    adapter = get_adapter(engine.name)
    if not adapter.has_role(file.role):
        yield f"names {file.path} as {file.role!r} of {engine.name}, which has no such file"
    usual = adapter.allows_name(file.role, posixpath.basename(file.path)) or any(
        is_beneath(file.path, _canonical(node, place)) for place in adapter.folders
    )
    content = None if usual else _content(node, file)
    if (
        content is not None
        and file_records.digest_of(content) not in file.known
        and found.toolkit_folder.encode() not in content
    ):
        yield f"names {file.path}, which has nothing of this installer's in it, nor the name of a file of {engine.name}"
    yield from _wrong_place_or_content(node, folder, found, file, f"one of {engine.name}", _TRACES)


def _content(node: Node, file: FileRecord) -> bytes | None:
    """Return what a recorded file holds, None where it is gone, or no file any more: whoever needs it says so."""
    try:
        present = node.files.read_file(file.path)
    except ConfigurationError:
        return None
    return None if present is None else present.content


def _wrong_specification(node: Node, folder: str, found: Receipt, file: FileRecord) -> Iterator[str]:
    """Yield why `file` cannot be a CDI specification of ours."""
    if file.role != schema.SPECIFICATION_ROLE or not re.fullmatch(_SPECIFICATION, posixpath.basename(file.path)):
        yield f"names {file.path}, which is no CDI specification"
    yield from _wrong_place_or_content(node, folder, found, file, "a CDI specification", ())


def _wrong_place_or_content(
    node: Node, folder: str, found: Receipt, file: FileRecord, role: str, traces: Iterable[bytes]
) -> Iterator[str]:
    """Yield why `file` cannot be `role`: it is our own, or cleanup would replace it though nothing in it is ours.

    Ours are the toolkit's folder and `traces`. A file with a content that no receipt knows is edited, not replaced.
    """
    if any(is_beneath(file.path, place) for place in (folder, found.toolkit_folder)):
        yield f"names {file.path}, which is a file of this installer's own, as {role}"
    content = _content(node, file)
    ours = (*traces, found.toolkit_folder.encode())
    if content is not None and file.is_ours(content) and not any(trace in content for trace in ours):
        yield f"names {file.path}, whose content cannot have been written by this installer"


def _canonical(node: Node, path: str) -> str:
    """Return a path without symlinks; one that leads nowhere is as it is: whoever needs it says so."""
    try:
        return node.files.canonical(path)
    except NodeError:
        return path


def _wrong_folders(node: Node, folders: Iterable[str], places: Iterable[str]) -> Iterator[str]:
    """Yield which of the folders would be removed, hold none of `places`, and bear no mark of ours.

    Those of files that were configured earlier are in the receipt as well.
    """
    within = {*places, *(_canonical(node, place) for place in places)}
    for folder in folders:
        status = node.files.own_status(folder)
        if any(is_beneath(place, folder) or place == folder for place in within):
            continue
        if status is None or not stat.S_ISDIR(status.st_mode) or node.files.list(folder):
            continue
        if folder not in node.files.folders_of_ours(folder):
            yield f"names the folder {folder}, which holds nothing of this installer's"
