"""Reads of many paths in one go: what a folder holds, and where a symlink leads, is asked of the kernel once."""

from __future__ import annotations

import posixpath

from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.disk.root import NodeError, Root


class _KnownLinks(Root):
    """A root that reads each symlink once."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._links: dict[str, str | None] = {}

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
