"""Folders that were made for files which are no longer ours: they go with these, before the receipt is settled."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.lifecycle.plan import ToolkitWork
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.receipt.store import ReceiptStore


def without_needless(node: Node, receipt: Receipt, store: str) -> Receipt:
    """Remove the folders that no file of the receipt needs; return it without them. `store` is the receipt's folder.

    One that somebody else put something into stays recorded: cleanup looks at it again. Raises NodeError.
    """
    needed = [f"{path}/" for path in (*receipt.file_paths(), receipt.toolkit_folder, store)]
    kept = list(receipt.folders)
    for folder in reversed(receipt.folders):
        within = f"{folder}/".startswith(f"{receipt.toolkit_folder}/")
        if within or any(path.startswith(f"{folder}/") for path in needed):
            continue
        canonical = node.files.in_folder(folder)
        if node.files.made_by_others(canonical) or node.files.remove_folder(canonical):
            kept.remove(folder)
        else:
            log.get().info("A folder stays: somebody put something into it", key="folder-kept", file=folder)
    return msgspec.structs.replace(receipt, folders=tuple(kept))


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
