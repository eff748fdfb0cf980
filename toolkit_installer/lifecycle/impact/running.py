"""The containers of an engine that run now, and which of them run through handlers of this program.

What is believed is what still_needed goes by: shims and monitors that are root's, and the bundles that they work in.
docker says itself how many run. Of the others, containers that only keep a pod's namespaces do not count.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator

import msgspec

from toolkit_installer.engines.api import Inspection
from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.common.serving import is_same_socket
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.lifecycle.impact.words import Running
from toolkit_installer.lifecycle.still_needed import container_names
from toolkit_installer.lifecycle.still_needed.container_names import Bundle
from toolkit_installer.lifecycle.still_needed.containers import (
    MONITOR,
    RUNTIME_FILE,
    SHIM,
    TASKS,
    content_of,
    same_file,
)
from toolkit_installer.node import processes
from toolkit_installer.node.command_lines import flag_value
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, root_of
from toolkit_installer.node.trust import Standing
from toolkit_installer.settings import EngineName

_DOCKERS_NAMESPACE = "moby"
"""In which dockerd keeps its containers in a containerd, unless it is told another one."""
_NAMESPACE_FLAG = "--containerd-namespace"
_OF_PODMAN = "--exit-command"
"""What podman tells its conmon, and CRI-O does not: who is to tidy up after the container."""
_OTHER_MONITOR = "conmonrs"
"""One process for many containers, which CRI-O may be told to use (`runtime_type = "pod"`)."""
_SHORT = 12
"""Characters of an ID, as docker and crictl show it."""


class _Container(msgspec.Struct, frozen=True):
    """A container that runs. `runtime` is None where that is unknown; `pid` is a process of its engine."""

    identity: str
    runtime: str | None
    pid: int
    bundle: Bundle | None


class _UnseenError(Exception):
    """Something that may be the engine's cannot be looked at; the text says what."""


def containers(node: Node, name: EngineName, inspection: Inspection, folder: str) -> Running:
    """Return the containers of the engine that run now; `folder` is the toolkit's. Raises NodeError, OSError."""
    live, engine = inspection.live, inspection.process
    told = live.running if live is not None else None
    if engine is None or processes.inspect_process(engine.pid) != engine:
        return Running(told, unknown="the engine's process is not seen any more")
    try:
        found = {each.identity: each for each in _of(node, name, engine, inspection.socket)}
    except _UnseenError as unseen:
        return Running(told, unknown=str(unseen))
    total = len(found) if told is None else told
    if total > len(found):  # some are not where containers are looked for
        return Running(total, unknown=f"{total} containers run, and {len(found)} of them are seen from here")
    if unclear := [each.identity for each in found.values() if each.runtime is None]:
        return Running(total, unknown=f"what {len(unclear)} of the containers run through is not told by their shims")
    ours = [each for each in found.values() if beneath(each.runtime, folder) and _is_ours(node, each)]
    return Running(total, len(ours), tuple(sorted({_called(each) for each in ours})))


def _is_ours(node: Node, container: _Container) -> bool:
    return container.runtime is not None and same_file(node, container.pid, container.runtime)


def _called(container: _Container) -> str:
    known = container_names.of(container.identity, container.bundle)
    return known.pod or known.docker or container.identity[:_SHORT]


def _of(node: Node, name: EngineName, engine: Process, socket: str) -> Iterator[_Container]:
    """Yield the engine's containers. Raises _UnseenError, OSError."""
    if name is EngineName.CRIO:
        yield from _monitored(engine)
    elif name is EngineName.DOCKER:
        namespaces = command_line.values(engine.arguments[1:], _NAMESPACE_FLAG) or [_DOCKERS_NAMESPACE]
        yield from _shimmed(engine, lambda shim: flag_value(shim.arguments, "-namespace") in namespaces)
    elif name is EngineName.CONTAINERD:
        yield from _shimmed(engine, lambda shim: _speaks_to(shim, node, socket))
    else:
        raise _UnseenError(f"where {name} keeps its containers is not known here")


def _speaks_to(shim: Process, node: Node, socket: str) -> bool:
    return is_same_socket(root_of(shim), flag_value(shim.arguments, "-address") or "", node.root, socket)


def _shimmed(engine: Process, is_its: Callable[[Process], bool]) -> Iterator[_Container]:
    """Yield the containers of a containerd's shims. Raises _UnseenError, OSError."""
    places: dict[tuple[int, int], int] = {}
    for shim in filter(is_its, _beside(engine, SHIM)):
        try:
            bundle = os.readlink(f"/proc/{shim.pid}/cwd")
            around = os.stat(f"/proc/{shim.pid}/cwd/..")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        workdir = flag_value(shim.arguments, "-workdir")
        if posixpath.basename(posixpath.dirname(posixpath.dirname(bundle))) == TASKS:
            places.setdefault((around.st_dev, around.st_ino), shim.pid)
        elif workdir is not None:
            # the shim of containerd before 1.3 and docker before 20.10, whose runtime only its containerd knows
            yield _Container(posixpath.basename(workdir), None, shim.pid, None)
    for pid in places.values():
        yield from _in_bundles(pid)


def _in_bundles(pid: int) -> Iterator[_Container]:
    """Yield the containers whose bundles lie beside the one in which a shim works: one shim may have many."""
    place = f"/proc/{pid}/cwd/.."
    try:
        names = os.listdir(place)
    except (FileNotFoundError, ProcessLookupError):
        raise _UnseenError("a shim ended while its containers were counted") from None
    for name in sorted(names):
        bundle = Bundle(f"{place}/{name}", f"/proc/{pid}/root")
        if container_names.is_sandbox(bundle) is False:
            # a shim of another kind, such as Kata's, names no executable: it runs none of ours
            yield _Container(name, content_of(f"{bundle.folder}/{RUNTIME_FILE}") or "", pid, bundle)


def _monitored(engine: Process) -> Iterator[_Container]:
    """Yield the containers of CRI-O, by their conmons (conmon(8)). Raises _UnseenError."""
    for monitor in _beside(engine, MONITOR):
        if monitor.name == _OTHER_MONITOR:
            raise _UnseenError("conmonrs does not tell its containers")
        arguments = monitor.arguments
        if monitor.name != MONITOR or _OF_PODMAN in arguments:
            continue
        folder = flag_value(arguments, "-b", "--bundle") or ""
        bundle = Bundle(f"/proc/{monitor.pid}/root{folder}", f"/proc/{monitor.pid}/root")
        identity, runtime = flag_value(arguments, "-c", "--cid"), flag_value(arguments, "-r", "--runtime")
        if identity is not None and not container_names.is_sandbox(bundle):
            yield _Container(identity, runtime, monitor.pid, bundle)


def _beside(engine: Process, named: str) -> Iterator[Process]:
    """Yield the processes whose name begins so and that have the engine's `/`. Raises _UnseenError."""
    for pid, name, standing in processes.matching(lambda each: each.startswith(named)):
        seen = processes.inspect_process(pid) if standing is not Standing.UNSEEN else None
        if standing is Standing.UNSEEN:
            raise _UnseenError(f"this user may not look at the process {pid} ({name}), root may")
        if seen is None or not processes.lives_on(seen, root_of(engine)):
            continue  # it ended meanwhile, or it is a container's own
        if seen.hidden:
            raise _UnseenError(f"the process {pid} ({name}) has wiped its command line")
        yield seen
