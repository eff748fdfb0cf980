"""Readers for one purpose each: of the payload, and of many paths in one go."""

from __future__ import annotations

import os
import posixpath

from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.disk.root import NodeError, Root, attempt


class Tree(Reader):
    """A folder of the installer's own file system, as if it were a root; what cannot be reached is not there."""

    def __init__(self, folder: str) -> None:
        super().__init__(Root(folder))

    def status(self, path: str) -> os.stat_result | None:
        """Return the stat of what `path` leads to, or None."""
        try:
            return super().status(path)
        except NodeError:
            return None  # a symlink that loops leads nowhere

    def read(self, path: str, limit: int = -1) -> bytes:
        """Return the first `limit` bytes of a file, all of them if negative. Raises NodeError."""
        place = self.outside(path)
        with attempt("read it", place), open(place, "rb") as stream:
            return stream.read(limit)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, none if it is absent."""
        try:
            return super().list(path)
        except NodeError:
            return []  # as above

    def outside(self, path: str) -> str:
        """Return where a path of the tree is for the installer."""
        return self.root.outside(self.canonical(path))


class _KnownLinks(Root):
    """A root that reads each symlink once."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._links: dict[str, str | None] = {}

    def _leads_straight(self, path: str) -> bool:  # noqa: ARG002  # what is known of its components says it
        return False

    def _link(self, path: str) -> str | None:
        if path not in self._links:
            self._links[path] = super()._link(path)
        return self._links[path]


class OneLook(Reader):
    """A reader for a search of hundreds of patterns, most of whose folders are the same, or absent.

    What it has read of folders and links is as old as the search: it is for reading, and is thrown away after it.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__(_KnownLinks(reader.root.folder))
        self._names: dict[str, list[str]] = {}

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder; none if it is absent. Raises NodeError."""
        if path not in self._names:
            self._names[path] = super().list(path)
        return self._names[path]

    def lacks(self, path: str) -> bool:
        """Tell whether surely nothing is at `path`: its folder could be read, and has no such name."""
        folder, name = posixpath.split(path)
        if name in ("", ".", ".."):
            return False
        try:
            return name not in self.list(folder)
        except NodeError:
            return False
