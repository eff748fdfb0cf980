"""Faults of containerd's files taken together: a missing default runtime, tables that are not read. Pure.

Verified on containerd 1.6, 1.7, 2.0, 2.1 and 2.4 (docs/containerd.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from toolkit_installer.documents import shown, toml_document
from toolkit_installer.documents.changes import lookup
from toolkit_installer.engines.api import parse_release
from toolkit_installer.engines.containerd import tables
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    CONTAINERD_2,
    FILE_VERSIONS,
    GRPC,
    IMAGES,
    MIGRATES_EACH_FILE,
    PLUGINS,
    RUNTIME,
    SHORT,
    VERSION,
    ConfigFile,
    Release,
    View,
    build_shape,
    find_disabled,
    legacy_type,
    read_executable,
    runtimes_in,
    table_of,
)
from toolkit_installer.engines.ownership import Fault, is_beneath


def find_faults(
    files: Sequence[ConfigFile], views: Sequence[View], version: int | None, release: Release | None, called: str = ""
) -> list[Fault]:
    """Return the faults of files that these views read; those that keep containerd from starting come first.

    `called`: the running containerd's whole version, "" if unknown.
    """
    refused = find_refused_version(files, called, release) if release is not None else None
    missing = [find_missing_default(view, files, version, release) for view in views]
    stops = all(missing)
    found = [each for each in missing if each is not None][:1]
    return [
        *([msgspec.structs.replace(refused, stops=True)] if refused is not None else []),
        *(msgspec.structs.replace(each, stops=stops, mended=True) for each in found),
        *find_unread(files, release),
    ]


def check_files(files: Sequence[ConfigFile], called: str) -> list[Fault]:
    """Return the faults of the files of a containerd with the version `called`, "" if unknown."""
    release = parse_release(called)
    version = tables.last_version(files, release)
    return find_faults(files, tables.possible_views(release, version), version, release, called)


def find_missing_default(
    view: View, files: Sequence[ConfigFile], version: int | None, release: Release | None
) -> Fault | None:
    """Return a fault if a daemon with this view would not start its CRI for lack of its default runtime's table.

    None if the table exists, or if the CRI plugin is disabled.
    """
    if find_disabled((file.path, file.document) for file in files) is not None:
        return None
    plugin = tables.find_plugin(view, files, version, release)
    table = tables.plugin_table(view, files, plugin)
    known, default = tables.merge_served(view, files, version, release)
    older = view is not View.DEEP and (release is None or release < CONTAINERD_2)
    name = BUILT_IN_RUNTIME if default is None else default
    if name in known or (older and lookup(table, legacy_type(plugin))):
        return None
    read = tables.files_read_by(view, files)
    having = [file for file in read if plugin in _plugins_of(file)]
    last = having[-1] if having else read[0]
    losing = next((file for file in reversed(having[:-1]) if name in runtimes_in(file.document, plugin)), None)
    named = shown.quote_name(name)
    if losing is not None and view is not View.DEEP:
        where = _location(losing, (*build_shape(plugin).runtimes, name))
        return Fault(
            last.path,
            _line(last, ("plugins", plugin)),
            f"takes the default runtime {named} away, which {where} has: {_name_of(view, release)} takes a plugin's "
            "table from the last file that has it, and its CRI does not start without the default runtime's table",
            f"add the table of the runtime {named} to this file, or move the file's tables to {losing.path}, and "
            "restart containerd",
        )
    naming = next((file for file in reversed(having) if lookup(file.document, build_shape(plugin).default)), last)
    path = build_shape(plugin).default if lookup(naming.document, build_shape(plugin).default) else table_of(plugin)
    return Fault(
        naming.path,
        _line(naming, path) or _line(naming, ("plugins", plugin)),
        f"the default runtime is {named}, and no file that {_name_of(view, release)} reads has a table for it: its CRI "
        "does not start",
        f"add that table, or name another default_runtime_name; {', '.join(known) or 'none'} is there",
    )


def find_unread(files: Sequence[ConfigFile], release: Release | None) -> Iterator[Fault]:
    """Yield the files whose CRI tables a daemon ignores because another file is of another version.

    Until 2.2 one version counts for all files; 2.3 and later migrate each file by its own.
    """
    if release is None or release >= MIGRATES_EACH_FILE:
        return
    version = tables.last_version(files, release) or 1
    deciding = next((file for file in reversed(files) if file.version is not None), None)
    called = f"containerd {release[0]}.{release[1]}"
    newer = [file for file in files if release >= CONTAINERD_2 and lookup(file.document, table_of(RUNTIME))]
    for file in files:
        for name in (SHORT, GRPC, RUNTIME, IMAGES):
            by = deciding if _is_ignored(name, version, release) else None
            if by is None and name == GRPC and newer and lookup(file.document, table_of(GRPC)):
                by = next((other for other in newer if other is not file), None)
            if by is None or by.version == file.version or name not in _plugins_of(file):
                continue
            table = lookup(file.document, ("plugins", name))
            keys = ", ".join(sorted(table)) if isinstance(table, dict) else ""
            yield Fault(
                file.path,
                _line(file, ("plugins", name)),
                f"is of version {file.version or 1}, and {by.path} of version {by.version or 1}: {called} does not "
                f"read [plugins.{name!r}] here ({keys})",
                f"write {file.path} and {by.path} for the same version (`containerd config migrate`), and restart "
                "containerd",
            )


def _is_ignored(name: str, version: int, release: Release) -> bool:
    """Return whether a daemon that goes by this version ignores a file's table under this plugin name."""
    if release < CONTAINERD_2:
        return name != (SHORT if version == 1 else GRPC)
    return FILE_VERSIONS[version].is_for_2 and name in (SHORT, GRPC)


