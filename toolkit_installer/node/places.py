"""Translates paths between this process's mount namespace and the node's.

Without `--node-root`, paths are those of this process's own mount namespace: /runtime/config-dir/config.toml may be the
node's /etc/containerd/config.toml. The node's own names are known if its `/` is visible: at `--host-root`, or as the
root of its first process. A name counts only if the same file is found there: mount tables may be out of date, and hide
mounts.

A bind mount shows a folder of a file system under another name. Both namespaces list the same file system by the same
device number, each with the folder of it that is mounted (proc_pid_mountinfo(5)): the names of one file in both follow
from the two tables. The caller checks a name by the file's identity.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec

from toolkit_installer.node.node import Node
from toolkit_installer.node.queries import Query, is_absolute_if_any
from toolkit_installer.node.root import INIT_ROOT, NodeError, Root

_DELETED = "//deleted"
"""Suffix of the name of a mounted folder that was removed: no other process sees it."""


class Mount(msgspec.Struct, frozen=True):
    """One line of a mount table."""

    number: int
    parent: int
    device: str
    """Major and minor number of the file system."""
    root: str
    """The folder of the file system that is mounted."""
    place: str
    """Where it is mounted."""
    writable: bool
    kind: str
    """The type of the file system."""


def parse(text: str) -> tuple[Mount, ...]:
    """Return the mounts of a table, in its order."""
    return tuple(_mount(line) for line in text.split("\n") if line)


def _mount(line: str) -> Mount:
    words = line.split(" ")
    writable = "rw" in words[5].split(",")
    kind = words[words.index("-") + 1]
    return Mount(int(words[0]), int(words[1]), words[2], _unescape(words[3]), _unescape(words[4]), writable, kind)


def _unescape(word: str) -> str:
    """Return a path with its escapes decoded: blanks and the like are a backslash and their code in octal."""
    head, *rest = word.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def is_beneath(path: str, folder: str) -> bool:
    """Return whether a canonical path is the folder, or lies in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def select_mounts_below(mounts: Sequence[Mount], folder: str) -> tuple[Mount, ...]:
    """Return the mount table as a process with the root `folder`, a mount point, would see it."""
    inside = (each for each in mounts if is_beneath(each.place, folder))
    return tuple(
        msgspec.structs.replace(each, place=_joined("/", each.place[len(folder) :].lstrip("/"))) for each in inside
    )


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount on which a canonical path lies, None if the table has no root.

    A mount hides everything that its parent has below the same place, other mounts included.
    """
    numbers = {each.number for each in mounts}
    tops = (each for each in mounts if each.parent == each.number or each.parent not in numbers)
    current = next((each for each in tops if each.place == "/"), None)
    while current is not None:
        children = [each for each in mounts if each.parent == current.number and each is not current]
        over = [each for each in children if is_beneath(path, each.place)]
        if not over:
            return current
        current = min(over, key=lambda each: len(each.place))
    return None


def names_of(path: str, here: Sequence[Mount], there: Sequence[Mount]) -> Iterator[str]:
    """Yield the names that the file at the canonical `path` of the table `here` has by the table `there`.

    Names with the fewest components come first, of several the one on the most specific mount: a node's own mounts are
    nearer to its root than those that are made for containers.
    """
    mount = mount_of(path, here)
    if mount is None or mount.root.endswith(_DELETED):
        return
    inner = _joined(mount.root, path[len(mount.place.rstrip("/")) :].lstrip("/"))
    found = [
        (_joined(each.place, inner[len(each.root.rstrip("/")) :].lstrip("/")), each)
        for each in there
        if each.device == mount.device and is_beneath(inner, each.root)
    ]
    # if several mounts give one name, the visible mount counts
    for name, each in sorted(found, key=lambda pair: (pair[0].count("/"), -len(pair[1].root), pair[0])):
        if mount_of(name, there) == each:
            yield name


def _joined(folder: str, rest: str) -> str:
    return posixpath.join(folder, rest) if rest else folder


_OWN_TABLE = "/proc/self/mountinfo"
_INIT_ROOT = "/proc/1/root/"
_INIT_TABLE = "/proc/1/mountinfo"
_MARKS = ("/.dockerenv", "/run/.containerenv")
"""Files that docker and podman put into each container."""
_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container")
"""Variables that the kubelet sets in each container, and others in theirs (systemd's container interface)."""


class NodeView(msgspec.Struct, frozen=True):
    """A folder of this process that is the node's `/`, and the node's mounts as seen from there."""

    root: Root
    table: tuple[Mount, ...]


@Query()
def is_marked_as_container() -> bool:
    """Return whether the program that created this container marked it as one."""
    return any(os.path.lexists(mark) for mark in _MARKS) or any(os.environ.get(name) for name in _VARIABLES)


@Query()
def is_system(folder: str) -> bool:
    """Return whether a folder looks like the `/` of a whole system."""
    return all(os.path.isdir(f"{folder}/{part}") for part in ("proc", "usr", "etc")) and any(
        os.path.lexists(f"{folder}/{part}/os-release") for part in ("etc", "usr/lib")
    )


def own_table() -> tuple[Mount, ...]:
    """Return the mounts of this process."""
    return _read(_OWN_TABLE)


@Query()
def has_other_root_than_init() -> bool:
    """Return whether the first process is known to have another `/`: this is a container among the node's processes."""
    try:
        return not os.path.samestat(os.stat(_INIT_ROOT), os.stat("/"))
    except OSError:
        return False  # the first process may not be inspected


def table_of(pid: int) -> tuple[Mount, ...]:
    """Return the mounts of a process; none if they cannot be read."""
    try:
        return _read(f"/proc/{pid}/mountinfo")
    except OSError:
        return ()


def _read(path: str) -> tuple[Mount, ...]:
    # a local user may mount a file system on a folder with a carriage return in its name
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        return parse(lines.read())


class PathTranslator:
    """Translates paths between this process and the node; reads the mount tables once, when they are first needed.

    A mount that changes later is not seen.
    """

    def __init__(self, node: Node) -> None:
        self.node = node

    @Query(is_valid=is_absolute_if_any)
    def on_node(self, path: str) -> str | None:
        """Return the node's name of the file that is, or would be, at `path` here; None if it is unknown.

        Reads, never writes.
        """
        if self.node.whole:
            return path
        if not self._views:
            return path if not is_marked_as_container() or self._keeps_its_name(path) else None
        if any(self._is_same(path, view, path) for view in self._views):
            return path
        canonical = _canonical(self.node.root, path)
        mount = mount_of(canonical, self._own)
        if mount is None or mount.place == "/":
            return None  # the file is this container's own
        for view in self._views:
            for name in names_of(canonical, self._own, view.table):
                if self._is_same(canonical, view, name):
                    return name
        return None

    @Query(is_valid=is_absolute_if_any)
    def seen_here(self, path: str, *, given: bool = True) -> str | None:
        """Return where the node's file `path` is, or would be, here; None if it is not visible. Reads, never writes.

        Of several places, the one in a folder that was given to this run (`Node.given`) comes first, then a writable
        one. With `given`, a path that was given to this run and that is no name of the node's is returned as it is: a
        file of this installer's own, or a socket.
        """
        if self.node.whole:
            return path
        if not self._views:
            return path if not is_marked_as_container() or self._is_there(path) else None
        if given and path in self.node.given and self._given[os.path.dirname(path)] is None:
            return path
        names = self._given.items()
        around = [(folder, name) for folder, name in names if name is not None and is_beneath(path, name)]
        likely = [folder.rstrip("/") + path[len(name.rstrip("/")) :] for folder, name in sorted(around, key=_depth)]
        for here in (*likely, path):
            if any(self._is_same(here, view, path) for view in self._views):
                return here
        found = [
            here
            for view in self._views
            for here in names_of(_canonical(view.root, path), view.table, self._own)
            if self._is_same(here, view, path)
        ]
        return min(found, key=lambda here: not self._is_writable(here)) if found else None

    @Query(is_valid=is_absolute_if_any)
    def reachable(self, path: str) -> str | None:
        """Return a path to connect to the node's socket `path`, None if there is none: nothing is written there."""
        here = self.seen_here(path)
        if here is not None:
            return here
        places = (view.root.outside(_canonical(view.root, path)) for view in self._views)
        return next((place for place in places if os.path.lexists(place)), None)

    @cached_property
    def _own(self) -> tuple[Mount, ...]:
        return own_table()

    @cached_property
    def _views(self) -> list[NodeView]:
        """Return where the node's `/` is visible, the most certain first; none if its paths are those of this process.

        A machine that is no container may have another system mounted.
        """
        folders = (self.node.programs.root.folder, INIT_ROOT)
        found = [folder for folder in folders if folder != "/" and _is_another(folder)]
        if INIT_ROOT not in found and not is_marked_as_container():
            return []
        return [
            NodeView(
                Root(folder), _read(_INIT_TABLE) if folder == INIT_ROOT else select_mounts_below(self._own, folder)
            )
            for folder in found
        ]

    @cached_property
    def _given(self) -> dict[str, str | None]:
        """Return the folders of the paths that were given to this run, with the node's names of them."""
        return {folder: self.on_node(folder) for folder in map(os.path.dirname, self.node.given)}

    def _keeps_its_name(self, path: str) -> bool:
        """Return whether a path may be the node's own name, as far as this container's mounts alone show.

        A folder is mounted under its name on its file system, which the node may have mounted elsewhere, or only in
        part. If a symlink of the node leads there, the names differ, and nothing distinguishes that from a folder that
        is mounted elsewhere: a receipt with a wrong path would undo nothing.
        """
        mount = mount_of(_canonical(self.node.root, path), self._own)
        if mount is None:
            return True
        root, place = mount.root.rstrip("/"), mount.place.rstrip("/")
        return mount.root.endswith(place) or mount.place.endswith(root)

    def _is_there(self, path: str) -> bool:
        """Return whether a file exists, or would be in a mounted folder, and not in one of this container's own."""
        canonical = _canonical(self.node.root, path)
        mount = mount_of(canonical, self._own)
        mounted = mount is not None and mount.place != "/" and os.path.isdir(os.path.dirname(canonical))
        return mounted or os.path.lexists(canonical)

    def _is_writable(self, path: str) -> bool:
        mount = mount_of(path, self._own)
        return mount is not None and mount.writable

    def _is_same(self, here: str, view: NodeView, there: str) -> bool:
        """Return whether a path of this process and a path of the node are one file, or will be once it is created."""
        mine, theirs = _canonical(self.node.root, here), _canonical(view.root, there)
        while True:
            found, seen = (_status(mine), _status(view.root.outside(theirs)))
            if found is not None or seen is not None:
                return found is not None and seen is not None and os.path.samestat(found, seen)
            if os.path.basename(mine) != os.path.basename(theirs):
                return False
            mine, theirs = os.path.dirname(mine), os.path.dirname(theirs)


def _is_another(folder: str) -> bool:
    """Return whether a folder is the `/` of a whole system other than this process's own."""
    try:
        return not os.path.samestat(os.stat(f"{folder}/"), os.stat("/")) and is_system(folder)
    except OSError:
        return False  # the folder may not be inspected


def _depth(named: tuple[str, str]) -> int:
    """Return a sort key that puts the deepest folder of the node first."""
    return -len(named[1])


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _canonical(root: Root, path: str) -> str:
    """Return a path without symlinks, or as it is if they must not be followed: opening it then reports the error."""
    try:
        return root.canonical(path)
    except NodeError:
        return path
