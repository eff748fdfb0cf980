"""Folders that were made for files which are no longer ours: they go with these, before the receipt is settled."""

from __future__ import annotations

import msgspec

from toolkit_installer import log
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt


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
