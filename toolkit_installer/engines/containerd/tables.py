"""containerd's tables: the keys that we edit, their types, and how each release reads and merges its files. Pure.

The rules come from real binaries (1.6, 1.7, 2.1, 2.4); docs/containerd.md has the table, and an end-to-end test checks
them against the binaries.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Path, Table, lookup, merge_tables
from toolkit_installer.engines.ownership import Shape
from toolkit_installer.errors import ConfigurationError

SHORT: Final = "cri"
"""The CRI plugin's name in files of version 1."""
GRPC: Final = "io.containerd.grpc.v1.cri"
"""Its name in files of version 2."""
RUNTIME: Final = "io.containerd.cri.v1.runtime"
"""The plugin that owns the runtimes in files of version 3 and 4."""
PLUGINS: Final = (RUNTIME, GRPC, SHORT)
"""Newest first: where a 2.x reads two of them, the newer name's values count."""
IMAGES: Final = "io.containerd.cri.v1.images"
"""The plugin that has the sandbox image and the registries in files of version 3 and 4."""
CRI_TABLES: Final = (*PLUGINS, IMAGES)
"""All names under which a file configures the CRI."""
CRI_PLUGIN: Final = {1: SHORT, 2: GRPC, 3: RUNTIME, 4: RUNTIME}
"""The plugin that owns the runtimes, by the file's version."""

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


def shape(plugin: str) -> Shape:
    """Return the shape of the plugin's table: where its runtimes and their settings are."""
    table = table_of(plugin)
    return Shape(
        (*table, "runtimes"),
        (*table, "default_runtime_name"),
        executable,
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


def executable(entry: Any) -> str | None:
    """Return the executable of a runtime's entry, None if it names none; the oldest shims read it from `Runtime`."""
    options = entry.get("options") if isinstance(entry, dict) else None
    if not isinstance(options, dict):
        return None
    paths = (options.get("BinaryName"), options.get("Runtime"))
    return next((path for path in paths if isinstance(path, str) and path), None)


def cgroup_driver(entry: Any) -> str | None:
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
    return shape(plugin).entries(document)


def check_version(version: Any) -> int:
    """Return the checked version of a distribution's file. Raises ConfigurationError for an unknown version."""
    if type(version) is not int or version not in CRI_PLUGIN:
        raise ConfigurationError(
            f"is of version {version!r}; versions {min(CRI_PLUGIN)} to {max(CRI_PLUGIN)} are known",
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
    if version is not None and version not in CRI_PLUGIN:
        raise ConfigurationError(
            f"is of version {version}; versions 1 to {max(CRI_PLUGIN)} are known",
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


Release = tuple[int, int]
"""Major and minor."""

READS_VERSION_3: Release = (2, 0)
MERGES_DEEPLY: Release = (2, 1)
"""The first that merges an imported file's tables into the earlier ones; older ones replace a plugin's whole table."""
READS_VERSION_4: Release = (2, 3)
MIGRATES_EACH_FILE: Release = (2, 3)
"""The first that migrates each file by its own version; older ones apply the last version of any file to all."""


_MIGRATED_BESIDE_RUNTIMES = frozenset({"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"})
"""Settings that a 2.x migrates from a version 2 file only if it has runtimes: adding runtimes would turn them on."""


class View(enum.StrEnum):
    """A way of reading files that several releases share."""

    OLDEST = "containerd 1.6"
    """A relative pattern is resolved in the daemon's working directory; a plugin's table is replaced whole."""
    SHALLOW = "containerd 1.7 and 2.0"
    DEEP = "containerd 2.1 and later"


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


def possible_views(release: Release | None, version: int | None) -> tuple[View, ...]:
    """Return the possible views: one if the release is known, else those of all releases that read this version."""
    if release is None:
        older = (View.OLDEST, View.SHALLOW) if (version or 1) <= 2 else ()  # noqa: PLR2004  # version 2
        return (*older, *((View.SHALLOW,) if version == 3 else ()), View.DEEP)  # noqa: PLR2004  # version 3: 2.0 too
    if release >= MERGES_DEEPLY:
        return (View.DEEP,)
    return (View.OLDEST,) if release <= (1, 6) else (View.SHALLOW,)


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


def names(view: View, version: int | None, release: Release | None) -> tuple[str, ...]:
    """Return the plugin names under which this view looks for the runtimes in files of this version, in that order.

    2.0 to 2.2 do not read the CRI plugin's table under its version 1 name.
    """
    if view is not View.DEEP and (release is None or release < READS_VERSION_3):
        return (CRI_PLUGIN[version or 1],)
    each = release is None or release >= MIGRATES_EACH_FILE
    if version is None or version == 1:
        return (RUNTIME, SHORT, GRPC) if each else (RUNTIME,)
    return {2: (RUNTIME, GRPC), 3: (RUNTIME, GRPC) if each else (RUNTIME,), 4: (RUNTIME,)}[version]


def plugin_of(view: View, files: Sequence[ConfigFile], version: int | None, release: Release | None) -> str:
    """Return the plugin whose table has the runtimes in this view; if no table has any, the version's usual plugin."""
    known = names(view, version, release)
    migrated = lookup(plugin_table(view, files, GRPC), table_of(GRPC)) if release is not None and GRPC in known else {}
    bare = isinstance(migrated, dict) and "runtimes" not in migrated
    if bare and not _MIGRATED_BESIDE_RUNTIMES.isdisjoint(migrated):
        return RUNTIME if RUNTIME in known else GRPC
    usual = CRI_PLUGIN[version] if version is not None and CRI_PLUGIN[version] in known else known[0]
    for name in known:
        table = lookup(plugin_table(view, files, name), table_of(name))
        if isinstance(table, dict) and not {"runtimes", "default_runtime_name"}.isdisjoint(table):
            return name
    return usual


def merge_served(
    view: View, files: Sequence[ConfigFile], version: int | None, release: Release | None
) -> tuple[Table, str | None]:
    """Return the runtimes that a daemon with this view would have, its own runc included, and the default's name."""
    found: Table = {}
    for name in reversed(names(view, version, release)):
        table = lookup(plugin_table(view, files, name), table_of(name))
        found |= table if isinstance(table, dict) else {}
    own = {BUILT_IN_RUNTIME: {"runtime_type": DEFAULT_RUNTIME_TYPE}}
    known = found.get("runtimes")
    if view is View.DEEP or (release is not None and release >= READS_VERSION_3):
        known = merge_tables(own, known or {})  # the daemon decodes a file's values over its own table
    return known if known is not None else own, found.get("default_runtime_name")
