"""The paths in receipts of schema 3 and before: those of the run that wrote them, which may have been a container's."""

from __future__ import annotations

import posixpath

import msgspec

from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.detect.unit_files import TABLE
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.node_paths import OTHER_WAY
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt

_HOST = "/host/"
"""Where the GPU Operator's container sees the node's `/`: the only way to the sockets that are not mounted for it."""


def seen_here(node: Node, receipt: Receipt) -> Receipt:
    """Return an older receipt with paths that this process opens, if it has the mounts of the one that wrote it.

    If not, the files are recognised where this engine usually has them. Raises ConfigurationError for one that is not.
    """

    def here(path: str) -> bool:
        return node.files.own_status(posixpath.dirname(path)) is not None

    def engine_moved(record: EngineRecord) -> EngineRecord:
        files = tuple(
            each
            if here(each.path) or posixpath.dirname(each.path) in _usual_folders(record)
            else _recognised(node, record, each, receipt.toolkit_folder)
            for each in record.files
        )
        socket = record.socket if here(record.socket) else _usual_socket(node, record)
        moved = {"files": files, "socket": socket}
        return msgspec.structs.replace(record, **moved)

    moved = {name: tuple(map(engine_moved, getattr(receipt, name))) for name in ("engines", "cdi")}
    return msgspec.structs.replace(receipt, **moved)


def _usual_folders(record: EngineRecord) -> tuple[str, ...]:
    """Return the folders in which an engine's files usually are: a path in them is the node's own, even if missing."""
    rows = [row for row in TABLE if row.engine == record.name]
    usual = [path for row in rows for path in (row.config, row.drop_in) if path is not None and "*" not in path]
    return tuple(dict.fromkeys([*map(posixpath.dirname, usual), *adapter_of(record.name).folders]))


def _recognised(node: Node, record: EngineRecord, file: FileRecord, toolkit_folder: str) -> FileRecord:
    """Return a file's record with the path where it is found: it holds what was written, or names the toolkit.

    Raises ConfigurationError where no file is, or several are.
    """
    name = posixpath.basename(file.path)
    found = {f"{folder}/{name}": _content(node, f"{folder}/{name}") for folder in _usual_folders(record)}
    exact = [
        path for path, content in found.items() if content is not None and memory.digest_of(content) in file.written
    ]
    named = [path for path, content in found.items() if content is not None and toolkit_folder.encode() in content]
    likely = exact or named
    if len(likely) != 1:
        raise ConfigurationError(
            f"names {file.path}, as an older installer saw it in its container, and that file of {record.name} "
            f"{'may be ' + ' or '.join(likely) if likely else 'is not recognised here'}",
            hint=OTHER_WAY,
        )
    return msgspec.structs.replace(file, path=node.files.canonical(likely[0]))


def _content(node: Node, path: str) -> bytes | None:
    try:
        return node.files.content(path)
    except ConfigurationError:
        return None


def _usual_socket(node: Node, record: EngineRecord) -> str:
    """Return where the engine of an older receipt is met: below the node's `/`, or at a usual place of its name."""
    below = [f"/{record.socket.removeprefix(_HOST)}"] if record.socket.startswith(_HOST) else []
    name = posixpath.basename(record.socket)
    usual = [each for row in TABLE if row.engine == record.name for each in row.sockets if "*" not in each]
    known = [*below, *(each for each in usual if posixpath.basename(each) == name)]
    return next((each for each in known if node.files.own_status(each) is not None), record.socket)
