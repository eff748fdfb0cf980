"""The toolkit's files on the node: as they are there, flushed, and removed again."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer import log
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore

if TYPE_CHECKING:
    from toolkit_installer.lifecycle.plan import ToolkitWork


class Installed(msgspec.Struct, frozen=True):
    """A file of the toolkit as it is on the node, or as it should be: SHA-256 or symlink target, and mode.

    `copy_of` is set in place of the SHA-256 of a file that is known to be a copy of that one in the payload.
    """

    digest: str | None = None
    link: str | None = None
    mode: int = 0
    copy_of: str | None = None


def installed(node: Node, folder: str, name: str, copy_of: str | None = None) -> Installed | None:
    """Return one of the toolkit's files as it is on the node, None where there is nothing.

    It is hashed unless `copy_of` says what it is known to hold. Raises NodeError.
    """
    path = posixpath.join(folder, name)
    link = node.files.link_target(path)
    if link is not None:
        return Installed(link=link)
    status = node.files.own_status(path)
    if status is None:
        return None
    digest = node.files.digest(path) if copy_of is None else None
    return Installed(digest=digest, mode=status.st_mode & 0o7777, copy_of=copy_of)


def flush(node: Node, work: ToolkitWork, folders: Sequence[str]) -> None:
    """Make the entries of the toolkit, and of `folders`, those that we created, durable. Raises NodeError."""
    paths = [work.folder, *folders, *(posixpath.join(work.folder, file.name) for file in work.files)]
    for folder in dict.fromkeys(map(node.files.canonical, dict.fromkeys(map(posixpath.dirname, paths)))):
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
            log.get().info("Left the folder: it is not empty", key="folder-left", file=folder)
