"""Translates a path between two mount namespaces, by their mount tables. Pure.

A bind mount shows a folder of a file system under another name. Both namespaces list the same file system by the same
device number, each with the folder of it that it shows (proc_pid_mountinfo(5)): the names of one file in both follow
from the two tables. That a name is right is for the caller to check, by the file's identity.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

import msgspec

_DELETED = "//deleted"
"""Ends the name of a mounted folder that was removed: nobody else sees it."""


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
    return Mount(int(words[0]), int(words[1]), words[2], _plain(words[3]), _plain(words[4]), writable, kind)


def _plain(word: str) -> str:
    """Return a path without its escapes: blanks and such are a backslash and the octal number of their code."""
    head, *rest = word.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def is_beneath(path: str, folder: str) -> bool:
    """Tell whether a canonical path is the folder, or lies in it."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def below(mounts: Sequence[Mount], folder: str) -> tuple[Mount, ...]:
    """Return the table of what is seen with `folder`, where something is mounted, as the root."""
    inside = (each for each in mounts if is_beneath(each.place, folder))
    return tuple(
        msgspec.structs.replace(each, place=_joined("/", each.place[len(folder) :].lstrip("/"))) for each in inside
    )


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that a canonical path lies on, None where the table has no root.

    A mount hides what its parent has below its place, other mounts included.
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


def names(path: str, here: Sequence[Mount], there: Sequence[Mount]) -> Iterator[str]:
    """Yield the names that what is at the canonical `path` of one table has by another one.

    The one with the fewest components comes first, and of several the one on the most specific mount: a node's own
    mounts are nearer to its root than those that are made for containers.
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
    # of mounts that give one name, the one that is seen there counts
    for name, each in sorted(found, key=lambda pair: (pair[0].count("/"), -len(pair[1].root), pair[0])):
        if mount_of(name, there) == each:
            yield name


def _joined(folder: str, rest: str) -> str:
    return posixpath.join(folder, rest) if rest else folder
