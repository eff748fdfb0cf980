"""containerd's tables: the keys that we edit, their types, and how each release reads and merges its files. Pure.

The rules come from real binaries (1.6, 1.7, 2.1, 2.4); docs/containerd.md has the table, and an end-to-end test checks
them against the binaries.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Path, Table, lookup, merge_tables
from toolkit_installer.engines.ownership import ListedRuntime, Shape
from toolkit_installer.errors import ConfigurationError, located

SHORT: Final = "cri"
"""The CRI plugin's name in files of version 1."""
GRPC: Final = "io.containerd.grpc.v1.cri"
"""Its name in files of version 2."""
RUNTIME: Final = "io.containerd.cri.v1.runtime"
"""The plugin that owns the runtimes in files of version 3 and 4."""
IMAGES: Final = "io.containerd.cri.v1.images"
"""The plugin that has the sandbox image and the registries in files of version 3 and 4."""

Release = tuple[int, int]
"""Major and minor."""
_ANY: Final[Release] = (0, 0)
CONTAINERD_2: Final[Release] = (2, 0)
MERGES_DEEPLY: Final[Release] = (2, 1)
"""The first that merges an imported file's tables into the earlier ones; older ones replace a plugin's whole table."""
LAST_WITH_ENABLE_CDI: Final[Release] = (2, 1)
"""The last that knows the key `enable_cdi`; newer ones always resolve CDI devices."""
MIGRATES_EACH_FILE: Final[Release] = (2, 3)
"""The first that migrates each file by its own version; older ones apply the last version of any file to all."""


class FileVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of containerd's configuration files.

    `plugin`: the plugin that owns the runtimes in such a file. `since`: the first release that reads it. `new_since`:
    the first release for which a new file is of this version; None: no new file is. `found_under`: the names under
    which 2.3 and later look for the runtimes in such a file, in that order; `found_before_2_3`: those of 2.0 to 2.2.
    """

    plugin: str = RUNTIME
    since: Release
    new_since: Release | None = None
    found_under: tuple[str, ...] = (RUNTIME,)
    found_before_2_3: tuple[str, ...] = (RUNTIME,)

    @property
    def is_for_2(self) -> bool:
        """Whether no containerd 1.x reads it: its readers have CDI on by default."""
        return self.since >= CONTAINERD_2

    @property
    def has_enable_cdi(self) -> bool:
        """Whether some release that reads it knows the key `enable_cdi`."""
        return self.since <= LAST_WITH_ENABLE_CDI


FILE_VERSIONS: Final = {
    1: FileVersion(plugin=SHORT, since=_ANY, found_under=(RUNTIME, SHORT, GRPC)),
    2: FileVersion(
        plugin=GRPC, since=_ANY, new_since=_ANY, found_under=(RUNTIME, GRPC), found_before_2_3=(RUNTIME, GRPC)
    ),
    3: FileVersion(since=CONTAINERD_2, new_since=CONTAINERD_2, found_under=(RUNTIME, GRPC)),
    4: FileVersion(since=(2, 3)),
}
"""The known versions by number. A file without a version is of version 1."""
PLUGINS: Final = tuple(dict.fromkeys(version.plugin for version in reversed(FILE_VERSIONS.values())))
"""The CRI plugin's names, newest first: where a 2.x reads two of them, the newer name's values count."""
CRI_TABLES: Final = (*PLUGINS, IMAGES)
"""All names under which a file configures the CRI."""

BUILT_IN_RUNTIME: Final = "runc"
DEFAULT_RUNTIME_TYPE: Final = "io.containerd.runc.v2"
RUNC_TYPES: Final = "io.containerd.runc."
"""Prefix of the runtime types whose options have a BinaryName."""

VERSION: Final[Path] = ("version",)
IMPORTS: Final[Path] = ("imports",)
_LISTS: Final[dict[Path, str]] = {
    IMPORTS: "a list of paths",
    ("disabled_plugins",): "a list of plugins",
    ("required_plugins",): "a list of plugins",
}


def table_of(plugin: str) -> Path:
    """Return the path of the plugin's table that holds `runtimes` and `default_runtime_name`."""
    return ("plugins", plugin, "containerd")


def build_shape(plugin: str) -> Shape:
    """Return the shape of the plugin's table: where its runtimes and their settings are."""
    table = table_of(plugin)
    return Shape(
        (*table, "runtimes"),
        (*table, "default_runtime_name"),
        read_executable,
        (legacy_type(plugin), legacy_default(plugin), enable_cdi(plugin)),
        same_import,
        is_runc,
    )


