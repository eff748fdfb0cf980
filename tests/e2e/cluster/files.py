"""What tells the files of a node from those of the machine below it: kind, mode, owner and content of each."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeAlias

State: TypeAlias = tuple[object, ...]
"""All that a file is; empty where there is none."""
_SETTLED_SECONDS = 1.0
"""So long after a change the file system's clock tells a later one from it."""


@dataclasses.dataclass(frozen=True)
class _Stamp:
    """What the kernel changes with each change of a file's content."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


class Files:
    """Reads files of nodes again and again, and the content of one that nobody has touched only once."""

    def __init__(self) -> None:
        self._known: dict[_Stamp, str] = {}

    def differences(self, upper: Path, lower: Path, left_out: Collection[str]) -> dict[str, State]:
        """Return the files that `upper`, laid over `lower`, makes other than they are in that, without some folders."""
        found = {}
        for name in _below(str(upper), "", frozenset(left_out)):
            here = self._state(os.path.join(upper, name))
            if here != self._state(os.path.join(lower, name)):
                found[name] = here
        return found

    def _state(self, path: str) -> State:
        """Return what a file is; nothing of one that is not there, or that is removed in the upper layer."""
        try:
            about = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        if stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
            return ()
        content: object = about.st_rdev
        if stat.S_ISREG(about.st_mode):
            content = self._digest(path, about)
        elif stat.S_ISLNK(about.st_mode):
            content = os.readlink(path)
        return oct(about.st_mode), about.st_uid, about.st_gid, content

    def _digest(self, path: str, about: os.stat_result) -> str:
        stamp = _Stamp(about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        if (known := self._known.get(stamp)) is not None:
            return known
        settled = time.time() - about.st_ctime > _SETTLED_SECONDS
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if settled:
            self._known[stamp] = digest
        return digest


def _below(top: str, folder: str, left_out: frozenset[str]) -> Iterator[str]:
    """Yield the names of all that is below a folder, relative to the top."""
    with os.scandir(os.path.join(top, folder)) as entries:
        for entry in entries:
            name = os.path.join(folder, entry.name)
            if name in left_out:
                continue
            yield name
            if entry.is_dir(follow_symlinks=False):
                yield from _below(top, name, left_out)
