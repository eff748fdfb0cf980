"""The payload: files found by the names and folders of the toolkit's packages, its release, low-level runtimes.

A low-level runtime runs the container for the NVIDIA runtime, and replaces the NVIDIA runtime if that cannot run.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from toolkit_installer.errors import PayloadError, UsageError
from toolkit_installer.settings import ToolkitSettings

RUNTIMES = ("nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy")
HOOK = "nvidia-container-runtime-hook"
HOOK_2021 = "nvidia-container-toolkit"
"""The hook's own name before toolkit 1.10; a symlink to HOOK since."""
CLI = "nvidia-container-cli"
CTK = "nvidia-ctk"
CDI_HOOK = "nvidia-cdi-hook"
LIBRARIES = ("libnvidia-container.so.1", "libnvidia-container-go.so.1")
CONFIG = "/etc/nvidia-container-runtime/config.toml"

PROGRAM_FOLDERS = ("/usr/bin",)
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")

_REQUIRED = frozenset({RUNTIMES[0], CLI, LIBRARIES[0]})
_HINT = "give --toolkit-source-root the folder that has usr/bin/nvidia-container-runtime below it"

_ELF_MAGIC = b"\x7fELF"
_ELF_HEAD = 20
"""Bytes to read for a file's architecture: e_machine is at offset 18 (ELF specification, "ELF Header")."""
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}


class SourceTree(Protocol):
    """The files below a payload's root.

    Paths are absolute, `/` being the payload's root; symlinks are followed as under chroot, never out of the root.
    Checks of absent files return False, listings of absent folders an empty list.
    """

    def is_file(self, path: str) -> bool:
        """Return whether `path` leads to a regular file. A dangling or looping symlink does not."""

    def is_executable(self, path: str) -> bool:
        """Return whether `path` leads to a regular file with an execute bit."""

    def canonical(self, path: str) -> str:
        """Return the path of the file that `path` leads to, free of symlinks; `path` must lead to a file."""

    def read(self, path: str, limit: int = -1) -> bytes:
        """Return the first `limit` bytes of a file, all if `limit` is negative; `path` must lead to a file.

        Raises InstallerError if the file cannot be read.
        """

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, dangling symlinks included; an empty list if there is no such folder."""


class Library(msgspec.Struct, frozen=True):
    """A shared library: the `soname` that programs load, the `name` of the (versioned) file, and its path `source`."""

    soname: str
    name: str
    source: str


class Payload(msgspec.Struct, frozen=True):
    """The files of a payload by role. Sources are paths below the payload's root, free of symlinks."""

    root: str
    """The payload's folder, as the installer sees it; for messages."""
    programs: tuple[tuple[str, str], ...]
    """(installed name, source) of each program; the hook only under the name `hook`."""
    libraries: tuple[Library, ...]
    hook: str
    """The name under which the hook is installed: HOOK, or HOOK_2021. The other one becomes a symlink to it."""
    config: bytes | None = None
    """The content of the payload's config.toml."""

    @property
    def executables(self) -> frozenset[str]:
        """The names that can be run once the payload is installed, including both names of the hook."""
        return frozenset({name for name, _ in self.programs} | {HOOK, HOOK_2021})

    @property
    def config_path(self) -> str:
        """The path of the payload's config.toml, as the installer sees it; for messages."""
        return _shown(self.root, CONFIG)


def source_root(given: str | None, package_type: str, node_has_rpm: bool, exists: Callable[[str], bool]) -> str:  # noqa: FBT001 - an observation, not a switch
    """Return the payload's folder, as the installer sees it.

    `given` (--toolkit-source-root) is used as it is, if there is such a folder. Otherwise `package_type` selects one of
    the image's two: "auto" prefers rpm if the node has /usr/bin/rpm, deb if not, and takes the other if the image lacks
    the preferred one.

    Raises PayloadError if there is no such folder.
    """
    if given:
        if not exists(given):
            raise PayloadError("there is no such folder to take the payload from", path=given, hint=_HINT)
        return given
    wanted = ("rpm" if node_has_rpm else "deb", "deb", "rpm") if package_type == "auto" else (package_type,)
    candidates = tuple(dict.fromkeys(f"/artifacts/{kind}" for kind in wanted))
    for candidate in candidates:
        if exists(candidate):
            return candidate
    raise PayloadError(f"there is no payload: {' and '.join(candidates)} not found", hint=_HINT)


