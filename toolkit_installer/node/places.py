"""What the node calls a file that is mounted into this container, and where a file of the node is seen here.

Without `--node-root`, paths are those of this process's own mount namespace: /runtime/config-dir/config.toml may be the
node's /etc/containerd/config.toml. The node's own names are known where its `/` is seen: at `--host-root`, or as the
root of its first process. A name counts only if the same file is seen there: mount tables lag behind, and hide things.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import msgspec

from toolkit_installer.node import mounts
from toolkit_installer.node.disk.root import INIT_ROOT, NodeError, Root
from toolkit_installer.node.mounts import Mount
from toolkit_installer.node.node import Node

_OWN_TABLE = "/proc/self/mountinfo"
_INIT_TABLE = "/proc/1/mountinfo"
_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that docker and podman put into each container."""
_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container")
"""What the kubelet gives each container, and others theirs (systemd's container interface)."""


class View(msgspec.Struct, frozen=True):
    """A folder of this process that is the node's `/`, and the node's mounts as they are seen from there."""

    root: Root
    table: tuple[Mount, ...]


def is_marked() -> bool:
    """Tell whether whoever made this container says that it is one."""
    return any(os.path.lexists(mark) for mark in _MARKS) or any(os.environ.get(name) for name in _VARIABLES)


def is_system(folder: str) -> bool:
    """Tell whether a folder looks like the `/` of a whole system."""
    return all(os.path.isdir(f"{folder}/{part}") for part in ("proc", "usr", "etc")) and any(
        os.path.lexists(f"{folder}/{part}/os-release") for part in ("etc", "usr/lib")
    )


def own_table() -> tuple[Mount, ...]:
    """Return the mounts of this process."""
    return _read(_OWN_TABLE)


def _read(path: str) -> tuple[Mount, ...]:
    # a local user may mount a file system of theirs on a folder with a carriage return in its name
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        return mounts.parse(lines.read())


def on_node(node: Node, path: str) -> str | None:
    """Return what the node calls the file that is, or would be, at `path` here; None where that is not known.

    Reads, never writes.
    """
    if node.whole:
        return path
    seen = _views(node)
    if not seen:
        return path if not is_marked() or _keeps_its_name(node, path) else None
    if any(_is_same(node, path, view, path) for view in seen):
        return path
    canonical, own = _canonical(node.root, path), own_table()
    mount = mounts.mount_of(canonical, own)
    if mount is None or mount.place == "/":
        return None  # this container's own
    for view in seen:
        for name in mounts.names(canonical, own, view.table):
            if _is_same(node, canonical, view, name):
                return name
    return None


def seen_here(node: Node, path: str) -> str | None:
    """Return where the node's file `path` is, or would be, here; None where it is not seen. Reads, never writes.

    Of several places, the one in a folder that this run was given (`Node.given`) comes first, then one that can be
    written to. A path that this run was given and that is no name of the node's is what it says.
    """
    if node.whole:
        return path
    seen = _views(node)
    if not seen:
        return path if not is_marked() or _is_there(node, path) else None
    named = {os.path.dirname(each): on_node(node, os.path.dirname(each)) for each in node.given}
    if path in node.given and named[os.path.dirname(path)] is None:
        return path
    around = [(folder, name) for folder, name in named.items() if name is not None and mounts.is_beneath(path, name)]
    likely = [folder.rstrip("/") + path[len(name.rstrip("/")) :] for folder, name in sorted(around, key=_depth)]
    for here in (*likely, path):
        if any(_is_same(node, here, view, path) for view in seen):
            return here
    own = own_table()
    found = [
        here
        for view in seen
        for here in mounts.names(_canonical(view.root, path), view.table, own)
        if _is_same(node, here, view, path)
    ]
    return min(found, key=lambda here: not _is_writable(here, own)) if found else None


def reachable(node: Node, path: str) -> str | None:
    """Return where the node's socket `path` can be connected to, None where it cannot: nothing is written there."""
    here = seen_here(node, path)
    if here is not None:
        return here
    places = (view.root.outside(_canonical(view.root, path)) for view in _views(node))
    return next((place for place in places if os.path.lexists(place)), None)


def _views(node: Node) -> list[View]:
    """Return where the node's `/` is seen, the surest first; nothing where its paths are those of this process.

    A machine of its own may have another system mounted, and is no container for that.
    """
    found = [folder for folder in (node.programs.root.folder, INIT_ROOT) if folder != "/" and _is_another(folder)]
    if INIT_ROOT not in found and not is_marked():
        return []
    return [
        View(Root(folder), _read(_INIT_TABLE) if folder == INIT_ROOT else mounts.below(own_table(), folder))
        for folder in found
    ]


def _is_another(folder: str) -> bool:
    """Tell whether a folder is the `/` of a whole system, and not this process's own."""
    try:
        return not os.path.samestat(os.stat(f"{folder}/"), os.stat("/")) and is_system(folder)
    except OSError:
        return False  # it may not be looked at


def _depth(named: tuple[str, str]) -> int:
    """Sort the deepest folder of the node first."""
    return -len(named[1])


def _keeps_its_name(node: Node, path: str) -> bool:
    """Tell whether a path may be the node's own, as far as this container's mounts alone say.

    A folder is mounted under the name that it has on its file system, which the node may have mounted elsewhere, or of
    which it may have mounted a part.
    """
    mount = mounts.mount_of(_canonical(node.root, path), own_table())
    return mount is None or mount.root.endswith(mount.place.rstrip("/")) or mount.place.endswith(mount.root.rstrip("/"))


def _is_there(node: Node, path: str) -> bool:
    """Tell whether a file is there, or would be in a mounted folder, and not in one of this container's own."""
    canonical = _canonical(node.root, path)
    mount = mounts.mount_of(canonical, own_table())
    mounted = mount is not None and mount.place != "/" and os.path.isdir(os.path.dirname(canonical))
    return mounted or os.path.lexists(canonical)


def _is_writable(path: str, own: Iterable[Mount]) -> bool:
    mount = mounts.mount_of(path, tuple(own))
    return mount is not None and mount.writable


def _is_same(node: Node, here: str, view: View, there: str) -> bool:
    """Tell whether a path of this process and a path of the node are the same file, or will be once it is made."""
    mine, theirs = _canonical(node.root, here), _canonical(view.root, there)
    while True:
        found, seen = (_status(mine), _status(view.root.outside(theirs)))
        if found is not None or seen is not None:
            return found is not None and seen is not None and os.path.samestat(found, seen)
        if os.path.basename(mine) != os.path.basename(theirs):
            return False
        mine, theirs = os.path.dirname(mine), os.path.dirname(theirs)


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _canonical(root: Root, path: str) -> str:
    """Return a path without symlinks; one that must not be followed is as it is: whoever opens it says so."""
    try:
        return root.canonical(path)
    except NodeError:
        return path
