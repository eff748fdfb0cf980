"""Find the GPU containers of every engine that keep a node from being idle.

A process that cannot be inspected counts as a GPU container. Otherwise a container is one if it runs through a handler
of this program, its specification has an NVIDIA device, or one of its processes has such a device open. If a handler of
ours is the default runtime, every container runs through it: then only those count that request a GPU. This program's
own container does not count.

Devices and mounts of a CDI specification are in the container's OCI specification (OCI Runtime Specification, config.md
and config-linux.md). NVIDIA's runtime and its hook add theirs later, as the container's environment requests them.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import idling, processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process, flag_value
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import Root
from toolkit_installer.node.trust import TrustLevel
from toolkit_installer.planning import toolkit_users
from toolkit_installer.planning.toolkit_users import Bundle

_DRIVER = "nvidia"
"""The prefix of the driver's devices in /proc/devices."""
_MONITORS = "conmon"
"""The prefix of the names of CRI-O's and podman's monitors."""
_INIT = "init.pid"
"""In a bundle of containerd's shims: the PID of the container's first process."""
_SHORT = 12
"""Characters of an ID, as docker and crictl print it."""
_SHOWN = 10
_THROUGH = "through a handler of this program"
_HAS = "with a device of NVIDIA's"

PathIdentities = tuple[tuple[str, str], ...]
"""Paths in the installer's mount namespace that change when a container ends, and their identities."""


class BusyReasons(msgspec.Struct, frozen=True):
    """Why the node is not idle (empty if it is), and the paths that change when that may have changed."""

    why: tuple[str, ...] = ()
    watched: PathIdentities = ()

    @property
    def words(self) -> str:
        """The reasons as one text."""
        more = f" and {len(self.why) - _SHOWN} more" if len(self.why) > _SHOWN else ""
        return f"{'; '.join(self.why[:_SHOWN])}{more}"


class _RunningContainer(msgspec.Struct, frozen=True):
    """A running container. `runtime` is None if unknown."""

    identity: str
    runtime: str | None
    pid: int
    """The PID of its monitor, or of a shim of the same engine."""
    bundle: Bundle | None
    monitored: bool = False
    """Whether it has a monitor, which has no other container."""


class _UninspectableProcess(msgspec.Struct, frozen=True):
    """A process that may be of a GPU container and cannot be inspected."""

    why: str
    pid: int


@Query()
def find_busy_reasons(node: Node, folder: str, *, by_default: bool) -> BusyReasons:
    """Return what keeps the node from being idle. Raises no expected error but Stopped.

    `folder` is the toolkit's. `by_default`: a handler of ours is the default of an engine.
    """
    try:
        found = list(_find_reasons(node, folder, by_default=by_default))
    except (InstallerError, OSError) as error:
        return BusyReasons((f"the node's containers cannot be looked at: {error}",))
    watched = dict.fromkeys(place for _, places in found for place in places)
    why = sorted({words for words, _ in found})
    return BusyReasons(tuple(why), tuple((place, _identity(place)) for place in watched))


def _identity(place: str) -> str:
    """Return a path's identity, or one that never matches if the path is gone: the next check then comes soon."""
    return idling.identity(place) if os.path.lexists(place) else ""