def is_runc(entry: Any) -> bool:
    """Return whether a runtime's type is one of runc's; a runtime without a type is."""
    if not isinstance(entry, dict):
        return False
    kind = entry.get("runtime_type") or DEFAULT_RUNTIME_TYPE
    return isinstance(kind, str) and kind.startswith(RUNC_TYPES)


def legacy_default(plugin: str) -> Path:
    """Return the path of the default runtime's table of containerd before 1.3; later 1.x use it if it has a type."""
    return (*table_of(plugin), "default_runtime")


def legacy_type(plugin: str) -> Path:
    """Return the path of the key that overrides `default_runtime_name` on containerd 1.x if it is not empty."""
    return (*legacy_default(plugin), "runtime_type")


def enable_cdi(plugin: str) -> Path:
    """Return the path of the key that turns on CDI in the CRI plugin: 1.7 to 2.1 know it, later ones always use CDI."""
    return ("plugins", plugin, "enable_cdi")


def read_executable(entry: Any) -> str | None:
    """Return the executable of a runtime's entry, None if it names none; the oldest shims read it from `Runtime`."""
    options = entry.get("options") if isinstance(entry, dict) else None
    if not isinstance(options, dict):
        return None
    paths = (options.get("BinaryName"), options.get("Runtime"))
    return next((path for path in paths if isinstance(path, str) and path), None)


def read_cgroup_driver(entry: Any) -> str | None:
    """Return the cgroup driver of a runtime's containers, None for a runtime that is not a runc."""
    if not isinstance(entry, dict) or entry.get("runtimeType", entry.get("runtime_type")) != "io.containerd.runc.v2":
        return None
    options = entry.get("options")
    return "systemd" if isinstance(options, dict) and options.get("SystemdCgroup") is True else "cgroupfs"


def same_import(left: Any, right: Any) -> bool:
    """Return whether two elements of `imports` name one file: one of them may be relative to config.toml's folder.

    The folder's location is not checked: in the installer's mount namespace it may differ from the node's.
    """
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    short, long = sorted((posixpath.normpath(left), posixpath.normpath(right)), key=len)
    return short == long or (not short.startswith("/") and long.endswith(f"/{short}"))


def plugins_in(document: Table) -> frozenset[str]:
    """Return the names under which the document configures the CRI plugin."""
    found = document.get("plugins")
    return frozenset(PLUGINS).intersection(found) if isinstance(found, dict) else frozenset()


def runtimes_in(document: Table, plugin: str) -> Table:
    """Return the runtimes' tables of a plugin in a document, by name."""
    return build_shape(plugin).entries(document)


def check_version(version: Any) -> int:
    """Return the checked version of a distribution's file. Raises ConfigurationError for an unknown version."""
    if type(version) is not int or version not in FILE_VERSIONS:
        raise ConfigurationError(
            f"is of version {version!r}; versions {min(FILE_VERSIONS)} to {max(FILE_VERSIONS)} are known",
            hint="use an installer that is as new as the distribution",
        )
    return version


def find_disabled(documents: Iterable[tuple[str, Table]]) -> tuple[str, str] | None:
    """Return the first file (by path) that disables the CRI plugin, and the name in its list; None if none does."""
    for path, document in documents:
        names = document.get("disabled_plugins")
        for name in names if isinstance(names, list) else ():
            if name in PLUGINS:
                return path, name
    return None


def parse_checked(content: bytes) -> tuple[Table, int | None]:
    """Parse a file and check the types of the keys that we edit; return the document and its version (None if absent).

    Raises DocumentError, ConfigurationError with a line.
    """
    document = toml_document.parse(content)
    version = document.get("version")
    if version is not None and type(version) is not int:
        raise invalid_value_error(content, VERSION, "must be a number")
    if version is not None and version not in FILE_VERSIONS:
        raise ConfigurationError(
            f"is of version {version}; versions 1 to {max(FILE_VERSIONS)} are known",
            line=toml_document.line_of(content, VERSION),
            hint="a newer toolkit-installer may know it; or write it for a version that is known",
        )
    for plugin in PLUGINS:
        _check_table(document, plugin, content)
    for path, what in _LISTS.items():
        elements = _require(document, path, list, what, content)
        if any(not isinstance(element, str) for element in elements or []):
            raise invalid_value_error(content, path, f"must be {what}")
    return document, version


