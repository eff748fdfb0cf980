"""Which files a running engine was told to read, by whatever name and from wherever it was started.

Where the node has its low-level runtimes: by absolute path, as the engine itself would find them.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence

from toolkit_installer import log
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes, programs, trust
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, flag_value, lives_on, root_of
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.toolkit import payload


class HiddenError(ConfigurationError):
    """A process has wiped its command line, and nothing else tells what it was started with."""


def hidden(process: Process, what: str) -> HiddenError:
    """Return the error that says what cannot be told of a process whose command line is wiped."""
    return HiddenError(
        f"{process.name} (PID {process.pid}) has wiped its command line, so that {what} cannot be seen",
        hint="name its file with --config, and its socket with --socket",
    )


def last(arguments: Sequence[str], *flags: str) -> str | None:
    """Return what a command line gives one of the flags; of several times the last one counts. Pure."""
    return next(reversed(values(arguments, *flags)), None)


def values(arguments: Sequence[str], *flags: str) -> list[str]:
    """Return every value that a command line gives one of the flags, in its order. Pure."""
    given = (
        flag_value(arguments[index : index + 2], *flags)
        for index in range(len(arguments))
        if arguments[index].partition("=")[0] in flags
    )
    return [value for value in given if value is not None]


def path(process: Process, *flags: str) -> str | None:
    """Return the file that a process was given by one of the flags, None where it was given none, or it is not seen.

    Raises NodeError.
    """
    value = last(process.arguments, *flags)
    return place(process, value) if value else None


def refuse_hidden(process: Process | None, target: EngineTarget) -> None:
    """Raise HiddenError for an engine whose files are named neither by us nor, visibly, by its command line.

    Where they are named, say that flags of its own may contradict them.
    """
    if process is None or not process.hidden:
        return
    if target.config is None and target.asked.drop_in is None:
        raise hidden(process, "which files it reads, and with which flags it was started,")
    log.get().warning(
        "The engine has wiped its command line: flags of its own that contradict its files cannot be seen",
        key="command-line-wiped",
        engine=process.name,
        pid=process.pid,
    )


def place(process: Process, name: str) -> str:
    """Return the absolute path of what a process calls `name`: its own working folder counts, not ours.

    Raises NodeError where that folder cannot be told.
    """
    if posixpath.isabs(name):
        return name
    link, view = f"/proc/{process.pid}/cwd", root_of(process)
    try:
        folder, root = os.readlink(link), os.readlink(f"/proc/{process.pid}/root")
        if root != "/" and posixpath.commonpath([folder, root]) == root:
            folder = f"/{posixpath.relpath(folder, root)}"  # it is shown as we see it, where we do
        folder = view.canonical(folder)
        if os.path.samefile(link, view.outside(folder)):
            return posixpath.join(folder, name)
    except (OSError, ValueError):
        pass  # it ended meanwhile, or hides, or its folder was removed
    raise NodeError(
        f"{process.name} (PID {process.pid}) was given this relative path, and its working folder cannot be told",
        path=name,
        hint=f"start {process.name} with an absolute path",
    )


def reads(node: Node, process: Process, theirs: str, ours: str) -> bool | None:
    """Tell whether what a process calls `theirs` is what is called `ours` here; None where that cannot be told.

    Where single folders of the node are mounted, one file has several names: so its identity counts, or, while there is
    no such file, that of its folder.
    """

    def same(there: str, here: str) -> bool:
        # a file that is replaced right now has two identities, and stays in its folder
        return _same(there, here) or (
            os.path.basename(there) == os.path.basename(here) and _same(os.path.dirname(there), os.path.dirname(here))
        )

    return _compared(node, process, theirs, ours, same)


def reads_below(node: Node, process: Process, folder: str, ours: str) -> bool | None:
    """Tell whether `ours`, as it is called here, is what a process calls `folder`, or lies in it; None: unknown.

    Either may be missing, and be there later.
    """

    def within(there: str, here: str) -> bool:
        return _same(there, here) or (here != os.path.dirname(here) and within(there, os.path.dirname(here)))

    return _compared(node, process, folder, ours, within)


def _compared(node: Node, process: Process, theirs: str, ours: str, compare: Callable[[str, str], bool]) -> bool | None:
    """Return what `compare` tells of two places, as they are seen from here; None where they cannot be seen."""
    if node.whole and not lives_on(process, node.root):
        return None  # what it calls its files is not what they are called beneath the node's root
    view = root_of(process)
    try:
        os.lstat(view.outside("/"))  # without it, nothing in there is missing: it cannot be seen
        return compare(view.outside(view.canonical(theirs)), node.root.outside(node.files.canonical(ours)))
    except (OSError, NodeError):
        return None  # it ended meanwhile, or hides


def _same(one: str, other: str) -> bool:
    """Tell whether two canonical paths are, or will be, the same. Raises OSError."""
    (there, missing), (here, absent) = _anchored(one), _anchored(other)
    return missing == absent and os.path.samefile(there, here)


def _anchored(place: str) -> tuple[str, list[str]]:
    """Return the part of a path that is there, and the names below it that are not. Raises OSError."""
    missing: list[str] = []
    while True:
        try:
            os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            place, name = os.path.split(place)
            missing.insert(0, name)
        else:
            return place, missing


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
    usual = [name for name in payload.LOW_LEVEL_RUNTIMES if name not in runtimes]
    found = [runtime if "/" in runtime else _find(root, folders, runtime, toolkit_folder) for runtime in runtimes]
    kept = [
        path or runtime
        for path, runtime in zip(found, runtimes, strict=True)
        if path or runtime != payload.BUILT_IN_RUNTIME
    ]
    others = [path for name in usual if (path := _find(root, folders, name, toolkit_folder)) is not None]
    return tuple(dict.fromkeys([*kept, *others]))


def _find(root: Root, folders: Sequence[str], name: str, toolkit_folder: str) -> str | None:
    """Return the first program of that name, but for one that is an NVIDIA runtime in truth.

    The wrappers run it as root: one that somebody else could have written is not taken (trust.py).
    """
    for path in (posixpath.join(folder, name) for folder in folders):
        if trust.is_program(root, path) and not payload.is_nvidia_runtime(root.canonical(path), toolkit_folder):
            return path
    return None
