"""What the files of an engine list, and what is wrong with them, with file and line. Pure."""

from __future__ import annotations

import msgspec

from toolkit_installer.errors import ConfigurationError


class ListedRuntime(msgspec.Struct, frozen=True):
    """A runtime in an engine's files: what it runs (None: the engine decides), and the file and line that has it."""

    name: str
    executable: str | None
    path: str
    line: int | None
    systemd: bool | None = None
    """Whether it leaves cgroups to systemd; None where that is no setting of a single runtime."""
    default: bool = False


class CgroupSetting(msgspec.Struct, frozen=True):
    """A cgroup driver, `systemd` or `cgroupfs`, and the file and line, or the flag, that names it."""

    name: str
    path: str
    line: int | None = None


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with an engine's file, in which file and on which line, and what to do."""

    path: str
    line: int | None
    reason: str
    hint: str
    stops: bool = False
    """The engine, or its CRI, does not start with it, whichever release of those in question it is."""
    mended: bool = False
    """Another default runtime mends it."""

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> ConfigurationError:
        """Return it as the error with which a run is refused."""
        return ConfigurationError(self.reason, path=self.path, line=self.line, hint=self.hint)

    @classmethod
    def of(cls, error: ConfigurationError, *, stops: bool) -> Fault:
        """Return what an error that names its file says."""
        return cls(error.path or "", error.line, error.reason, error.hint or "", stops=stops)
