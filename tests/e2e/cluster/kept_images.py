"""What engines have on their disks once they have the images of the tests: the next node of their kind begins with it.

To take an image in costs an engine seconds of a processor, and a run of all tests has up to four nodes of each kind.
What is kept was written by an engine that nothing had been tried on, and that was stopped meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.built import commands

if TYPE_CHECKING:
    from tests.e2e.cluster.kinds import Kind
    from tests.e2e.hosts.host import Host

CACHE = Path(__file__).parents[3] / ".cache" / "kept-images"
_KINDS = Path(__file__).with_name("kinds.py")
"""How an engine is configured, and takes images in."""
_TAR = ("tar", "--xattrs", "--xattrs-include=*")
"""With what an overlay's layers say of files below them."""
_SECONDS = 300


class KeptImagesError(Exception):
    """An engine's disk could not be read, or not be written; the message has tar's words."""


class KeptImages:
    """What engines make of some images; `images` tells these from any others."""

    def __init__(self, images: str, cache: Path = CACHE) -> None:
        self._images, self._cache = images, cache

    def have(self, kind: Kind, host: Host) -> bool:
        """Tell whether they keep what a machine's engine would begin with."""
        return self._archive(kind, host).exists()

    def give(self, kind: Kind, host: Host) -> bool:
        """Give a machine, whose engine is not started, what one of its kind and version has; tell whether it is kept.

        Raises KeptImagesError.
        """
        archive = self._archive(kind, host)
        if not archive.exists():
            return False
        _tar("--extract", f"--file={archive}", f"--directory={host.path(kind.storage)}")
        return True

    def keep(self, kind: Kind, host: Host) -> None:
        """Keep what a machine's engine, which is stopped, has; others may do so at the same time.

        What was kept of other images or another version is removed. Raises KeptImagesError.
        """
        archive = self._archive(kind, host)
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / f"{kind.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if archive.exists():
                return
            for old in self._cache.glob(f"{kind.name}-*.tar"):
                old.unlink()
            finished = archive.with_suffix(".new")
            _tar("--create", f"--file={finished}", f"--directory={host.path(kind.storage)}", ".")
            os.rename(finished, archive)

    def _archive(self, kind: Kind, host: Host) -> Path:
        state = hashlib.sha256(f"{self._images}\0{kind.version(host)}\0".encode() + _KINDS.read_bytes())
        return self._cache / f"{kind.name}-{state.hexdigest()[:16]}.tar"


def _tar(*arguments: str) -> None:
    commands.output([*_TAR, *arguments], KeptImagesError, seconds=_SECONDS)
