"""Captures as commands are given them: files, and folders of files; read, and worked on in child processes."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from toolkit_installer.cli import workers
from toolkit_installer.cli.options import build
from toolkit_installer.errors import ConfigurationError, InstallerError, UsageError
from toolkit_installer.fleet import archive, record
from toolkit_installer.fleet.archive import Archive
from toolkit_installer.fleet.forecast import Refusal
from toolkit_installer.fleet.record import DamagedError, NotCapturedError
from toolkit_installer.fleet.values import NotReadableError
from toolkit_installer.node.disk.reading import read_bounded
from toolkit_installer.settings import Program, Settings

_LONGEST_SHOWN = 200
_DAMAGED = "leave it out, or capture the node again"
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def files(place: str) -> Iterator[str]:
    """Yield the files that an argument means. Raises UsageError."""
    try:
        mode = os.stat(place).st_mode
        names = sorted(os.listdir(place)) if stat.S_ISDIR(mode) else None
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror}", hint="name files of `capture`, or folders of them") from error
    if names is None:
        yield place
        return
    found = [os.path.join(place, name) for name in names if name.endswith(archive.SUFFIX)]
    if not found:
        raise UsageError(f"there is no file *{archive.SUFFIX} in {place}", hint="name the files, or their folder")
    yield from found


def read(path: str) -> Archive:
    """Return the capture in a file. Raises ConfigurationError."""
    try:
        content = read_bounded(os.path.realpath(path), archive.LONGEST)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", path=path) from error
    return archive.read(content, path)


def each(
    function: Callable[[_Given], _Made],
    given: Sequence[_Given],
    lost: Callable[[_Given, str | None, Refusal], _Made],
) -> Iterator[_Made]:
    """Yield what a function makes of each, in their order, on all processors. Raises ConfigurationError.

    `lost` makes the result where the work was more than one capture may cost: of what was given, the capture's path if
    that is known, and the refusal.
    """
    record.prepare()

    def refused(one: _Given, path: str | None, reason: str) -> _Made:
        return lost(one, path, refusal(ConfigurationError(reason, path=path, hint=_DAMAGED)))

    return workers.each(function, given, refused)


def refusal(error: InstallerError) -> Refusal:
    """Return why a capture, or its node, is refused."""
    where = f"{error.path}:{error.line}" if error.line is not None else error.path
    reason = f"{where}: {error.reason}" if where is not None else error.reason
    return Refusal(reason, error.hint, int(error.exit_code), error.exit_code.event)


def settings(given: Mapping[str, Sequence[str]], environment: Mapping[str, str], path: str) -> Settings:
    """Return the settings that a capture was given. Raises UsageError, which names the capture."""
    try:
        return build.build(given, environment, Program.TOOLKIT_INSTALLER)
    except InstallerError as error:
        error.path = error.path or path
        raise


@contextlib.contextmanager
def limited(path: str) -> Iterator[None]:
    """Count the work within for the capture at `path`, which has limits of its own where this is a child (workers).

    Raises ConfigurationError where the capture is damaged, also where the work fails in a way that no capture of a node
    leads to: one that somebody made is to cost the others nothing.
    """
    workers.begin(path)
    try:
        yield
    except (InstallerError, NotCapturedError, MemoryError):
        raise
    except (DamagedError, NotReadableError) as error:
        raise ConfigurationError(str(error), path=path, hint=_DAMAGED) from error
    except OSError as error:  # of the node: this machine is not asked
        why = f"holds an error of the system that ends a run: {str(error)[:_LONGEST_SHOWN]}"
        raise ConfigurationError(why, path=path, hint=_DAMAGED) from error
    except Exception as error:
        raise ConfigurationError(unexpected(error), path=path, hint=_DAMAGED) from error


def unexpected(error: Exception) -> str:
    """Return why a capture is refused that leads to an error which nothing expects."""
    return f"holds what no node answers: {type(error).__name__}: {str(error)[:_LONGEST_SHOWN]}"
