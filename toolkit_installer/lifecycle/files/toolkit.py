"""The toolkit's files on the node: put in place one by one, and removed again."""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from toolkit_installer import log
from toolkit_installer.node.disk.tree import Tree
from toolkit_installer.node.disk.writing import own_metadata
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.toolkit.layout import ToolkitFile

if TYPE_CHECKING:
    from toolkit_installer.lifecycle.plan import ToolkitWork


@dataclasses.dataclass(frozen=True)
class Installed:
    """A file of the toolkit as it is on the node, or as it should be: SHA-256 or symlink target, and mode."""

    digest: str | None = None
    link: str | None = None
    mode: int = 0


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


def install(node: Node, work: ToolkitWork, source_root: str, safe_point: Callable[[], None], *, first: bool) -> None:
    """Put the files of `work.write` in place, in their order, each atomically, over whatever is there.

    A file is on the disk, its name too, before the next one gets its own: what calls comes after what is called, and an
    engine may run them meanwhile. With `first`, nothing of the toolkit was there, and no receipt: what uses it is
    written after this has returned. Then the names of files that follow each other in one folder are flushed together,
    before the first one in another folder. `safe_point` is called before each file.
    Raises NodeError, ConfigurationError, and what `safe_point` raises.
    """
    paths = ((node.files.in_folder(posixpath.join(work.folder, file.name)), file) for file in work.write)
    for folder, placed in itertools.groupby(paths, lambda each: posixpath.dirname(each[0])):
        for path, file in placed:
            safe_point()
            _put(node, path, source_root, file, flush=not first)
        if first:
            node.files.flush_folder(folder)


def _put(node: Node, path: str, source_root: str, file: ToolkitFile, *, flush: bool) -> None:
    """Put one file in place at the canonical `path`. Raises NodeError, ConfigurationError."""
    if file.target is not None:
        node.files.symlink(file.target, path, flush=flush)
    elif file.source is not None:
        node.files.copy(Tree(source_root).outside(file.source), path, own_metadata(file.mode), flush=flush)
    elif file.content is not None:
        node.files.overwrite(path, file.content, own_metadata(file.mode), flush=flush)
    log.get().debug("Installed the file", file=path)


def flush(node: Node, work: ToolkitWork, folders: Sequence[str]) -> None:
    """Make the entries of the toolkit, and of `folders`, those that we created, durable. Raises NodeError."""
    paths = [work.folder, *folders, *(posixpath.join(work.folder, file.name) for file in work.files)]
    for folder in dict.fromkeys(posixpath.dirname(node.files.in_folder(path)) for path in paths):
        node.files.flush_folder(folder)


def remove(node: Node, folder: str, name: str) -> None:
    """Remove one file, and what a killed run left of it. Raises NodeError."""
    path = node.files.in_folder(posixpath.join(folder, name))
    node.files.sweep(path)
    node.files.remove(path)


def remove_all(node: Node, receipt: Receipt) -> None:
    """Remove every file that the receipt names, users before what they use. Raises NodeError."""
    for name in reversed(receipt.toolkit_files):
        remove(node, receipt.toolkit_folder, name)


def remove_folders(node: Node, receipt: Receipt, store: ReceiptStore) -> None:
    """Remove the receipt, and the folders that were created where nothing of anybody else's is in them.

    The folders that hold the receipt go once it is gone, all others before. Raises NodeError.
    """
    _remove_folders(node, receipt, store.folder, store_gone=False)
    store.clear()
    _remove_folders(node, receipt, store.folder, store_gone=True)


def _remove_folders(node: Node, receipt: Receipt, around: str, *, store_gone: bool) -> None:
    for folder in reversed(receipt.folders):
        canonical = node.files.in_folder(folder)
        if around.startswith(f"{canonical}/") is not store_gone:
            continue
        inside = f"{canonical}/".startswith(f"{node.files.canonical(receipt.toolkit_folder)}/")
        if not inside and node.files.made_by_others(canonical):
            continue  # ours is gone, and somebody has made it anew since
        if not node.files.remove_folder(canonical):
            log.get().info("Left the folder: it is not empty", file=folder)
