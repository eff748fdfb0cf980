"""What each containerd makes of its files: which of them it reads, how it merges them, which table counts. Pure.

The rules were read off real ones (1.6, 1.7, 2.1, 2.4); docs/containerd.md has the table, and an end-to-end test asks
the binaries again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from toolkit_installer.documents.changes import Table, lookup, merged
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    CRI_PLUGIN,
    DEFAULT_RUNTIME_TYPE,
    GRPC,
    RUNTIME,
    SHORT,
    plugins_in,
    table_of,
)

Release = tuple[int, int]
"""Major and minor."""

READS_VERSION_3: Release = (2, 0)
MERGES_DEEPLY: Release = (2, 1)
"""The first that merges an imported file's tables into those before; older ones replace a plugin's table whole."""
READS_VERSION_4: Release = (2, 3)
MIGRATES_EACH_FILE: Release = (2, 3)
"""The first that migrates each file by its own version; others go by the last version that any of their files says."""


_MIGRATED_BESIDE_RUNTIMES = frozenset({"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"})
"""What a 2.x takes over from a version 2 file only if that has runtimes: adding some would turn it on."""


class View(enum.StrEnum):
    """A way of reading that several releases share."""

    OLDEST = "containerd 1.6"
    """A relative pattern is looked up in the daemon's working directory; a plugin's table is replaced whole."""
    SHALLOW = "containerd 1.7 and 2.0"
    DEEP = "containerd 2.1 and later"


class Read(msgspec.Struct, frozen=True):
    """One file that the daemon reads: the root first, then what is imported, in that order.

    `role` names it among the engine's files. `by_relative_pattern`: it is reached only through a relative path with a
    wildcard.
    """

    role: str
    path: str
    content: bytes
    document: Table
    version: int | None
    by_relative_pattern: bool


def views(release: Release | None, version: int | None) -> tuple[View, ...]:
    """Return how the files may be read: one way where the release is known, else all that take such a version."""
    if release is None:
        older = (View.OLDEST, View.SHALLOW) if (version or 1) <= 2 else ()  # noqa: PLR2004  # version 2
        return (*older, *((View.SHALLOW,) if version == 3 else ()), View.DEEP)  # noqa: PLR2004  # version 3: 2.0 too
    if release >= MERGES_DEEPLY:
        return (View.DEEP,)
    return (View.OLDEST,) if release <= (1, 6) else (View.SHALLOW,)


def read_by(view: View, files: Sequence[Read]) -> list[Read]:
    """Return the files that a daemon with this view reads."""
    return [file for file in files if view is not View.OLDEST or not file.by_relative_pattern]


def plugin_table(view: View, files: Sequence[Read], plugin: str) -> Table:
    """Return what the daemon takes for the plugin's table, as a document that has only that."""
    found: Table | None = None
    for file in read_by(view, files):
        table = lookup(file.document, ("plugins", plugin))
        if isinstance(table, dict):
            found = table if found is None or view is not View.DEEP else merged(found, table)
    return {} if found is None else {"plugins": {plugin: found}}


def owner(view: View, files: Sequence[Read], plugin: str) -> Read:
    """Return the last file that has the plugin's table: what is put there counts however tables are merged."""
    having = [file for file in read_by(view, files) if plugin in plugins_in(file.document)]
    return having[-1] if having else files[0]


def names(view: View, version: int | None, release: Release | None) -> tuple[str, ...]:
    """Return the names under which this view looks for the runtimes in files of this version; the first that has any.

    2.0 to 2.2 do not read what a file of version 1 calls the plugin.
    """
    if view is not View.DEEP and (release is None or release < READS_VERSION_3):
        return (CRI_PLUGIN[version or 1],)
    each = release is None or release >= MIGRATES_EACH_FILE
    if version is None or version == 1:
        return (RUNTIME, SHORT, GRPC) if each else (RUNTIME,)
    return {2: (RUNTIME, GRPC), 3: (RUNTIME, GRPC) if each else (RUNTIME,), 4: (RUNTIME,)}[version]


def plugin_of(view: View, files: Sequence[Read], version: int | None, release: Release | None) -> str:
    """Return the plugin whose table this view takes the runtimes from; where none has any, the version's usual one."""
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


def served(view: View, files: Sequence[Read], version: int | None, release: Release | None) -> tuple[Table, str | None]:
    """Return the runtimes that a daemon with this view would have, its own runc included, and the default's name."""
    found: Table = {}
    for name in reversed(names(view, version, release)):
        table = lookup(plugin_table(view, files, name), table_of(name))
        found |= table if isinstance(table, dict) else {}
    own = {BUILT_IN_RUNTIME: {"runtime_type": DEFAULT_RUNTIME_TYPE}}
    known = found.get("runtimes")
    if view is View.DEEP or (release is not None and release >= READS_VERSION_3):
        known = merged(own, known or {})  # what a file says is decoded over the daemon's own table
    return known if known is not None else own, found.get("default_runtime_name")
