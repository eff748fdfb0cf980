"""Writing an answer into a new file of the installer's own file system, or to stdout where that is no terminal."""

from __future__ import annotations

import os
import sys
from typing import Final

from toolkit_installer.cli.output import OutputError
from toolkit_installer.errors import UsageError

STDOUT: Final = "-"
_MODE: Final = 0o600
_HINT: Final = "nothing was written; name a file that is not there yet, in a folder that is"


def require(path: str) -> None:
    """Raise UsageError for a path that is no new file's, or a stdout that is a terminal: before the work is done."""
    if path == STDOUT:
        if sys.stdout.isatty():
            raise UsageError("the answer is no text: it is not written to a terminal", hint="name a file, or > a file")
        return
    if os.path.lexists(path):
        raise UsageError(f"{path} is there already", hint=_HINT)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}", hint=_HINT)


def write(path: str, content: bytes) -> None:
    """Write the file, for nobody else to read; a symlink is not followed, and what is there is not replaced.

    Raises OutputError, and BrokenPipeError if nobody reads stdout any more.
    """
    if path == STDOUT:
        _all(sys.stdout.fileno(), content, "the standard output")
        return
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        _all(fd, content, path)
    except OutputError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _all(fd: int, content: bytes, name: str) -> None:
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _refused(name, error) from error


def _refused(name: str, error: OSError) -> OutputError:
    return OutputError(f"the answer cannot be written to {name}: {error.strerror}", hint="send it elsewhere")
