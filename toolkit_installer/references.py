"""What on the node still needs the toolkit's binaries: containers that are not deleted, and CDI specifications.

A container is stopped and deleted through the runtime that it was started with, so that has to stay while the engine
keeps the container's bundle, or a monitor runs beside it. A container that only an engine's database remembers
(`docker ps --all`, a pod that was stopped) is deleted without it, and to be started again it needs the handler first:
it holds nothing.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import posixpath
from collections.abc import Container, Iterator, Mapping, Sequence

from toolkit_installer import container_names, engine_paths, log, still_used
from toolkit_installer.container_names import Bundle
from toolkit_installer.distributions import TABLE
from toolkit_installer.engines import serving
from toolkit_installer.engines.answering import EngineBrokenError
from toolkit_installer.engines.base import EngineSilentError, Live
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.engines.rooms import ROOMS, room
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import flag_value
from toolkit_installer.node.reading import Reader, read_bounded
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.node.trust import Standing
from toolkit_installer.receipt import EngineRecord
from toolkit_installer.settings import EngineName

_ASK_SECONDS = 5.0

STATE_FOLDERS = (
    "/run/containerd",
    "/run/docker/containerd/daemon",
    "/run/k3s/containerd",
    "/run/k0s/containerd",
    "/var/snap/microk8s/common/run/containerd",
)
"""containerd's `state`: its own, and those of docker and of the distributions that bring one along."""

_TASKS = "io.containerd.runtime.v2.task"
"""Below a state folder: NAMESPACE/CONTAINER is the bundle of a container that is not deleted."""
_RUNTIME_FILE = "runtime"
"""In a bundle: the `BinaryName` that the container was started with; its shim, or what follows one, deletes it so."""

_LONGEST_NAME = 64 * 1024
"""Bytes. Far more than the path of a runtime takes."""

_SHIM = "containerd-shim"
"""The first shim's name, and how those of its successors begin."""
_RUNC_ROOT = "runtime-runc"
"""Where docker up to 19.03 has runc keep its containers; those of a handler are in `runtime-HANDLER`."""
_MONITOR = "conmon"


@dataclasses.dataclass(frozen=True)
class _Container:
    """A container that is not deleted. `runtime` is None where that cannot be told.

    `pid` is its shim's or its monitor's, or that of a shim in the same engine; None where there is no such process.
    """

    name: str
    runtime: str | None
    pid: int | None
    told_by: str
    bundle: Bundle | None = None

    @property
    def words(self) -> str:
        """What it is called, by its engine and by whoever started it."""
        return f"the container {self.name}{container_names.of(self.name, self.bundle)} ({self.told_by})"


def held(node: Node, folder: str, engines: Sequence[EngineRecord]) -> bool:
    """Tell whether something still needs the toolkit in `folder`, and log what. Raises NodeError.

    A specification of our own is to be gone before.

    `engines`: those that had handlers, which may offer them still, whatever their files say by now. All others that
    the node has are asked as well: somebody else may have registered the toolkit with them.
    """
    others, closed = _others(node, engines)
    live = [words for record in (*engines, *others) for words in _engine(node, folder, record)]
    found = [*live, *closed, *_unseen(node, folder), *holders(node, folder)]
    for holder in found:
        log.get().warning("The toolkit is still needed; `uninstall` removes it later", folder=folder, why=holder)
    return bool(found)


def holders(node: Node, folder: str, ours: Mapping[str, Container[str]] | None = None) -> list[str]:
    """Return in words which containers and specifications refer to the toolkit in `folder`. Raises NodeError.

    `ours`: specifications that count for nothing, by path, as long as they have one of these SHA-256.
    """
    return [*_containers(node, folder), *_specifications(node, folder, ours or {})]


def _others(node: Node, known: Sequence[EngineRecord]) -> tuple[list[EngineRecord], list[str]]:
    """Return the engines that listen where engines usually do, and of which nothing is recorded.

    And in words those whose sockets this user may not look at. Raises NodeError.
    """
    seen = {node.files.canonical(record.socket) for record in known}
    found, unseen = [], []
    usual = [(row.engine, row.socket) for row in TABLE if row.refused is None and row.engine in ROOMS]
    for engine, socket in dict.fromkeys((*usual, *serving.served(node))):
        try:
            place = node.files.canonical(socket)
        except NodeError as error:
            if error.number != errno.EACCES:
                raise
            # a user's own docker, and root's containerd beside it
            unseen.append(f"{engine} may listen on {socket} (this user may not look there, root may) and offer it")
            continue
        if place not in seen and processes.listens(node.root, socket):
            found.append(EngineRecord(engine, socket, None, (), None, ()))
        seen.add(place)
    return found, unseen


