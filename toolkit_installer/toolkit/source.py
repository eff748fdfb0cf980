"""How the payload's files are seen: the one seam between this package and a disk."""

from __future__ import annotations

from typing import Protocol


class SourceTree(Protocol):
    """The files below a payload's root.

    Paths are absolute, `/` being the payload's root; symlinks are followed as chroot would follow them, and never out
    of the root. A question about what is not there is answered (False, or an empty list), not refused.
    """

    def is_file(self, path: str) -> bool:
        """Tell whether `path` leads to a regular file. A dangling or looping symlink does not."""
        ...

    def is_executable(self, path: str) -> bool:
        """Tell whether `path` leads to a regular file with an execute bit."""
        ...

    def canonical(self, path: str) -> str:
        """Return the path of the file that `path` leads to, free of symlinks. Asked only of what is a file."""
        ...

    def read(self, path: str, limit: int = -1) -> bytes:
        """Return the first `limit` bytes of a file, all of them if `limit` is negative. Asked only of what is a file.

        Raises InstallerError if the file cannot be read.
        """
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, dangling symlinks included; nothing if there is no such folder."""
        ...
