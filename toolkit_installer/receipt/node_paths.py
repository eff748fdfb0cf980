"""A receipt's paths: the node's own on disk, and those by which this process opens them in memory.

Whoever finishes or reverts the work may be another container, with other mounts, or run on the node itself. So the
store translates a receipt when it writes and reads it, and nothing else has to know of both. The toolkit's folder is
not translated: engines' files name it, so that it has to have the same path here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

import msgspec

from toolkit_installer.engines.common.serving import PROCESS_NAMES
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.places import PathTranslator
from toolkit_installer.node.root import Root
from toolkit_installer.receipt.schema import EngineRecord, FileRecord, Receipt

_MOUNT = "mount the node's / at /host (`--host-root`), read-only is enough, or start the container with `hostPID: true`"
OTHER_WAY = (
    "nothing was changed, and the receipt stays; run this with the node's / mounted and `--node-root`, or in a "
    "container with the mounts of the run that wrote the receipt"
)
"""What to do where this container does not see what a receipt names."""
_Move = Callable[[str], str]


def on_node(node: Node, receipt: Receipt) -> Receipt:
    """Return a receipt as it is written: with the node's own paths.

    Raises ConfigurationError for a file of an engine, and for a specification, that the node has no name for.
    """
    if node.whole:
        return receipt
    places = PathTranslator(node)
    _refuse_folder_elsewhere(places, receipt.toolkit_folder)

    def known(path: str) -> str:
        return places.on_node(path) or path

    def required(path: str) -> str:
        name = places.on_node(path)
        if name is None and not _is_the_node(node):
            raise _unknown(path)
        return name or path

    return _moved(receipt, file=required, socket=known, other=known)


def seen_here(node: Node, receipt: Receipt) -> Receipt:
    """Return a receipt with the paths by which this process opens what it names.

    Raises ConfigurationError for a file of an engine, and for a specification, that is not seen here.
    """
    if node.whole:
        return receipt
    places = PathTranslator(node)

    def known(path: str) -> str:
        return places.seen_here(path) or path

    def socket(path: str) -> str:
        return places.reachable(path) or path

    def required(path: str) -> str:
        here = places.seen_here(path, given=False)
        if here is None and not _is_the_node(node):
            raise ConfigurationError(f"names {path} of the node, which is not seen in this container", hint=OTHER_WAY)
        return here or path

    return _moved(receipt, file=required, socket=socket, other=known)


def _moved(receipt: Receipt, *, file: _Move, socket: _Move, other: _Move) -> Receipt:
    """Return a receipt with other paths: of engines' files and specifications, of sockets, and of all else. Pure."""

    def moved_files(files: tuple[FileRecord, ...]) -> tuple[FileRecord, ...]:
        return tuple(msgspec.structs.replace(each, path=file(each.path)) for each in files)

    def moved_engines(engines: tuple[EngineRecord, ...]) -> tuple[EngineRecord, ...]:
        places = ({"socket": socket(each.socket), "files": moved_files(each.files)} for each in engines)
        return tuple(msgspec.structs.replace(each, **moved) for each, moved in zip(engines, places, strict=True))

    moved = {
        "folders": tuple(map(other, receipt.folders)),
        "pid_file": other(receipt.pid_file),
        "pid_folders": tuple(map(other, receipt.pid_folders)),
        "engines": moved_engines(receipt.engines),
        "specifications": moved_files(receipt.specifications),
        "cdi": moved_engines(receipt.cdi),
    }
    return msgspec.structs.replace(receipt, **moved)


def _is_the_node(node: Node) -> bool:
    """Tell whether an engine runs in this very container: then it is the node, for that."""
    engines = processes.find_by_name(frozenset[str]().union(*PROCESS_NAMES.values()))
    return any(processes.has_root(each, Root(node.root.folder)) for each in engines)


def _unknown(path: str) -> ConfigurationError:
    """Return the error for a file that would be written, and that the node has no name for."""
    return ConfigurationError(
        "lies in this container, and what the node calls it is not known: nobody else could take it back",
        path=path,
        hint=f"nothing was changed; mount the node's {posixpath.dirname(path)} here (if that is a symlink on the node, "
        f"the folder that it leads to, at that folder's own path), and {_MOUNT}; or mount the node's / and use "
        "--node-root",
    )


def _refuse_folder_elsewhere(places: PathTranslator, folder: str) -> None:
    """Raise ConfigurationError where the node is known to call the toolkit's folder otherwise: handlers name it."""
    name = places.on_node(folder)
    if name is not None and name != folder:
        raise ConfigurationError(
            f"is the node's {name}, and engines would be told to run {folder}/…, which the node does not have",
            path=folder,
            hint=f"nothing was changed; mount the node's {posixpath.dirname(name)} at the same path here, and name "
            "that with --toolkit-install-dir",
        )
