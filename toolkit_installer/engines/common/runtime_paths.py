"""Where the node has its low-level runtimes: by absolute path, as the engine itself would find them."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from toolkit_installer.node import processes, programs, trust
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.toolkit import low_level


def absolute(node: Node, runtimes: Sequence[str], toolkit_folder: str, engine: Process | None) -> tuple[str, ...]:
    """Return the engine's low-level runtimes, then the usual ones, each by absolute path where it is found.

    `runtimes` is what the engine's files say, best first: paths, or names. A name is looked for as the engine's
    process would look, or, where none is seen, in the usual folders of the node. The engine's own that is found
    nowhere stays a name: it may be installed later. One that engines run where their files say nothing stays none: as a
    name before others it would be looked for where this search did not take it.
    """
    root = node.programs.root if engine is None else processes.root_of(engine)
    searched = processes.environment(engine).get("PATH", "") if engine is not None else ""
    folders = [folder for folder in searched.split(":") if folder.startswith("/")] or programs.PATH.split(":")
    usual = [name for name in low_level.DEFAULTS if name not in runtimes]
    found = [runtime if "/" in runtime else _find(root, folders, runtime, toolkit_folder) for runtime in runtimes]
    kept = [
        path or runtime for path, runtime in zip(found, runtimes, strict=True) if path or runtime != low_level.BUILT_IN
    ]
    others = [path for name in usual if (path := _find(root, folders, name, toolkit_folder)) is not None]
    return tuple(dict.fromkeys([*kept, *others]))


def _find(root: Root, folders: Sequence[str], name: str, toolkit_folder: str) -> str | None:
    """Return the first program of that name, but for one that is an NVIDIA runtime in truth.

    The wrappers run it as root: one that somebody else could have written is not taken (trust.py).
    """
    for path in (posixpath.join(folder, name) for folder in folders):
        if trust.is_program(root, path) and not low_level.is_nvidia(root.canonical(path), toolkit_folder):
            return path
    return None
