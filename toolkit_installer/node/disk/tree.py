"""A folder of the installer's own file system, read as if it were a root: the payload."""

from __future__ import annotations

import os

from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.disk.root import NodeError, Root, attempt


class Tree(Reader):
    """Answers about what is there; what cannot be reached counts as not there."""

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