def _check_table(document: Table, plugin: str, content: bytes) -> None:
    table = table_of(plugin)
    for length in range(1, len(table) + 1):
        _require(document, table[:length], dict, "a table", content)
    runtimes = _require(document, (*table, "runtimes"), dict, "a table", content)
    for name in runtimes or {}:
        entry = (*table, "runtimes", name)
        _require(document, entry, dict, "a table", content)
        _require(document, (*entry, "runtime_type"), str, "a string", content)
        _require(document, (*entry, "container_annotations"), list, "a list", content)
        _require(document, (*entry, "options"), dict, "a table", content)
        _require(document, (*entry, "options", "BinaryName"), str, "a string", content)
    _require(document, (*table, "default_runtime_name"), str, "a string", content)
    _require(document, legacy_default(plugin), dict, "a table", content)
    _require(document, legacy_type(plugin), str, "a string", content)


def _require(document: Table, path: Path, kind: type, name: str, content: bytes) -> Any:
    """Return the value at `path`, None if absent. Raises ConfigurationError if it is of another type."""
    value = lookup(document, path)
    if value is ABSENT:
        return None
    if type(value) is not kind:
        raise invalid_value_error(content, path, f"must be {name}")
    return value


def invalid_value_error(content: bytes, path: Path, what: str) -> ConfigurationError:
    """Return the error for a value that containerd would refuse too."""
    return ConfigurationError(
        f"{'.'.join(path)} {what}",
        line=toml_document.line_of(content, path),
        hint="correct the file; containerd would refuse it too",
    )


_MIGRATED_BESIDE_RUNTIMES = frozenset({"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"})
"""Settings that a 2.x migrates from a version 2 file only if it has runtimes: adding runtimes would turn them on."""


class View(enum.StrEnum):
    """A way of reading files that several releases share."""

    OLDEST = "containerd 1.6"
    """A relative pattern is resolved in the daemon's working directory; a plugin's table is replaced whole."""
    SHALLOW = "containerd 1.7 and 2.0"
    DEEP = "containerd 2.1 and later"


_LAST_RELEASES: Final[dict[View, Release]] = {View.OLDEST: (1, 6), View.SHALLOW: (2, 0), View.DEEP: (1 << 30, 0)}
"""The last release with each view."""


class ConfigFile(msgspec.Struct, frozen=True):
    """One file that the daemon reads; a sequence has the root first, then the imported files in order.

    `role` names it among the engine's files. `by_relative_pattern`: it is reached only through a relative path with a
    wildcard.
    """

    role: str
    path: str
    content: bytes
    document: Table
    version: int | None
    by_relative_pattern: bool


def parse_file(role: str, path: str, content: bytes, by_relative_pattern: bool = False) -> ConfigFile:  # noqa: FBT001, FBT002
    """Return a parsed file. Raises ConfigurationError naming the file."""
    with located(path):
        return ConfigFile(role, path, content, *parse_checked(content), by_relative_pattern)


def last_version(files: Sequence[ConfigFile], release: Release | None) -> int | None:
    """Return the version by which a daemon reads all files, None if no file has that line.

    Until 2.2 the last version of any file counts for all; later ones read each file by its own version.
    """
    said = [file.version for file in files if file.version is not None]
    if not said:
        return None
    return said[0] if release is not None and release >= MIGRATES_EACH_FILE else said[-1]


def possible_views(release: Release | None, version: int | None) -> tuple[View, ...]:
    """Return the possible views: one if the release is known, else those of all releases that read this version."""
    first = FILE_VERSIONS[version or 1].since if release is None else release
    views = tuple(view for view, last in _LAST_RELEASES.items() if first <= last)
    return views if release is None else views[:1]


def newest_readable_version(release: Release) -> int:
    """Return the newest version that this release reads."""
    return max(number for number, version in FILE_VERSIONS.items() if version.since <= release)


def new_file_version(release: Release | None) -> int:
    """Return the version of a new file for this release; for None, the one that every release reads."""
    known = {number: version.new_since for number, version in FILE_VERSIONS.items()}
    return max(number for number, since in known.items() if since is not None and since <= (release or _ANY))


def files_read_by(view: View, files: Sequence[ConfigFile]) -> list[ConfigFile]:
    """Return the files that a daemon with this view reads."""
    return [file for file in files if view is not View.OLDEST or not file.by_relative_pattern]


