"""Containers that are stopped and deleted through a runtime of the toolkit's.

A container is stopped and deleted through the runtime that it was started with, so that has to stay while the engine
keeps the container's bundle, or a monitor runs beside it. A container that only an engine's database remembers
(`docker ps --all`, a pod that was stopped) is deleted without it, and to be started again it needs the handler first:
it holds nothing.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator

import msgspec

from toolkit_installer.engines.detect.table import TABLE
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.still_needed import container_names
from toolkit_installer.lifecycle.still_needed.container_names import Bundle
from toolkit_installer.node import processes
from toolkit_installer.node.command_lines import flag_value
from toolkit_installer.node.disk.reading import Reader, read_bounded
from toolkit_installer.node.disk.root import NodeError, Root
from toolkit_installer.node.node import Node
from toolkit_installer.node.trust import Standing

STATE_FOLDERS = tuple(dict.fromkeys(row.state for row in TABLE if row.state is not None))
"""containerd's `state`: its own, and those of docker and of the distributions that bring one along."""

TASKS = "io.containerd.runtime.v2.task"
"""Below a state folder: NAMESPACE/CONTAINER is the bundle of a container that is not deleted."""
RUNTIME_FILE = "runtime"
"""In a bundle: the `BinaryName` that the container was started with; its shim, or what follows one, deletes it so."""

_LONGEST_NAME = 64 * 1024
"""Bytes. Far more than the path of a runtime takes."""

SHIM = "containerd-shim"
"""The first shim's name, and how those of its successors begin."""
_RUNC_ROOT = "runtime-runc"
"""Where docker up to 19.03 has runc keep its containers; those of a handler are in `runtime-HANDLER`."""
MONITOR = "conmon"


class _Container(msgspec.Struct, frozen=True):
    """A container that is not deleted. `runtime` is None where that cannot be told.

    `pid` is the PID of its shim or monitor, or of another shim of the same engine; None where there is no such process.
    """

    name: str
    runtime: str | None
    pid: int | None
    told_by: str
    bundle: Bundle | None = None

    @property
    def words(self) -> str:
        """What it is called, by its engine and by whoever started it."""
        return f"the container {self.name}{container_names.of(self.name, self.bundle).words} ({self.told_by})"


def found(node: Node, folder: str) -> list[str]:
    """Return in words the containers that are stopped and deleted through a runtime in the folder, each once."""
    needed: dict[str, str] = {}
    # a shim tells its PID, which is more than its bundle does: it comes first
    for container in [*_watched(), *_bundles(node)]:
        if container.pid is not None and is_elsewhere(node, container.pid, container.runtime or folder):
            continue  # in a pod, anybody is root and called a shim
        if container.runtime is None:
            needed.setdefault(container.name, f"{container.words} may run with it")
        elif beneath(container.runtime, folder) and same_file(node, container.pid, container.runtime):
            needed.setdefault(container.name, f"{container.words} runs with {container.runtime}")
    return list(needed.values())


