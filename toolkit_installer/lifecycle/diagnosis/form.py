"""The table of illnesses, a finding, and the values that findings are made of. Pure."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from typing import Final

import msgspec

from toolkit_installer.engines.listed import Fault
from toolkit_installer.settings import EngineName

SCHEMA: Final = 1
"""Raised when a field of `diagnose --json` goes or means something else; new fields do not raise it."""


class Illness(enum.StrEnum):
    """What may be wrong with a node. docs/diagnose.md has a row for each."""

    BROKEN_FILE = "broken-file"
    BROKEN_TEMPLATE = "broken-template"
    REPLACED_RUNTIMES = "replaced-runtimes"
    MIXED_VERSIONS = "mixed-versions"
    UNREAD_FILE = "unread-file"
    LEFTOVER = "leftover"
    NO_RUNTIME = "no-runtime"
    OTHER_LIBC = "other-libc"
    OTHER_SOCKET = "other-socket"
    CGROUP_DRIVER = "cgroup-driver"
    NO_DEV_CHAR = "no-dev-char"
    NO_LIBRARIES = "no-libraries"
    UNREADABLE_CDI = "unreadable-cdi"
    CDI_WITHOUT_FILES = "cdi-without-files"


TITLES: Final[Mapping[Illness, str]] = types.MappingProxyType(
    {
        Illness.BROKEN_FILE: "an error in a configuration file",
        Illness.BROKEN_TEMPLATE: "the distribution cannot use its template",
        Illness.REPLACED_RUNTIMES: "an imported file replaces what another file has",
        Illness.MIXED_VERSIONS: "configuration files of different versions",
        Illness.UNREAD_FILE: "the engine does not read this file",
        Illness.LEFTOVER: "left by another installer",
        Illness.NO_RUNTIME: "a low-level runtime is missing",
        Illness.OTHER_LIBC: "a program that this node cannot execute",
        Illness.OTHER_SOCKET: "the kubelet uses another socket",
        Illness.CGROUP_DRIVER: "cgroup drivers differ",
        Illness.NO_DEV_CHAR: "GPU devices without a link in /dev/char",
        Illness.NO_LIBRARIES: "a driver root without libraries",
        Illness.UNREADABLE_CDI: "a CDI specification that the engine does not read",
        Illness.CDI_WITHOUT_FILES: "a CDI specification that names missing files",
    }
)


class Finding(msgspec.Struct, frozen=True):
    """An illness of this node."""

    illness: Illness
    path: str
    line: int | None
    what: str
    causes: str
    remedy: str


class Diagnosis(msgspec.Struct, frozen=True):
    """The answer of `diagnose --json`."""

    schema: int
    version: str
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...]
    """What could not be inspected, and why."""


# --- what the findings are made of ---


class ReadFile(msgspec.Struct, frozen=True):
    """A file that the engine reads. `by_relative_pattern`: containerd 1.6 does not find it."""

    path: str
    content: bytes
    by_relative_pattern: bool = False


class EngineSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An engine of the node, as far as it could be read."""

    name: EngineName
    distribution: str
    generated: bool = False
    """The distribution makes the engine's file."""
    socket: str
    version: str = ""
    """Empty: unknown."""
    files: tuple[ReadFile, ...] = ()
    """All that it reads, in order; the first is its own configuration file."""
    besides: tuple[ReadFile, ...] = ()
    """Files that look like its configuration, and that it does not read."""
    handlers: Mapping[str, str | None] = {}
    """What the running engine serves, with the executables; none if it does not run."""
    default: str | None = None
    """The running engine's default runtime."""
    cgroup_driver: str | None = None
    """What the running engine reports; None: unknown."""
    cdi_folders: tuple[str, ...] | None = None
    """Where the running engine looks for CDI specifications; empty: CDI is off. None: unknown."""
    faults: tuple[Fault, ...] = ()
    """What reading or checking its files raised."""
    template_faults: tuple[Fault, ...] = ()
    """Why its distribution cannot use a template."""


class ProgramSeen(msgspec.Struct, frozen=True):
    """A program that files name. `loader`: what executes it, None where it needs nothing."""

    exists: bool
    loader: str | None = None
    loader_exists: bool = True


class KubeletSeen(msgspec.Struct, frozen=True):
    """What a kubelet was told, and which file or flag says so; None for what nothing says."""

    socket: str | None
    socket_by: str
    listens: bool | None = None
    """None where it was not tried."""
    cgroup_driver: str | None = None
    cgroup_path: str = ""
    cgroup_line: int | None = None


class HookSeen(msgspec.Struct, frozen=True):
    """An OCI hook of NVIDIA's, and the program that it runs."""

    path: str
    line: int | None
    program: str
    exists: bool


class SpecificationSeen(msgspec.Struct, frozen=True):
    """A CDI specification; `missing` are the lines and paths of files that it names and that are gone."""

    path: str
    content: bytes
    missing: tuple[tuple[int, str], ...] = ()
    managed: bool = False
    """This program wrote it."""


class DriverSeen(msgspec.Struct, frozen=True):
    """The driver root that containers get the driver from, and the libraries that no folder below it has."""

    root: str
    said_by: str
    missing: tuple[str, ...]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All that was read of a node."""

    engines: tuple[EngineSeen, ...] = ()
    kubelets: tuple[KubeletSeen, ...] = ()
    programs: Mapping[str, ProgramSeen] = {}
    """The executables of runtimes, and those of the toolkit, by their paths or names."""
    toolkit_folder: str = ""
    installed: bool = False
    """A receipt of this program says that the toolkit is installed, or half installed."""
    toolkit_files: int = 0
    toolkit_engines: tuple[tuple[str, str], ...] = ()
    """The engines that the receipt names, with their sockets."""
    other_installer: bool = False
    """Another installer runs: what it wrote is no leftover."""
    hooks: tuple[HookSeen, ...] = ()
    no_low_level: str | None = None
    """Why NVIDIA's runtime would find no low-level runtime, None where it finds one."""
    crictl: tuple[str, int, str] | None = None
    """crictl's file, the line and the socket there."""
    unlinked: tuple[tuple[str, int, int], ...] = ()
    """Device nodes of the GPU without a link in /dev/char: path, major and minor."""
    driver: DriverSeen | None = None
    specifications: tuple[SpecificationSeen, ...] = ()
    os_release: str = ""
    signs: frozenset[str] = frozenset()
    """Paths that are there and tell who declares the node's files (hosts.py)."""