def plugin_table(view: View, files: Sequence[ConfigFile], plugin: str) -> Table:
    """Return the plugin's table as the daemon merges it, in a document that has only that table."""
    found: Table | None = None
    for file in files_read_by(view, files):
        table = lookup(file.document, ("plugins", plugin))
        if isinstance(table, dict):
            found = table if found is None or view is not View.DEEP else merge_tables(found, table)
    return {} if found is None else {"plugins": {plugin: found}}


def find_last_with(view: View, files: Sequence[ConfigFile], plugin: str) -> ConfigFile:
    """Return the last file that has the plugin's table: its values count however tables are merged."""
    having = [file for file in files_read_by(view, files) if plugin in plugins_in(file.document)]
    return having[-1] if having else files[0]


def list_plugin_names(view: View, version: int | None, release: Release | None) -> tuple[str, ...]:
    """Return the plugin names under which this view looks for the runtimes in files of this version, in that order.

    2.0 to 2.2 do not read the CRI plugin's table under its version 1 name.
    """
    row = FILE_VERSIONS[version or 1]
    if view is not View.DEEP and (release is None or release < CONTAINERD_2):
        return (row.plugin,)
    return row.found_under if release is None or release >= MIGRATES_EACH_FILE else row.found_before_2_3


def find_plugin(view: View, files: Sequence[ConfigFile], version: int | None, release: Release | None) -> str:
    """Return the plugin whose table has the runtimes in this view; if no table has any, the version's usual plugin."""
    known = list_plugin_names(view, version, release)
    migrated = lookup(plugin_table(view, files, GRPC), table_of(GRPC)) if release is not None and GRPC in known else {}
    bare = isinstance(migrated, dict) and "runtimes" not in migrated
    if bare and not _MIGRATED_BESIDE_RUNTIMES.isdisjoint(migrated):
        return RUNTIME if RUNTIME in known else GRPC
    usual = FILE_VERSIONS[version].plugin if version is not None else ""
    for name in known:
        table = lookup(plugin_table(view, files, name), table_of(name))
        if isinstance(table, dict) and not {"runtimes", "default_runtime_name"}.isdisjoint(table):
            return name
    return usual if usual in known else known[0]


def merge_served(
    view: View, files: Sequence[ConfigFile], version: int | None, release: Release | None
) -> tuple[Table, str | None]:
    """Return the runtimes that a daemon with this view would have, its own runc included, and the default's name."""
    found: Table = {}
    for name in reversed(list_plugin_names(view, version, release)):
        table = lookup(plugin_table(view, files, name), table_of(name))
        found |= table if isinstance(table, dict) else {}
    own = {BUILT_IN_RUNTIME: {"runtime_type": DEFAULT_RUNTIME_TYPE}}
    known = found.get("runtimes")
    if view is View.DEEP or (release is not None and release >= CONTAINERD_2):
        known = merge_tables(own, known or {})  # the daemon decodes a file's values over its own table
    return known if known is not None else own, found.get("default_runtime_name")


def list_runtimes(files: Sequence[ConfigFile], release: Release | None) -> Iterator[ListedRuntime]:
    """Yield the runtimes that a daemon has with these files, its own runc included."""
    version = last_version(files, release)
    (view, *_) = possible_views(release, version)
    known, default = merge_served(view, files, version, release)
    plugin = find_plugin(view, files, version, release)
    for name, entry in known.items():
        path, line = _find_runtime(files_read_by(view, files), name)
        runc = is_runc(entry)
        runs = read_executable(entry) or (BUILT_IN_RUNTIME if runc else None)  # runc's shim looks for it in PATH
        by_systemd = _is_by_systemd(entry, files, plugin) if runc and line is not None else None
        yield ListedRuntime(name, runs, path, line, by_systemd, name == (default or BUILT_IN_RUNTIME))


def _is_by_systemd(entry: Table, files: Sequence[ConfigFile], plugin: str) -> bool:
    for_all = (lookup(file.document, ("plugins", plugin, "systemd_cgroup")) for file in files)
    return lookup(entry, ("options", "SystemdCgroup")) is True or any(said is True for said in for_all)


def _find_runtime(files: Sequence[ConfigFile], name: str) -> tuple[str, int | None]:
    for file in reversed(files):
        for plugin in PLUGINS:
            if name in runtimes_in(file.document, plugin):
                return file.path, toml_document.line_of(file.content, (*build_shape(plugin).runtimes, name))
    return files[0].path, None
