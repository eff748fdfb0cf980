"""What a test compares: how a file stands, and whether anything below a folder was touched."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class FileState:
    """A file's bytes and whose it is."""

    content: bytes
    mode: int
    owner: int
    group: int


def state_of(path: Path) -> FileState:
    """Return how a file stands. Raises FileNotFoundError."""
    stat = path.stat()
    return FileState(path.read_bytes(), stat.st_mode, stat.st_uid, stat.st_gid)


def traces_of_writing(*roots: Path) -> dict[str, tuple[int, ...]]:
    """Return, for each file and folder, what a write or a replacement would change, its own folder's times included."""
    found: dict[str, tuple[int, ...]] = {}
    for path in (each for root in roots for each in (root, *root.rglob("*"))):
        stat = path.lstat()
        found[str(path)] = (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_mode, stat.st_uid, stat.st_size)
    return found


def lost_lines(before: str, after: str) -> list[str]:
    """Return the lines of `before` that `after` lacks, in their order; one that was only added to is not lost."""
    lines = iter(after.splitlines(keepends=True))
    return [line for line in before.splitlines() if not any(line in candidate for candidate in lines)]