def find_refused_version(files: Sequence[ConfigFile], version: str, release: Release) -> Fault | None:
    """Return why this daemon would refuse to start: containerd 2.3.0 to 2.3.4 accept no import of a newer version."""
    numbers = version.removeprefix("v").split("-")[0].split(".")
    patch = int(numbers[2]) if len(numbers) > 2 and numbers[2].isdecimal() else None  # noqa: PLR2004  # the third
    if release != MIGRATES_EACH_FILE or patch is None or patch > _LAST_THAT_REFUSES:
        return None
    said = [file for file in files if file.version is not None]
    for file in said[1:]:
        if (file.version or 1) > (said[0].version or 1):
            return Fault(
                file.path,
                _line(file, VERSION),
                f"is of version {file.version}, and {said[0].path} of version {said[0].version}: containerd {version} "
                "does not start with an imported file of a newer version",
                "write both for the same version, or upgrade containerd to 2.3.5 or later",
            )
    return None


_LAST_THAT_REFUSES = 4


def find_replaced(
    view: View, files: Sequence[ConfigFile], version: int | None, release: Release | None
) -> Iterator[Fault]:
    """Yield the settings of a file that a daemon with this view loses to a later file with the same plugin's table.

    Until 2.0 the last file with a plugin's table replaces the table whole.
    """
    if view is View.DEEP:
        return
    from toolkit_installer.documents.shown import is_plain_key  # noqa: PLC0415  # no run comes here

    plugin = tables.find_plugin(view, files, version, release)
    having = [file for file in tables.files_read_by(view, files) if plugin in _plugins_of(file)]
    last = having[-1] if having else None
    for file in having[:-1]:
        assert last is not None  # noqa: S101  # there is one before it
        lost = sorted(runtimes_in(file.document, plugin).keys() - runtimes_in(last.document, plugin).keys())
        table, kept = (lookup(each.document, ("plugins", plugin)) for each in (file, last))
        gone = table.keys() - kept.keys() if isinstance(table, dict) and isinstance(kept, dict) else ()
        settings = sorted(filter(is_plain_key, gone))
        words = [f"the {'runtime' if len(lost) == 1 else 'runtimes'} {', '.join(lost)}"] if lost else []
        words += [f"the {'setting' if len(settings) == 1 else 'settings'} {', '.join(settings)}"] if settings else []
        if words:
            yield Fault(
                last.path,
                _line(last, ("plugins", plugin)),
                f"replaces the table [plugins.{plugin!r}] of {file.path}: {_name_of(view, release)} takes it from the "
                f"last file that has it, and loses {' and '.join(words)}",
                f"add {' and '.join(words)} to {last.path}, or move the tables of {last.path} to {file.path}, and "
                "restart containerd",
            )


def find_served_in(files: Sequence[ConfigFile], release: Release | None, folder: str) -> Iterator[Fault]:
    """Yield the files from which a daemon serves handlers whose executable lies in `folder`."""
    version = tables.last_version(files, release)
    (view, *_) = tables.possible_views(release, version)
    known, _ = tables.merge_served(view, files, version, release)
    for name, entry in known.items():
        if not is_beneath(read_executable(entry), folder):
            continue
        for file in reversed(tables.files_read_by(view, files)):
            plugin = next((each for each in PLUGINS if name in runtimes_in(file.document, each)), None)
            if plugin is not None:
                yield Fault(
                    file.path,
                    _line(file, (*build_shape(plugin).runtimes, name)),
                    f"has the handler {name}, which runs {read_executable(entry)}",
                    "take it out, and restart containerd",
                )
                break


def _plugins_of(file: ConfigFile) -> frozenset[str]:
    plugins = file.document.get("plugins")
    return frozenset(plugins) if isinstance(plugins, dict) else frozenset()


def _name_of(view: View, release: Release | None) -> str:
    return str(view) if release is None else f"containerd {release[0]}.{release[1]}"


def _line(file: ConfigFile, path: tuple[str, ...]) -> int | None:
    return toml_document.line_of(file.content, path)


def _location(file: ConfigFile, path: tuple[str, ...]) -> str:
    line = _line(file, path)
    return file.path if line is None else f"{file.path}:{line}"
