"""A tree outside of the node that nothing may touch, and the traps on the node that lead to it."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Canary:
    """A folder with a file and folders like a node's own."""

    folder: Path

    @classmethod
    def build(cls, folder: Path) -> Canary:
        """Make the tree."""
        for name in ("docker", "nvidia/toolkit", "nvidia/.toolkit-installer/originals", "empty"):
            (folder / name).mkdir(parents=True)
        for name in ("shadow", "docker/daemon.json", "nvidia/toolkit/nvidia-ctk", "toolkit.pid"):
            (folder / name).write_text("{}\n")
        return cls(folder)

    @property
    def shadow(self) -> Path:
        """A file that holds secrets."""
        return self.folder / "shadow"

    def stamps(self) -> dict[str, tuple[int, ...]]:
        """Return what any write to any part of it would change."""
        return {str(place): _stamp(place) for place in (self.folder, *sorted(self.folder.rglob("*")))}


def _stamp(place: Path) -> tuple[int, ...]:
    status = os.lstat(place)
    return status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, status.st_nlink