def find_payload(tree: SourceTree, root: str, machine: str | None = None) -> Payload:
    """Return the files of the payload below `root`.

    `machine` is the node's architecture as uname prints it ("x86_64", "aarch64"): ELF files for another architecture
    count as damaged. None: not checked.

    Raises PayloadError that lists every required file that is missing and every file that is damaged.
    """
    search = _PayloadSearch(tree, root, machine)
    programs = [(name, search.located(name, PROGRAM_FOLDERS)) for name in (CLI, CTK, CDI_HOOK, *RUNTIMES)]
    hook, hook_source = search.hook()
    libraries = tuple(found for soname in LIBRARIES if (found := search.library(soname)) is not None)
    config = search.config()
    if search.problems:
        reason = "the payload is incomplete: " + "; ".join(search.problems)
        raise PayloadError(reason, path=root, hint=_HINT)
    present = tuple((name, source) for name, source in [(hook, hook_source), *programs] if source is not None)
    return Payload(root, present, libraries, hook, config)


class _PayloadSearch(msgspec.Struct, frozen=True):
    """A search of a payload that collects all problems, so that one message can list them."""

    tree: SourceTree
    root: str
    machine: str | None
    problems: list[str] = msgspec.field(default_factory=list)
    names: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """The names in each folder that was listed."""

    def hook(self) -> tuple[str, str | None]:
        """Return the hook's own name and source; one of its two names may be missing, or a symlink to the other."""
        current, old = (self._present(name, PROGRAM_FOLDERS) for name in (HOOK, HOOK_2021))
        if not current and not old:
            self._missing(f"{HOOK} (or {HOOK_2021})", PROGRAM_FOLDERS)
            return HOOK, None
        name = HOOK if current else HOOK_2021
        source = self.located(name, PROGRAM_FOLDERS)
        if source is not None and posixpath.basename(source) == HOOK_2021:
            name = HOOK_2021
        return name, source

    def library(self, soname: str) -> Library | None:
        source = self.located(soname, LIBRARY_FOLDERS)
        if source is None:
            return None
        name = posixpath.basename(source)
        return Library(soname, name if name.startswith(f"{soname}.") else soname, source)

    def config(self) -> bytes | None:
        if not self._present(posixpath.basename(CONFIG), (posixpath.dirname(CONFIG),)):
            return None
        if not self.tree.is_file(CONFIG):
            self.problems.append(f"{CONFIG} is not a regular file")
            return None
        return self.tree.read(CONFIG)

    def located(self, name: str, folders: Iterable[str]) -> str | None:
        """Return the first sound file's source; None if absent (a problem if required) or damaged (a problem)."""
        faults = []
        for path in self._present(name, folders):
            fault = self._fault(path, program=folders == PROGRAM_FOLDERS)
            if fault is None:
                return self.tree.canonical(path)
            faults.append(f"{path} {fault}")
        if faults:
            self.problems.append(faults[0])
        elif name in _REQUIRED:
            self._missing(name, folders)
        return None

    def _present(self, name: str, folders: Iterable[str]) -> list[str]:
        return [f"{folder}/{name}" for folder in folders if name in self._names_in(folder)]

    def _names_in(self, folder: str) -> list[str]:
        if folder not in self.names:
            self.names[folder] = self.tree.list(folder)
        return self.names[folder]

    def _missing(self, name: str, folders: Iterable[str]) -> None:
        self.problems.append(f"{name} is missing (looked in {', '.join(_shown(self.root, f) for f in folders)})")

    def _fault(self, path: str, *, program: bool) -> str | None:
        """Return the fault of an existing file, or None."""
        if not self.tree.is_file(path):
            return "is not a regular file, or a symlink to nothing"
        if program and not self.tree.is_executable(path):
            return "is not executable"
        head = self.tree.read(path, _ELF_HEAD)
        if not head:
            return "is empty"
        if self.machine is None or not head.startswith(_ELF_MAGIC):
            return None
        if len(head) < _ELF_HEAD:
            return "is cut off"
        number = int.from_bytes(head[18:20], "little")
        built_for = _ELF_MACHINES.get(number, f"ELF machine {number}")
        return None if built_for == self.machine else f"is built for {built_for}, not for {self.machine}"


def _shown(root: str, path: str) -> str:
    return root.rstrip("/") + path


def library_release(names: Iterable[str]) -> str | None:
    """Return the toolkit's release from its library's file name, None if no name is that of the library."""
    found = (re.fullmatch(_LIBRARY, name) for name in names)
    return next((match[1] for match in found if match), None)


_LIBRARY = r"libnvidia-container\.so\.(\d++\.\d++\.\d++.*)"


BUILT_IN_RUNTIME: Final = "runc"
"""The runtime of docker and containerd if their files name none."""