def _unseen(node: Node, folder: str) -> list[str]:
    """Return what the engines offer whose command line is wiped and whose socket has no usual name.

    All of their sockets are asked: an engine has several, and answers on one of them.
    """
    found = []
    for engine, process, sockets in serving.unnamed(node):
        for socket in sockets:
            try:
                live = room(engine).ask(node, socket, _ASK_SECONDS)
            except EngineBrokenError:
                break  # it runs without its CRI, and offers no handler
            except EngineSilentError:
                continue
            found += _offered(engine, live, folder, {})
            break
        else:
            # one that has none yet reads its files when it starts
            words = "has wiped its command line and answers on none of its sockets: it may still offer the handlers"
            found += [f"{process.name} (PID {process.pid}) {words}"] if sockets else []
    return found


def _engine(node: Node, folder: str, record: EngineRecord) -> list[str]:
    """Return the handlers in the folder that a live engine offers, or why that cannot be known."""
    try:
        live = room(record.name).ask(node, record.socket, _ASK_SECONDS)
    except EngineBrokenError:
        return []  # it runs without its CRI, and offers no handler; its containers are looked for by themselves
    except EngineSilentError:
        if not processes.listens(node.root, record.socket):
            return []  # it reads its files when it starts
        return [f"{record.name} listens on {record.socket} and does not answer: it may still offer the handlers"]
    return _offered(record.name, live, folder, dict(record.handlers))


def _offered(engine: EngineName, live: Live, folder: str, ours: Mapping[str, str]) -> list[str]:
    """Return the handlers in the folder that an engine's answer has, or that its containers cannot be seen."""
    if live.process is None:
        return [f"the containers of {engine} cannot be seen from here (hostPID: true), and may run with it"]
    return [
        f"{engine} still offers the handler {name}: restart it"
        for name, path in live.handlers.items()
        if beneath(path or ours.get(name), folder) and name not in live.own
    ]


def _containers(node: Node, folder: str) -> list[str]:
    """Return the containers that are stopped and deleted through a runtime in the folder, each once."""
    found: dict[str, str] = {}
    # a shim tells its PID, which is more than its bundle does: it comes first
    for container in [*_watched(), *_bundles(node)]:
        if container.pid is not None and _is_elsewhere(node, container.pid, container.runtime or folder):
            continue  # in a pod, anybody is root and called a shim
        if container.runtime is None:
            found.setdefault(container.name, f"{container.words} may run with it")
        elif beneath(container.runtime, folder) and _same_file(node, container.pid, container.runtime):
            found.setdefault(container.name, f"{container.words} runs with {container.runtime}")
    return list(found.values())


