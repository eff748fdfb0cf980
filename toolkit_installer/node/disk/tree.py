"""A folder of the installer's own file system, read as if it were a root: the payload."""

from __future__ import annotations

import os

from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.disk.files import Files
from toolkit_installer.node.disk.root import NodeError, Root, attempt


class Tree:
    """Answers about what is there; what cannot be reached counts as not there."""

    def __init__(self, folder: str) -> None:
        self._files = Files(Root(folder), SystemCalls())

    def is_file(self, path: str) -> bool:
        """Tell whether `path` leads to a regular file."""
        try:
            return self._files.is_file(path)
        except NodeError:
            return False  # a symlink that loops leads nowhere

    def is_executable(self, path: str) -> bool:
        """Tell whether `path` leads to a regular file with an execute bit."""
        return self.is_file(path) and self._files.is_executable(path)

    def resolve(self, path: str) -> str:
        """Return the path free of symlinks."""
        return self._files.canonical(path)

    def read(self, path: str, limit: int = -1) -> bytes:
        """Return the first `limit` bytes of a file, all of them if negative. Raises NodeError."""
        place = self.outside(path)
        with attempt("read it", place), open(place, "rb") as stream:
            return stream.read(limit)

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, none if it is absent."""
        try:
            return self._files.list(path)
        except NodeError:
            return []  # as above

    def outside(self, path: str) -> str:
        """Return where a path of the tree is for the installer."""
        return self._files.root.outside(self._files.canonical(path))

    def digest(self, path: str) -> str | None:
        """Return the SHA-256 of a file in hex. Raises NodeError."""
        return self._files.digest(path)


def exists(path: str) -> bool:
    """Tell whether a folder is there, in the installer's own file system."""
    return os.path.isdir(path)
