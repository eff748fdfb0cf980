"""Looks at paths of the installer's own mount namespace, where a path is all there is to go by. Reads, never writes."""

from __future__ import annotations

import os
import stat


def is_folder(path: str) -> bool:
    """Tell whether a folder is at `path`, symlinks followed."""
    return os.path.isdir(path)


def is_there(path: str) -> bool:
    """Tell whether anything is at `path` itself, be it a symlink to nothing."""
    return os.path.lexists(path)


def leads_somewhere(path: str) -> bool:
    """Tell whether anything is at the end of `path`, symlinks followed."""
    return os.path.exists(path)


def real(path: str) -> str:
    """Return the path with every symlink resolved."""
    return os.path.realpath(path)


def may_run(path: str) -> bool:
    """Tell whether this process may execute what is at `path`."""
    return os.access(path, os.X_OK)


def head(path: str, size: int) -> bytes | None:
    """Return the first bytes of a regular file, None where there is none that can be read."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read(size)
    except OSError:
        return None


def device_number(path: str) -> tuple[int, int] | None:
    """Return major and minor of the character device at `path`, None where there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (os.major(status.st_rdev), os.minor(status.st_rdev)) if stat.S_ISCHR(status.st_mode) else None