def _watched() -> list[_Container]:
    """Return the containers that have a live shim or conmon, on the whole machine, then those beside them."""
    found: list[_Container] = []
    engines: dict[tuple[int, int], int] = {}
    for pid, name, standing in processes.matching(lambda name: name.startswith(_SHIM) or name == _MONITOR):
        if standing is Standing.UNSEEN:  # root's, and this is a user's installer
            found.append(_Container(f"of PID {pid}", None, pid, "this user may not look, root may"))
            continue
        try:
            seen = processes.look(pid)
            arguments = list(seen.arguments) if seen is not None else []
            own = _of_monitor(pid, arguments) if name == _MONITOR else _of_shim(pid, arguments)
            if seen is not None and seen.hidden and not own:
                own = [_Container(f"of PID {pid}", None, pid, "whose command line is wiped")]
            found += own
            if name != _MONITOR:
                engines.setdefault(_neighbourhood(pid), pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile: it holds nothing
    return [*found, *(container for pid in engines.values() for container in _beside(pid))]


def _of_shim(pid: int, arguments: list[str]) -> list[_Container]:
    """Return the container in whose bundle a containerd shim works; of a pod, the first. Raises PermissionError."""
    place = f"/proc/{pid}/cwd"
    try:
        name = os.path.basename(os.readlink(place))
    except (FileNotFoundError, ProcessLookupError):
        return []  # it ended meanwhile
    runtime = _content(f"{place}/{_RUNTIME_FILE}")
    if runtime is not None:
        return [_Container(name, runtime, pid, f"PID {pid}", Bundle(place, f"/proc/{pid}/root"))]
    workdir = flag_value(arguments, "-workdir")
    if workdir is None:
        return []  # it has not started its container yet
    # the shim of containerd before 1.3 and docker before 20.10, whose runtime only its containerd knows
    if os.path.basename(flag_value(arguments, "-runtime-root") or "") == _RUNC_ROOT:
        return []
    return [_Container(os.path.basename(workdir), None, pid, f"PID {pid}")]


def _neighbourhood(pid: int) -> tuple[int, int]:
    """Return which folder a shim's bundle lies in. Raises FileNotFoundError."""
    status = os.stat(f"/proc/{pid}/cwd/..")
    return status.st_dev, status.st_ino


def _beside(pid: int) -> list[_Container]:
    """Return the containers of the shim's engine: the rest of its pod, and those whose own shim has died."""
    place = f"/proc/{pid}/cwd"
    try:
        tasks = os.path.dirname(os.path.dirname(os.readlink(place)))
        names = os.listdir(f"{place}/..") if os.path.basename(tasks) == _TASKS else []
    except OSError:
        return []  # it ended meanwhile
    found = ((name, _content(f"{place}/../{name}/{_RUNTIME_FILE}")) for name in names)
    return [
        _Container(name, runtime, pid, "its bundle is there", Bundle(f"{place}/../{name}", f"/proc/{pid}/root"))
        for name, runtime in found
        if runtime is not None
    ]


def _content(path: str) -> str | None:
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
    for files in _readers(node):
        for state in STATE_FOLDERS:
            try:
                yield from _bundles_below(files, posixpath.join(state, _TASKS))
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
        found = files.find(posixpath.join(bundle, _RUNTIME_FILE))
        if found is not None:
            runtime = found.content.decode(errors="replace").strip()
            place = Bundle(files.root.outside(files.canonical(bundle)), files.root.folder)
            yield _Container(posixpath.basename(bundle), runtime, None, f"its bundle {bundle} is there", place)


def _readers(node: Node) -> list[Reader]:
    """Return what reads the node's files: those mounted into the container, and those beneath the host's root."""
    roots = {node.files.root.folder: node.files, node.programs.root.folder: Reader(node.programs.root)}
    roots[node.files.root.folder] = node.files
    return list(roots.values())


def _is_elsewhere(node: Node, pid: int, path: str) -> bool:
    """Tell whether the process has a `/` of its own in which there is no `path`: it cannot run what is there."""
    try:
        if Reader(Root(f"/proc/{pid}/root")).status(path) is not None:
            return False
        own = os.stat(f"/proc/{pid}/root/")
        homes = (node.root.folder, node.programs.root.folder, "/")
        return not any(os.path.samestat(own, os.stat(home)) for home in homes)
    except (OSError, NodeError):
        return False  # it ended meanwhile, or hides: it cannot be told


def _same_file(node: Node, pid: int | None, path: str) -> bool:
    """Tell whether the process's runtime is the one of this node, and not of one that shares only its paths."""
    if pid is None:
        return True
    try:
        theirs = os.stat(f"/proc/{pid}/root{path}")
    except OSError:
        return True  # it cannot be told apart: then it holds the toolkit
    ours = node.files.status(path)
    return ours is not None and (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def _specifications(node: Node, folder: str, ours: Mapping[str, Container[str]]) -> list[str]:
    """Return the CDI specifications that name something in the folder, as a hook or a mount."""
    found: dict[str, str] = {}
    for files in _readers(node):
        for place in engine_paths.CDI_FOLDERS:
            for path in (f"{place}/{name}" for name in files.list(place) if name.endswith((".json", ".yaml"))):
                if not files.is_file(path):
                    continue
                try:
                    specification = files.find(path)
                except ConfigurationError as error:
                    found[path] = f"the CDI specification {path} cannot be read, and may name it: {error}"
                    continue
                if specification is None or not still_used.names(files, folder, specification.content):
                    continue
                digest = hashlib.sha256(specification.content).hexdigest()
                if digest not in ours.get(specification.path, ()):
                    found[path] = f"the CDI specification {path} names it"
    return list(found.values())