def _watched() -> list[_Container]:
    """Return the containers with a live shim or conmon on the whole machine, then those of the same engines."""
    found: list[_Container] = []
    engines: dict[tuple[int, int], int] = {}
    for pid, name, standing in processes.matching(lambda name: name.startswith(SHIM) or name == MONITOR):
        if standing is Standing.UNSEEN:  # root's, and this is a user's installer
            found.append(_hidden(pid))
            continue
        try:
            seen = processes.inspect_visible(pid)
            arguments = list(seen.arguments) if seen is not None else []
            own = _of_monitor(pid, arguments) if name == MONITOR else _of_shim(pid, arguments)
            if seen is not None and seen.hidden and not own:
                own = [_Container(f"of PID {pid}", None, pid, "whose command line is wiped")]
            found += own
            if name != MONITOR:
                around = os.stat(f"/proc/{pid}/cwd/..")  # the folder around the shim's bundle
                engines.setdefault((around.st_dev, around.st_ino), pid)
        except PermissionError:
            found.append(_hidden(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile: it holds nothing
    return [*found, *(container for pid in engines.values() for container in _beside(pid))]


def _hidden(pid: int) -> _Container:
    return _Container(f"of PID {pid}", None, pid, "this user may not look, root may")


def _of_shim(pid: int, arguments: list[str]) -> list[_Container]:
    """Return the container in whose bundle a containerd shim works; of a pod, the first. Raises PermissionError."""
    place = f"/proc/{pid}/cwd"
    try:
        name = os.path.basename(os.readlink(place))
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended meanwhile
    runtime = content_of(f"{place}/{RUNTIME_FILE}")
    if runtime is not None:
        return [_Container(name, runtime, pid, f"PID {pid}", Bundle(place, f"/proc/{pid}/root"))]
    workdir = flag_value(arguments, "-workdir")
    if workdir is None:
        return []  # it has not started its container yet
    # the shim of containerd before 1.3 and docker before 20.10, whose runtime only its containerd knows
    if os.path.basename(flag_value(arguments, "-runtime-root") or "") == _RUNC_ROOT:
        return []
    return [_Container(os.path.basename(workdir), None, pid, f"PID {pid}")]


def _beside(pid: int) -> list[_Container]:
    """Return the containers of the shim's engine: the rest of its pod, and those whose own shim has died."""
    place = f"/proc/{pid}/cwd"
    try:
        tasks = os.path.dirname(os.path.dirname(os.readlink(place)))
        names = os.listdir(f"{place}/..") if os.path.basename(tasks) == TASKS else []
    except OSError:
        return []  # it ended meanwhile
    found = ((name, content_of(f"{place}/../{name}/{RUNTIME_FILE}")) for name in names)
    return [
        _Container(name, runtime, pid, "its bundle is there", Bundle(f"{place}/../{name}", f"/proc/{pid}/root"))
        for name, runtime in found
        if runtime is not None
    ]


def content_of(path: str) -> str | None:
    """Return what a small file says, None where there is none; what is no regular file, or large, says nothing."""
    try:
        return read_bounded(path, _LONGEST_NAME).decode(errors="replace").strip()
    except (OSError, ConfigurationError):
        return None


def _of_monitor(pid: int, arguments: list[str]) -> list[_Container]:
    """Return the container of a conmon (conmon(8))."""
    runtime = flag_value(arguments, "-r", "--runtime")
    if runtime is None:
        return []
    root = f"/proc/{pid}/root"
    folder = flag_value(arguments, "-b", "--bundle")
    bundle = Bundle(f"{root}{folder}", root) if folder is not None and posixpath.isabs(folder) else None
    return [_Container(flag_value(arguments, "-c", "--cid") or "", runtime, pid, f"PID {pid}", bundle)]


def _bundles(node: Node) -> Iterator[_Container]:
    """Yield the containers whose bundles are in the usual places, also where neither engine nor shim lives."""
    for files in node.readers():
        for state in STATE_FOLDERS:
            try:
                yield from _bundles_below(files, posixpath.join(state, TASKS))
            except NodeError as error:
                if error.number != errno.EACCES:
                    raise
                # a user's own docker, and another's beside it
                yield _Container(f"below {state}", None, None, "this user may not look there, root may")


def _bundles_below(files: Reader, tasks: str) -> Iterator[_Container]:
    for bundle in (
        posixpath.join(tasks, namespace, name)
        for namespace in files.list(tasks)
        for name in files.list(posixpath.join(tasks, namespace))
    ):
        found = files.read_file(posixpath.join(bundle, RUNTIME_FILE))
        if found is not None:
            runtime = found.content.decode(errors="replace").strip()
            place = Bundle(files.root.outside(files.canonical(bundle)), files.root.folder)
            yield _Container(posixpath.basename(bundle), runtime, None, f"its bundle {bundle} is there", place)


def is_elsewhere(node: Node, pid: int, path: str) -> bool:
    """Tell whether the process has a `/` of its own in which there is no `path`: it cannot run what is there."""
    try:
        if Reader(Root(f"/proc/{pid}/root")).status(path) is not None:
            return False
        own = os.stat(f"/proc/{pid}/root/")
        homes = (node.root.folder, node.programs.root.folder, "/")
        return not any(os.path.samestat(own, os.stat(home)) for home in homes)
    except (OSError, NodeError):
        return False  # it ended meanwhile, or hides: it cannot be told


def same_file(node: Node, pid: int | None, path: str) -> bool:
    """Tell whether the process's runtime is the one of this node, and not of one that shares only its paths."""
    if pid is None:
        return True
    try:
        theirs = os.stat(f"/proc/{pid}/root{path}")
    except OSError:
        return True  # it cannot be told apart: then it holds the toolkit
    ours = node.files.status(path)
    return ours is not None and (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
