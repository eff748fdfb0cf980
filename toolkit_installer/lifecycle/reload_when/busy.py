"""What keeps a node from being idle: GPU containers of whatever engine. What cannot be seen counts as one.

A GPU container is one that runs through a handler of this program, one whose specification has a device of NVIDIA's,
and one of which a process has such a device open. Where a handler of ours is the default, everything runs through it:
then those count that ask for a GPU. The container that this program runs in does not count.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator

import msgspec

from toolkit_installer.engines.ownership import beneath
from toolkit_installer.errors import InstallerError
from toolkit_installer.lifecycle import idling
from toolkit_installer.lifecycle.reload_when import requests
from toolkit_installer.lifecycle.still_needed import container_names, containers
from toolkit_installer.lifecycle.still_needed.container_names import Bundle
from toolkit_installer.node import device_users, processes
from toolkit_installer.node.command_lines import flag_value
from toolkit_installer.node.disk.root import Root
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.trust import Standing

_DRIVER = "nvidia"
"""How the names of the driver's devices begin in /proc/devices."""
_MONITORS = "conmon"
"""How the names of CRI-O's and podman's monitors begin."""
_INIT = "init.pid"
"""In a bundle of containerd's shims: the PID of the container's first process."""
_SHORT = 12
"""Characters of an ID, as docker and crictl show it."""
_SHOWN = 10
_THROUGH = "through a handler of this program"
_HAS = "with a device of NVIDIA's"

Watched = tuple[tuple[str, str], ...]
"""Paths in the installer's mount namespace that change when a container ends, and their identities."""


class Busy(msgspec.Struct, frozen=True):
    """Why the node is not idle, in words; empty: it is. And what changes when that does."""

    why: tuple[str, ...] = ()
    watched: Watched = ()

    @property
    def words(self) -> str:
        """What a person is told."""
        more = f" and {len(self.why) - _SHOWN} more" if len(self.why) > _SHOWN else ""
        return f"{'; '.join(self.why[:_SHOWN])}{more}"


class _Container(msgspec.Struct, frozen=True):
    """A container that runs. `runtime` is None where nobody tells it."""

    identity: str
    runtime: str | None
    pid: int
    """Of its monitor, or of a shim of the same engine."""
    bundle: Bundle | None
    monitored: bool = False
    """It has a monitor, which has no other container."""


class _Unseen(msgspec.Struct, frozen=True):
    """Something that may be a GPU container and cannot be looked at."""

    why: str
    pid: int


def look(node: Node, folder: str, *, by_default: bool) -> Busy:
    """Return what keeps the node from being idle. Raises Stopped, and nothing else that is expected.

    `folder` is the toolkit's. `by_default`: a handler of ours is the default of an engine.
    """
    try:
        found = list(_found(node, folder, by_default=by_default))
    except (InstallerError, OSError) as error:
        return Busy((f"the node's containers cannot be looked at: {error}",))
    watched = dict.fromkeys(place for _, places in found for place in places)
    why = sorted({words for words, _ in found})
    return Busy(tuple(why), tuple((place, _identity(place)) for place in watched))


def _identity(place: str) -> str:
    """Return a path's identity; none that ever is where it is gone already: then the next look is soon."""
    return idling.identity(place) if os.path.lexists(place) else ""