LOW_LEVEL_RUNTIMES: Final = (BUILT_IN_RUNTIME, "crun")


def choose_low_level(settings: ToolkitSettings, engines: Sequence[str], toolkit_folder: str) -> tuple[str, ...]:
    """Return the low-level runtimes, best first: the user's list, or the engine's runtimes and LOW_LEVEL_RUNTIMES.

    An engine's runtime that is the NVIDIA runtime itself, left by an older installation, is skipped: it would run
    itself for ever. Raises UsageError if the user's list has the NVIDIA runtime, or an entry that is no path or name.
    """
    for runtime in settings.low_level_runtimes:
        if not is_usable_runtime(runtime):
            raise UsageError(
                f"--nvidia-container-runtime.runtimes {runtime!r} is no runtime",
                hint="give an absolute path, or a name that is found in PATH",
            )
        if is_nvidia_runtime(runtime, toolkit_folder):
            raise UsageError(
                f"--nvidia-container-runtime.runtimes {runtime!r} is the NVIDIA runtime, which would run itself",
                hint="name a low-level runtime, such as runc or crun",
            )
    found = (
        runtime for runtime in engines if is_usable_runtime(runtime) and not is_nvidia_runtime(runtime, toolkit_folder)
    )
    return tuple(dict.fromkeys(settings.low_level_runtimes or (*found, *LOW_LEVEL_RUNTIMES)))


def is_usable_runtime(runtime: str) -> bool:
    """Return whether `runtime` is an absolute path, or a name that can be searched for in PATH."""
    return bool(runtime) and runtime.isprintable() and ("/" not in runtime or posixpath.isabs(runtime))


def is_nvidia_runtime(runtime: str, toolkit_folder: str) -> bool:
    """Return whether a runtime is the toolkit's own, in this folder or another, with or without its wrapper."""
    if posixpath.basename(runtime).removesuffix(".real") in RUNTIMES:
        return True
    return posixpath.dirname(posixpath.normpath(runtime)) == posixpath.normpath(toolkit_folder)


Version = tuple[int, int, int]

FIXES: Final[tuple[tuple[Version, str], ...]] = (
    ((1, 16, 2), "CVE-2024-0132"),
    ((1, 17, 1), "CVE-2024-0136 and CVE-2024-0137"),
    ((1, 17, 4), "CVE-2025-23359"),
    ((1, 17, 8), "CVE-2025-23266"),
)
"""The releases that fixed container escapes (NVIDIA's security bulletins)."""

_VERSION_LINE = r"(?m)^(?P<program>.*?)version:?\s+v?(?P<numbers>\d+\.\d+\.\d+)(?P<rest>\S*)"
_OTHERS = r"(?i)\b(runc|crun|lib-)"


def payload_version(version_output: str) -> Version | None:
    """Return the toolkit's release from the output of one of its programs, None if the output has none.

    A pre-release counts as the previous release. The runtime's output also has the low-level runtime's version, and in
    2021 had no other: that version is ignored.
    """
    line = _own_line(version_output)
    if line is None:
        return None
    major, minor, patch = map(int, line["numbers"].split("."))
    return (major, minor, patch - 1) if re.match(r"[-~]?rc", line["rest"]) else (major, minor, patch)


def parse_release(version_output: str) -> str | None:
    """Return the toolkit's release as one of its programs printed it, such as "1.19.0-rc.1"; None if there is none."""
    line = _own_line(version_output)
    return None if line is None else line["numbers"] + line["rest"]


def _own_line(version_output: str) -> re.Match[str] | None:
    lines = re.finditer(_VERSION_LINE, version_output)
    return next((line for line in lines if not re.search(_OTHERS, line["program"])), None)


def find_release_warnings(version_output: str | None, library_release: str | None = None) -> list[str]:
    """Return warnings, one sentence each, about container escapes that the toolkit's release allows.

    `version_output` is the output of the payload's `nvidia-container-runtime --version` or `nvidia-container-cli
    --version`, None if neither was run. `library_release` is the release in the library's name, used if the program
    prints none.
    """
    if version_output is None:
        return []
    version = payload_version(version_output)
    if version is None and library_release is not None:
        version = payload_version(f"version {library_release}")
    newest = ".".join(map(str, FIXES[-1][0]))
    if version is None:
        return [f"the payload does not say which release it is; before {newest} containers can break out"]
    if version >= FIXES[-1][0]:
        return []
    open_holes = ", ".join(names for fixed, names in FIXES if version < fixed)
    return [f"the payload is older than {newest}: containers can break out of it ({open_holes})"]