def _find_reasons(node: Node, folder: str, *, by_default: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield each reason with the paths that change when it ends. Raises OSError, InstallerError."""
    ours = processes.own_ancestors()
    for each in _list_containers(node, folder):
        if isinstance(each, _UninspectableProcess):
            yield f"{each.why}, and may be of a GPU container", [f"/proc/{each.pid}"]
        elif not _is_own(each, ours) and (why := _explain_gpu_use(node, each, folder, by_default=by_default)):
            specification = [toolkit_users.get_specification_path(each.bundle)] if each.bundle is not None else []
            yield f"{_get_name(each)} runs {why}", [f"/proc/{each.pid}", *specification]
    homes = [Root("/proc/1/root"), node.root, node.programs.root]
    users = processes.find_users_in_containers(processes.find_major_numbers(_DRIVER), homes)
    for pid in users.pids:
        yield f"the process {pid} in a container has a device of NVIDIA's open", [f"/proc/{pid}"]
    if users.unseen:
        yield f"{users.unseen} processes may not be looked at by this user, root may", []


def _explain_gpu_use(node: Node, container: _RunningContainer, folder: str, *, by_default: bool) -> str:
    """Return how a container has a GPU, as text; empty if it has none."""
    if container.runtime is None or container.bundle is None:
        return "through a runtime that nobody tells"
    specification = toolkit_users.specification(container.bundle)
    sandbox = toolkit_users.is_sandbox_specification(specification)
    if sandbox is True:
        return ""
    if has_device(specification):
        return _HAS
    through = is_beneath(container.runtime, folder) and toolkit_users.is_same_file(
        node, container.pid, container.runtime
    )
    if through and (sandbox is None or not by_default or requests_gpu(specification)):
        return _THROUGH
    return "with a specification that cannot be read" if sandbox is None else ""


def _get_name(container: _RunningContainer) -> str:
    known = toolkit_users.find_name(container.identity, container.bundle)
    return known.pod or known.docker or container.identity[:_SHORT]


def _is_own(container: _RunningContainer, ours: frozenset[int]) -> bool:
    """Return whether this program runs in the container; `ours` are this process' PID and its ancestors'."""
    first = toolkit_users.read_text(f"{container.bundle.folder}/{_INIT}") if container.bundle is not None else None
    if first is not None:
        return first.isdigit() and int(first) in ours
    return container.monitored and container.pid in ours


def _list_containers(node: Node, folder: str) -> Iterator[_RunningContainer | _UninspectableProcess]:
    """Yield the containers with a live shim or conmon, each once, and the processes that cannot be inspected."""
    places: set[tuple[int, int]] = set()
    wanted = processes.find_matching(lambda name: name.startswith((toolkit_users.SHIM, _MONITORS)))
    for pid, name, trust_level in wanted:
        if trust_level is TrustLevel.UNSEEN:
            yield _UninspectableProcess(f"the process {pid} may not be looked at by this user, root may", pid)
            continue
        try:
            seen = processes.inspect_visible(pid)
            if seen is None or toolkit_users.has_other_root(node, pid, folder):
                continue  # it ended meanwhile; or it is in a pod, where any process may be root's and named like a shim
            yield from (
                _list_monitor_containers(seen) if name.startswith(_MONITORS) else _list_shim_containers(seen, places)
            )
        except PermissionError:
            yield _UninspectableProcess(f"the process {pid} may not be looked at by this user, root may", pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile


def _list_shim_containers(
    shim: Process, places: set[tuple[int, int]]
) -> Iterator[_RunningContainer | _UninspectableProcess]:
    """Yield the containers of a shim and those next to it, unless already seen: one shim may have many.

    Raises OSError.
    """
    bundle = os.readlink(f"/proc/{shim.pid}/cwd")
    if posixpath.basename(posixpath.dirname(posixpath.dirname(bundle))) != toolkit_users.TASKS:
        workdir = flag_value(shim.arguments, "-workdir")
        if workdir is None:
            yield _UninspectableProcess(f"the shim {shim.pid} works in no bundle", shim.pid)
        else:  # containerd's shim before 1.3, docker's before 20.10: only its containerd knows the runtime
            yield _RunningContainer(posixpath.basename(workdir), None, shim.pid, None)
        return
    # next to a pod's shim's bundle are those of the pod's other containers, and those of other pods' shims
    around = os.stat(f"/proc/{shim.pid}/cwd/..")
    if (around.st_dev, around.st_ino) in places:
        return
    places.add((around.st_dev, around.st_ino))
    for name in sorted(os.listdir(f"/proc/{shim.pid}/cwd/..")):
        folder = Bundle(f"/proc/{shim.pid}/cwd/../{name}", f"/proc/{shim.pid}/root")
        runtime = toolkit_users.read_text(f"{folder.folder}/{toolkit_users.RUNTIME_FILE}")
        # other shims, such as Kata's, name no executable
        yield _RunningContainer(name, runtime or "", shim.pid, folder)


def _list_monitor_containers(monitor: Process) -> Iterator[_RunningContainer | _UninspectableProcess]:
    """Yield the container of a conmon (conmon(8))."""
    if monitor.hidden or monitor.name != toolkit_users.MONITOR:
        yield _UninspectableProcess(
            f"the monitor {monitor.pid} ({monitor.name}) does not tell its containers", monitor.pid
        )
        return
    arguments = monitor.arguments
    folder, root = flag_value(arguments, "-b", "--bundle") or "", f"/proc/{monitor.pid}/root"
    identity = flag_value(arguments, "-c", "--cid") or ""
    runtime = flag_value(arguments, "-r", "--runtime")
    yield _RunningContainer(identity, runtime, monitor.pid, Bundle(f"{root}{folder}", root), monitored=True)


_DEVICES = ("/dev/nvidia", "/dev/dxg")
_MAJOR = 195
"""The major number of the driver's devices: Linux allocated devices, "195 char"."""
_LISTED = "/var/run/nvidia-container-devices"
"""Mounts below this path name devices (NVIDIA's container toolkit, `accept-nvidia-visible-devices-as-volume-mounts`).
"""
_VISIBLE, _IMPLIED = "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION"
"""Variables that request devices; CUDA_VERSION does in older images, if NVIDIA_VISIBLE_DEVICES is not set."""
_NONE = frozenset({"", "void", "none"})
_CDI = "cdi.k8s.io/"
"""In the key of an annotation that requests CDI devices: the domain, or the end of the domain."""


def has_device(specification: Mapping[str, Any]) -> bool:
    """Return whether the container has an NVIDIA device among its devices or mounts."""
    for device in _objects(_object(specification.get("linux")).get("devices")):
        if _is_device(device.get("path")) or (device.get("type") == "c" and device.get("major") == _MAJOR):
            return True
    mounts = list(_objects(specification.get("mounts")))
    return any(_is_device(mount.get(key)) for mount in mounts for key in ("source", "destination"))


def requests_gpu(specification: Mapping[str, Any]) -> bool:
    """Return whether NVIDIA's runtime would give the container a GPU."""
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
