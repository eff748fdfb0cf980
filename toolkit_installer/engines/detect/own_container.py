"""Refuse to write into the installer's own container while the node is mounted elsewhere in it.

Without `--node-root`, paths are used unchanged. That is right in a container into which single folders of the node are
mounted, and on a bare machine. But a container that has only the node's `/` mounted would configure itself, and every
check would pass.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterable, Iterator

from toolkit_installer.engines.common.serving import PROCESS_NAMES
from toolkit_installer.errors import UsageError
from toolkit_installer.node import places, processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.settings import Settings

_DRIVERS = ("/run/nvidia/driver", "/driver-root")
"""Where a driver container's `/` is mounted: also a whole system, but not the node's."""
_OF_ENGINES = ("merged", "rootfs")
"""The names that engines give to the roots of their containers."""
_REMOTE = ("nfs", "cifs", "smb", "fuse", "autofs", "ceph", "9p")
"""File systems that may not respond; a node's `/` is never one of them."""


def refuse_own_container(
    node: Node, settings: Settings, folders: Iterable[str], driver_roots: Collection[str] = ()
) -> None:
    """Raise UsageError if one of the folders to write to is this container's and not the node's.

    `driver_roots` are the roots of the drivers that were found: also whole systems, but not the node's. Nothing is
    refused in doubt: on a bare machine, in a container that runs an engine (it is the node, then), for a folder that is
    a mount, or if no other system is visible that could be the node.
    """
    elsewhere = places.has_other_root_than_init()
    if node.whole or not (places.is_marked_as_container() or elsewhere):
        return
    own = next((folder for folder in folders if _is_on_own_root(node, folder)), None)
    if own is None or _is_engines_root(node):
        return
    place = next(_systems(settings, driver_roots), None)
    if place is None and not elsewhere:
        return
    where = place or "/host"
    raise UsageError(
        f"this is a container, and {own} lies in its own file system, not in the node's",
        hint=(f"the node seems to be mounted at {place}: give" if place else f"mount the node's / at {where}, and give")
        + f" --node-root {where}; or mount {own} of the node as well; --node-root / if this container is the node",
    )


def sees_node(node: Node) -> bool:
    """Tell whether the visible programs and devices are the node's, and not a container's."""
    if node.whole or node.programs.root.folder != "/":
        return True
    return not (places.is_marked_as_container() or places.has_other_root_than_init()) or _is_engines_root(node)


def _is_engines_root(node: Node) -> bool:
    """Tell whether an engine sees the same `/`: docker in docker, a node in a container, a development container."""
    engines = processes.find_by_name(frozenset[str]().union(*PROCESS_NAMES.values()))
    return any(processes.has_root(process, Root(node.root.folder)) for process in engines)


def list_requested_folders(settings: Settings) -> list[str]:
    """Return the folders to write to, as far as the flags alone determine them."""
    folders = [settings.toolkit.install_dir]
    if settings.configure_engine and len(settings.runtimes) == 1:
        config = settings.settings_of(*settings.runtimes).config
        folders += [posixpath.dirname(config)] if config is not None else []
    return folders


def refuse_absent_root(settings: Settings) -> None:
    """Raise UsageError if `--node-root` is not a folder."""
    if settings.node_root is not None and not os.path.isdir(settings.node_root):
        raise UsageError(
            f"--node-root {settings.node_root} is no folder here",
            hint="mount the node's / there, or name the folder at which it is mounted; leave the flag away on the node "
            "itself",
        )


@Query()
def _is_on_own_root(node: Node, folder: str) -> bool:
    """Tell whether a folder, or its nearest existing parent, is on the same mount as `/`."""
    place = node.files.canonical(folder)
    while not os.path.isdir(place):
        place = posixpath.dirname(place)
    try:
        mounts = {node.root.mount_of(posixpath.join(each, ".")) for each in (place, "/")}
    except OSError as error:
        raise NodeError.of(error, folder, "find its mount") from error
    return len(mounts) == 1 and mounts.isdisjoint({-1})


def _systems(settings: Settings, driver_roots: Collection[str]) -> Iterator[str]:
    """Yield the mount points of other whole systems, the likelier ones for a node first."""
    # a driver's root may be the node's own `/`, mounted at the host root
    asked = (settings.toolkit.driver_root_ctr_path, settings.toolkit.driver_root)
    spared = {*_DRIVERS, *asked, *driver_roots} - {settings.host_root}
    found = [place for place in _mounts() if place not in spared and places.is_system(place)]
    yield from sorted(found, key=lambda place: (place != settings.host_root, place.count("/"), place))


@Query()
def _mounts() -> list[str]:
    """Return the mount points that may be a node's `/`, without `/` itself."""
    return [
        each.place
        for each in places.own_table()
        if each.place != "/" and posixpath.basename(each.place) not in _OF_ENGINES and not each.kind.startswith(_REMOTE)
    ]