def _found(node: Node, folder: str, *, by_default: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield each reason in words, with the paths that change when it goes. Raises OSError, InstallerError."""
    ours = processes.own_ancestors()
    for each in _containers(node, folder):
        if isinstance(each, _Unseen):
            yield f"{each.why}, and may be of a GPU container", [f"/proc/{each.pid}"]
        elif not _is_own(each, ours) and (why := _why(node, each, folder, by_default=by_default)):
            specification = [container_names.specification_of(each.bundle)] if each.bundle is not None else []
            yield f"{_called(each)} runs {why}", [f"/proc/{each.pid}", *specification]
    homes = [Root("/proc/1/root"), node.root, node.programs.root]
    users = device_users.in_containers(device_users.majors(_DRIVER), homes)
    for pid in users.pids:
        yield f"the process {pid} in a container has a device of NVIDIA's open", [f"/proc/{pid}"]
    if users.unseen:
        yield f"{users.unseen} processes may not be looked at by this user, root may", []


def _why(node: Node, container: _Container, folder: str, *, by_default: bool) -> str:
    """Return in words how a container has a GPU, empty for one that has none."""
    if container.runtime is None or container.bundle is None:
        return "through a runtime that nobody tells"
    specification = container_names.specification(container.bundle)
    sandbox = container_names.keeps_namespaces(specification)
    if sandbox is True:
        return ""
    if requests.has_device(specification):
        return _HAS
    through = beneath(container.runtime, folder) and containers.same_file(node, container.pid, container.runtime)
    if through and (sandbox is None or not by_default or requests.asks_for_one(specification)):
        return _THROUGH
    return "with a specification that cannot be read" if sandbox is None else ""


def _called(container: _Container) -> str:
    known = container_names.of(container.identity, container.bundle)
    return known.pod or known.docker or container.identity[:_SHORT]


def _is_own(container: _Container, ours: frozenset[int]) -> bool:
    """Tell whether this program runs in the container: among `ours` are the processes that it comes from."""
    first = containers.content_of(f"{container.bundle.folder}/{_INIT}") if container.bundle is not None else None
    if first is not None:
        return first.isdigit() and int(first) in ours
    return container.monitored and container.pid in ours


def _containers(node: Node, folder: str) -> Iterator[_Container | _Unseen]:
    """Yield the containers with a live shim or conmon, each once, and what cannot be looked at."""
    places: set[tuple[int, int]] = set()
    wanted = processes.matching(lambda name: name.startswith((containers.SHIM, _MONITORS)))
    for pid, name, standing in wanted:
        if standing is Standing.UNSEEN:
            yield _Unseen(f"the process {pid} may not be looked at by this user, root may", pid)
            continue
        try:
            seen = processes.inspect_visible(pid)
            if seen is None or containers.is_elsewhere(node, pid, folder):
                continue  # it ended meanwhile; or it is in a pod, where anybody is root and called a shim
            yield from _of_monitor(seen) if name.startswith(_MONITORS) else _of_shim(seen, places)
        except PermissionError:
            yield _Unseen(f"the process {pid} may not be looked at by this user, root may", pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile


def _of_shim(shim: Process, places: set[tuple[int, int]]) -> Iterator[_Container | _Unseen]:
    """Yield the containers of a shim and those beside it, unless they were seen: one shim may have many.

    Raises OSError.
    """
    bundle = os.readlink(f"/proc/{shim.pid}/cwd")
    if posixpath.basename(posixpath.dirname(posixpath.dirname(bundle))) != containers.TASKS:
        workdir = flag_value(shim.arguments, "-workdir")
        if workdir is None:
            yield _Unseen(f"the shim {shim.pid} works in no bundle", shim.pid)
        else:  # the shim of containerd before 1.3 and docker before 20.10, whose runtime only its containerd knows
            yield _Container(posixpath.basename(workdir), None, shim.pid, None)
        return
    # a pod's shim has the bundles of its other containers beside its own, and so have the shims of other pods
    around = os.stat(f"/proc/{shim.pid}/cwd/..")
    if (around.st_dev, around.st_ino) in places:
        return
    places.add((around.st_dev, around.st_ino))
    for name in sorted(os.listdir(f"/proc/{shim.pid}/cwd/..")):
        folder = Bundle(f"/proc/{shim.pid}/cwd/../{name}", f"/proc/{shim.pid}/root")
        runtime = containers.content_of(f"{folder.folder}/{containers.RUNTIME_FILE}")
        # a shim of another kind, such as Kata's, names no executable
        yield _Container(name, runtime or "", shim.pid, folder)


def _of_monitor(monitor: Process) -> Iterator[_Container | _Unseen]:
    """Yield the container of a conmon (conmon(8))."""
    if monitor.hidden or monitor.name != containers.MONITOR:
        yield _Unseen(f"the monitor {monitor.pid} ({monitor.name}) does not tell its containers", monitor.pid)
        return
    arguments = monitor.arguments
    folder, root = flag_value(arguments, "-b", "--bundle") or "", f"/proc/{monitor.pid}/root"
    identity = flag_value(arguments, "-c", "--cid") or ""
    runtime = flag_value(arguments, "-r", "--runtime")
    yield _Container(identity, runtime, monitor.pid, Bundle(f"{root}{folder}", root), monitored=True)
