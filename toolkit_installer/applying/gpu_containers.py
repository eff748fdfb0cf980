"""Finds the GPU containers that keep a node from being idle, of every engine. An unseen process counts as one.

A GPU container is one that runs through a handler of this program, one whose specification has an NVIDIA device, and
one with a process that has such a device open. Where a handler of ours is the default runtime, every container runs
through it: then those count that ask for a GPU. The container that this program runs in does not count.

Devices and mounts of a CDI specification are in the container's OCI specification (OCI Runtime Specification, config.md
and config-linux.md). NVIDIA's runtime and its hook add theirs later, by the environment that the container asks with.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from toolkit_installer.engines.ownership import beneath
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import descriptors, idling, processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, flag_value
from toolkit_installer.node.root import Root
from toolkit_installer.node.trust import Standing
from toolkit_installer.planning import toolkit_users
from toolkit_installer.planning.toolkit_users import Bundle

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
            specification = [toolkit_users.specification_of(each.bundle)] if each.bundle is not None else []
            yield f"{_called(each)} runs {why}", [f"/proc/{each.pid}", *specification]
    homes = [Root("/proc/1/root"), node.root, node.programs.root]
    users = descriptors.in_containers(descriptors.majors(_DRIVER), homes)
    for pid in users.pids:
        yield f"the process {pid} in a container has a device of NVIDIA's open", [f"/proc/{pid}"]
    if users.unseen:
        yield f"{users.unseen} processes may not be looked at by this user, root may", []


def _why(node: Node, container: _Container, folder: str, *, by_default: bool) -> str:
    """Return in words how a container has a GPU, empty for one that has none."""
    if container.runtime is None or container.bundle is None:
        return "through a runtime that nobody tells"
    specification = toolkit_users.specification(container.bundle)
    sandbox = toolkit_users.keeps_namespaces(specification)
    if sandbox is True:
        return ""
    if has_device(specification):
        return _HAS
    through = beneath(container.runtime, folder) and toolkit_users.same_file(node, container.pid, container.runtime)
    if through and (sandbox is None or not by_default or asks_for_one(specification)):
        return _THROUGH
    return "with a specification that cannot be read" if sandbox is None else ""


def _called(container: _Container) -> str:
    known = toolkit_users.of(container.identity, container.bundle)
    return known.pod or known.docker or container.identity[:_SHORT]


def _is_own(container: _Container, ours: frozenset[int]) -> bool:
    """Tell whether this program runs in the container: among `ours` are the processes that it comes from."""
    first = toolkit_users.content_of(f"{container.bundle.folder}/{_INIT}") if container.bundle is not None else None
    if first is not None:
        return first.isdigit() and int(first) in ours
    return container.monitored and container.pid in ours


def _containers(node: Node, folder: str) -> Iterator[_Container | _Unseen]:
    """Yield the containers with a live shim or conmon, each once, and what cannot be looked at."""
    places: set[tuple[int, int]] = set()
    wanted = processes.matching(lambda name: name.startswith((toolkit_users.SHIM, _MONITORS)))
    for pid, name, standing in wanted:
        if standing is Standing.UNSEEN:
            yield _Unseen(f"the process {pid} may not be looked at by this user, root may", pid)
            continue
        try:
            seen = processes.inspect_visible(pid)
            if seen is None or toolkit_users.is_elsewhere(node, pid, folder):
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
    if posixpath.basename(posixpath.dirname(posixpath.dirname(bundle))) != toolkit_users.TASKS:
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
        runtime = toolkit_users.content_of(f"{folder.folder}/{toolkit_users.RUNTIME_FILE}")
        # a shim of another kind, such as Kata's, names no executable
        yield _Container(name, runtime or "", shim.pid, folder)


def _of_monitor(monitor: Process) -> Iterator[_Container | _Unseen]:
    """Yield the container of a conmon (conmon(8))."""
    if monitor.hidden or monitor.name != toolkit_users.MONITOR:
        yield _Unseen(f"the monitor {monitor.pid} ({monitor.name}) does not tell its containers", monitor.pid)
        return
    arguments = monitor.arguments
    folder, root = flag_value(arguments, "-b", "--bundle") or "", f"/proc/{monitor.pid}/root"
    identity = flag_value(arguments, "-c", "--cid") or ""
    runtime = flag_value(arguments, "-r", "--runtime")
    yield _Container(identity, runtime, monitor.pid, Bundle(f"{root}{folder}", root), monitored=True)


_DEVICES = ("/dev/nvidia", "/dev/dxg")
_MAJOR = 195
"""Of the driver's devices: Linux allocated devices, "195 char"."""
_LISTED = "/var/run/nvidia-container-devices"
"""Below it, mounts name devices (NVIDIA's container toolkit, `accept-nvidia-visible-devices-as-volume-mounts`)."""
_VISIBLE, _IMPLIED = "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION"
"""Variables that ask for devices; the second one does in images from before the first, where that is not set."""
_NONE = frozenset({"", "void", "none"})
_CDI = "cdi.k8s.io/"
"""How the annotations begin that ask for CDI devices; others end so before their slash."""


def has_device(specification: Mapping[str, Any]) -> bool:
    """Tell whether a device of NVIDIA's is among the container's devices or mounts."""
    for device in _objects(_object(specification.get("linux")).get("devices")):
        if _is_device(device.get("path")) or (device.get("type") == "c" and device.get("major") == _MAJOR):
            return True
    mounts = list(_objects(specification.get("mounts")))
    return any(_is_device(mount.get(key)) for mount in mounts for key in ("source", "destination"))


def asks_for_one(specification: Mapping[str, Any]) -> bool:
    """Tell whether NVIDIA's runtime would give the container a GPU."""
    process = _object(specification.get("process"))
    words = [each for each in _list(process.get("env")) if isinstance(each, str)]
    variables = dict(word.partition("=")[::2] for word in words)
    visible = variables.get(_VISIBLE)
    if visible not in _NONE if visible is not None else _IMPLIED in variables:
        return True
    targets = [mount.get("destination") for mount in _objects(specification.get("mounts"))]
    if any(isinstance(target, str) and target.startswith(_LISTED) for target in targets):
        return True
    return has_device(specification) or any(_CDI in key for key in _object(specification.get("annotations")))


def _is_device(path: object) -> bool:
    return isinstance(path, str) and path.startswith(_DEVICES)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in _list(value) if isinstance(each, dict))
