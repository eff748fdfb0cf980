"""The files that a running engine was told to read, and the low-level runtimes that it would find.

File names are resolved in the engine's own root and working folder. Low-level runtimes are returned by absolute path,
as the engine itself would find them.
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
from toolkit_installer.node.processes import Process, flag_value, has_root, root_of
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.toolkit import payload


class HiddenError(ConfigurationError):
    """A process has wiped its command line, and nothing else shows how it was started."""


def hidden_error(process: Process, what: str) -> HiddenError:
    """Return the error that says which fact is unknown because a process has wiped its command line."""
    return HiddenError(
        f"{process.name} (PID {process.pid}) has wiped its command line, so that {what} cannot be seen",
        hint="name its file with --config, and its socket with --socket",
    )


def last_flag_value(arguments: Sequence[str], *flags: str) -> str | None:
    """Return the value of one of the flags on a command line; the last occurrence counts. Pure."""
    return next(reversed(flag_values(arguments, *flags)), None)


def flag_values(arguments: Sequence[str], *flags: str) -> list[str]:
    """Return every value of the flags on a command line, in order. Pure."""
    given = (
        flag_value(arguments[index : index + 2], *flags)
        for index in range(len(arguments))
        if arguments[index].partition("=")[0] in flags
    )
    return [value for value in given if value is not None]


def path(process: Process, *flags: str) -> str | None:
    """Return the file that one of a process's flags names, None if there is no such flag or it is not visible.

    Raises NodeError.
    """
    value = last_flag_value(process.arguments, *flags)
    return place(process, value) if value else None


def refuse_hidden(process: Process | None, target: EngineTarget) -> None:
    """Raise HiddenError for an engine whose files neither the user nor, visibly, its command line names.

    If the user names them, log that the engine's own flags may contradict them.
    """
    if process is None or not process.hidden:
        return
    if target.config is None and target.settings.drop_in is None:
        raise hidden_error(process, "which files it reads, and with which flags it was started,")
    log.get().warning(
        "The engine has wiped its command line: flags of its own that contradict its files cannot be seen",
        key="command-line-wiped",
        engine=process.name,
        pid=process.pid,
    )


@Query()
def place(process: Process, name: str) -> str:
    """Return the absolute path of the file that a process calls `name`, relative to its own working folder.

    Raises NodeError if that folder is unknown.
    """
    if posixpath.isabs(name):
        return name
    link, view = f"/proc/{process.pid}/cwd", root_of(process)
    try:
        folder, root = os.readlink(link), os.readlink(f"/proc/{process.pid}/root")
        if root != "/" and posixpath.commonpath([folder, root]) == root:
            folder = f"/{posixpath.relpath(folder, root)}"  # the kernel shows it as we see it, if visible
        folder = view.canonical(folder)
        if os.path.samefile(link, view.outside(folder)):
            return posixpath.join(folder, name)
    except (OSError, ValueError):
        pass  # the process ended, or is hidden, or its folder was removed
    raise NodeError(
        f"{process.name} (PID {process.pid}) was given this relative path, and its working folder cannot be told",
        path=name,
        hint=f"start {process.name} with an absolute path",
    )


@Query()
def is_same_file(node: Node, process: Process, theirs: str, ours: str) -> bool | None:
    """Tell whether the file that a process calls `theirs` is the file called `ours` here; None if unknown.

    If single folders of the node are mounted, one file has several names: so the files' identity is compared, or, if
    there is no such file yet, that of their folders.
    """

    def same(there: str, here: str) -> bool:
        # a file that is being replaced has two identities, but stays in its folder
        return _is_same_path(there, here) or (
            os.path.basename(there) == os.path.basename(here)
            and _is_same_path(os.path.dirname(there), os.path.dirname(here))
        )

    return _compared(node, process, theirs, ours, same)


@Query()
def is_in_folder(node: Node, process: Process, folder: str, ours: str) -> bool | None:
    """Tell whether `ours`, as it is called here, is a process's `folder` or lies in it; None: unknown.

    Either may be missing now, and created later.
    """

    def within(there: str, here: str) -> bool:
        return _is_same_path(there, here) or (here != os.path.dirname(here) and within(there, os.path.dirname(here)))

    return _compared(node, process, folder, ours, within)


def _compared(node: Node, process: Process, theirs: str, ours: str, compare: Callable[[str, str], bool]) -> bool | None:
    """Return the result of `compare` for two paths as seen from here; None if they are not visible."""
    if node.whole and not has_root(process, node.root):
        return None  # its paths are not those beneath the node's root
    view = root_of(process)
    try:
        os.lstat(view.outside("/"))  # if this fails, its files are invisible, not missing
        return compare(view.outside(view.canonical(theirs)), node.root.outside(node.files.canonical(ours)))
    except (OSError, NodeError):
        return None  # the process ended, or is hidden


def _is_same_path(one: str, other: str) -> bool:
    """Tell whether two canonical paths are the same file, or will be once it exists. Raises OSError."""
    (there, missing), (here, absent) = _split_existing(one), _split_existing(other)
    return missing == absent and os.path.samefile(there, here)


def _split_existing(place: str) -> tuple[str, list[str]]:
    """Return the part of a path that exists, and the names below it that do not. Raises OSError."""
    missing: list[str] = []
    while True:
        try:
            os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            place, name = os.path.split(place)
            missing.insert(0, name)
        else:
            return place, missing


def locate_low_level_runtimes(
    node: Node, runtimes: Sequence[str], toolkit_folder: str, engine: Process | None
) -> tuple[str, ...]:
    """Return the engine's low-level runtimes, then the usual ones, each by absolute path if found.

    `runtimes` are the paths or names in the engine's files, best first. A name is searched for as the engine's process
    would search, or, if none is visible, in the usual folders of the node. A runtime of the engine's files that is not
    found stays a name: it may be installed later. The built-in runtime is omitted if not found: as a name before others
    it would be searched for in places that this search excludes.
    """
    root = node.programs.root if engine is None else processes.root_of(engine)
    searched = processes.environment(engine).get("PATH", "") if engine is not None else ""
    folders = [folder for folder in searched.split(":") if folder.startswith("/")] or programs.PATH.split(":")
    usual = [name for name in payload.LOW_LEVEL_RUNTIMES if name not in runtimes]
    found = [
        runtime if "/" in runtime else _find_program(root, folders, runtime, toolkit_folder) for runtime in runtimes
    ]
    kept = [
        path or runtime
        for path, runtime in zip(found, runtimes, strict=True)
        if path or runtime != payload.BUILT_IN_RUNTIME
    ]
    others = [path for name in usual if (path := _find_program(root, folders, name, toolkit_folder)) is not None]
    return tuple(dict.fromkeys([*kept, *others]))


def _find_program(root: Root, folders: Sequence[str], name: str, toolkit_folder: str) -> str | None:
    """Return the first program of that name that is not really an NVIDIA runtime.

    The wrappers run it as root: a program that others could have written is skipped (trust.py).
    """
    for path in (posixpath.join(folder, name) for folder in folders):
        if trust.is_program(root, path) and not payload.is_nvidia_runtime(root.canonical(path), toolkit_folder):
            return path
    return None
