"""The files that CRI-O reads after crio.conf: all those below its drop-in folder. Reads, never writes."""

from __future__ import annotations

import os
import posixpath
import stat

from toolkit_installer.node.disk.files import SWAP_SUFFIX, Files
from toolkit_installer.node.disk.folders import TEMPORARY_SUFFIX

_OURS = (TEMPORARY_SUFFIX, SWAP_SUFFIX)
"""Endings of what a killed run may have left: the next run takes it away before anything else."""


def drop_ins(files: Files, folder: str) -> list[str]:
    """Return the paths of what CRI-O reads in `folder`, in its order. Raises NodeError.

    It walks the tree as Go's filepath.Walk does: the names of each folder in the order of their bytes, folders where
    their name stands, hidden files and all endings too. A symlink is read, never walked into.
    """
    found = []
    for name in sorted(files.list(folder), key=os.fsencode):
        path = posixpath.join(folder, name)
        status = files.own_status(path)
        if status is None or name.endswith(_OURS):
            continue
        if stat.S_ISDIR(status.st_mode):
            found += drop_ins(files, path)
        else:
            found.append(path)
    return found


def order(path: str, folder: str) -> tuple[bytes, ...]:
    """Return the key that sorts the paths below `folder` as CRI-O reads them. Pure."""
    return tuple(os.fsencode(part) for part in posixpath.relpath(path, folder).split("/"))
