"""Exceptions for every expected failure, each with an exit code and a hint."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Sequence


class ExitCode(enum.IntEnum):
    """The exit codes that callers may rely on. The README's table is tested against this."""

    DONE = 0
    BUG = 1
    USAGE = 2
    BAD_CONFIGURATION = 3
    ALREADY_RUNNING = 4
    ENGINE_REJECTED = 5
    ENGINE_DOWN = 6
    PAYLOAD_INCOMPLETE = 7
    DRIVER_NOT_READY = 8
    NOT_DELETED = 9

    @property
    def event(self) -> str:
        """The `event` of the last log line of a run that ends with this code."""
        return self.name.lower().replace("_", "-")


SIGNALLED = 128
"""A shell adds this to the number of the signal that ended a program (POSIX, "Exit Status for Commands")."""


class InstallerError(Exception):
    """Base of all expected failures: `reason` says what, `path` and `line` (1-based) where, `hint` what to do next."""

    exit_code = ExitCode.BUG
    reloaded = False
    """Whether an engine had been told to load a change before the failure; it was rolled back as far as possible."""

    def __init__(
        self, reason: str, *, path: str | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.line = line
        self.hint = hint

    def __str__(self) -> str:
        place = ""
        if self.path is not None:
            place = f"{self.path}:{self.line}: " if self.line is not None else f"{self.path}: "
        remedy = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.reason}{remedy}"


class UsageError(InstallerError):
    """Flags or variables that are invalid or contradict each other."""

    exit_code = ExitCode.USAGE


class ConfigurationError(InstallerError):
    """A broken, unsupported or unsafe configuration on the node; nothing was changed."""

    exit_code = ExitCode.BAD_CONFIGURATION


class AlreadyRunningError(InstallerError):
    """Another instance holds the lock."""

    exit_code = ExitCode.ALREADY_RUNNING


class EngineRejectedError(InstallerError):
    """The engine rejected the change; the old configuration is restored and the engine is healthy."""

    exit_code = ExitCode.ENGINE_REJECTED


class EngineDownError(InstallerError):
    """The engine does not respond, even with its old configuration."""

    exit_code = ExitCode.ENGINE_DOWN


class PayloadError(InstallerError):
    """The image's toolkit lacks required files."""

    exit_code = ExitCode.PAYLOAD_INCOMPLETE


class DriverNotReadyError(InstallerError):
    """The driver did not become usable in time."""

    exit_code = ExitCode.DRIVER_NOT_READY


class NotDeletedError(InstallerError):
    """The DaemonSet could not be deleted, or was not gone in time."""

    exit_code = ExitCode.NOT_DELETED


_GRAVEST = {ExitCode.ENGINE_DOWN: 0, ExitCode.ENGINE_REJECTED: 1}
"""Ranks of the exit codes that are worst for a node, worst first; all others rank last."""


def gravest(failures: Sequence[InstallerError]) -> InstallerError:
    """Return the failure, of several in sequence, whose exit code the program ends with. Pure."""
    return min(failures, key=lambda failure: _GRAVEST.get(failure.exit_code, len(_GRAVEST)))


@contextlib.contextmanager
def located(path: str) -> Iterator[None]:
    """Add the file's path to errors of pure code, which sees only the content."""
    try:
        yield
    except InstallerError as error:
        if error.path is None:
            error.path = path
        raise
