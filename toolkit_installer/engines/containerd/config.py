"""Edits of one containerd file of any version: adding our runtimes, removing them, choosing the runtime to copy. Pure.

The settings of the handlers' tables are those of the default runtime, as the first source (`Sources`) has it.
"""

from __future__ import annotations

import copy
import itertools
import json
import posixpath
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import (
    ABSENT,
    Change,
    Remove,
    Set,
    Table,
    apply_changes,
    is_same,
    lookup,
    merge_tables,
)
from toolkit_installer.engines import ownership as ownership_of
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    DEFAULT_RUNTIME_TYPE,
    FILE_VERSIONS,
    IMPORTS,
    PLUGINS,
    RUNTIME,
    SHORT,
    VERSION,
    build_shape,
    enable_cdi,
    is_runc,
    legacy_default,
    legacy_type,
    parse_checked,
    plugins_in,
    read_executable,
    same_import,
)
from toolkit_installer.engines.ownership import (
    MARKER,
    Owned,
    Ownership,
    Shape,
    find_chosen_default,
    is_beneath,
    record_ownership,
    remove_ours,
)
from toolkit_installer.engines.target import Handler
from toolkit_installer.errors import located
from toolkit_installer.settings import EngineSettings

_DAEMON_DEFAULTS = {"sandbox_mode": "podsandbox", "sandboxer": "podsandbox"}
"""The values that the daemon itself fills in for absent keys."""
COMMAND, FILE = "command", "file"
"""Values of `--config-source`; the third form is FILE, `=` and a path."""
_DEFAULT_SOURCES = (COMMAND, FILE)
_NO_BASE_RUNTIME = "no runtime of runc's kind that is not ours"


class ContainerdSources(msgspec.Struct, frozen=True):
    """Sources of the handlers' settings besides the engine's own files.

    `asked`: the values of `--config-source`, empty if the flag was not given. `printed`: the configuration that the
    live daemon's binary prints, None if it was not run or printed none. `files`: the other sources by path, None for a
    missing file.
    """

    requested: tuple[str, ...] = ()
    printed: Table | None = None
    files: Mapping[str, bytes | None] = msgspec.field(default_factory=dict)


class Candidate(msgspec.Struct, frozen=True):
    """A source's base runtime, {} if it has none; `why` is the reason for that, in words."""

    source: str
    table: Table
    why: str


def find_candidates(sources: ContainerdSources, effective: Table, plugin: str, toolkit_folder: str) -> list[Candidate]:
    """Return a candidate for each source, in order. `effective` is the engine's own configuration without our changes.

    Raises ConfigurationError, naming the file, for a source that cannot be read as a containerd configuration.
    """
    return [
        _candidate(source, sources, effective, plugin, toolkit_folder)
        for source in sources.requested or _DEFAULT_SOURCES
    ]


def _candidate(
    source: str, sources: ContainerdSources, effective: Table, plugin: str, toolkit_folder: str
) -> Candidate:
    if source == FILE:
        return Candidate(source, get_base_runtime(effective, plugin), f"containerd's own files have {_NO_BASE_RUNTIME}")
    if source == COMMAND:
        name = lookup(effective, build_shape(plugin).default)
        named = name if isinstance(name, str) and name else BUILT_IN_RUNTIME
        found = find_base_runtime(sources.printed or {}, named, toolkit_folder)
        silent = "no containerd runs whose binary prints its configuration"
        return Candidate(
            source, found, silent if sources.printed is None else f"what its binary prints has {_NO_BASE_RUNTIME}"
        )
    path = source.partition("=")[2]
    content = sources.files.get(path)
    with located(path):
        document, _ = parse_checked(content or b"")
    found = find_base_runtime(document, None, toolkit_folder)
    return Candidate(source, found, f"{path} is not there" if content is None else f"{path} has {_NO_BASE_RUNTIME}")


def note_unused_sources(sources: ContainerdSources, candidates: Sequence[Candidate]) -> list[str]:
    """Return a note for each requested source that is skipped because it has no base runtime."""
    if not sources.requested:
        return []
    empty = itertools.takewhile(lambda each: not each.table, candidates)
    return [f"--config-source {each.source} is not used: {each.why}" for each in empty]


def choose_base_runtime(candidates: Sequence[Candidate], effective: Table, plugin: str) -> Table:
    """Return the settings that the handlers get: the table of the first source that has one.

    Where the engine's own file has equal settings, its spelling is kept.
    """
    first = next((each.table for each in candidates if each.table), {})
    file = get_base_runtime(effective, plugin)
    return file if is_same(strip_defaults(first), strip_defaults(file)) else first


def get_base_runtime(document: Table, plugin: str, name: str | None = None) -> Table:
    """Return the runtime of a plugin's table whose settings the handlers get, {} if there is none.

    This is the runtime `name`, by default the table's default runtime. A runtime that is not a runc (Kata, gVisor) is
    skipped for the runtime `runc`, as its options have another meaning.
    """
    place = build_shape(plugin)
    runtimes = lookup(document, place.runtimes)
    known = runtimes if isinstance(runtimes, dict) else {}
    default = lookup(document, place.default) if name is None else name
    named = (known.get(each) for each in (default, BUILT_IN_RUNTIME) if isinstance(each, str))
    candidates = (find_legacy_entry(document, plugin), *named)
    return next((entry for entry in candidates if is_runc(entry)), {})


def find_legacy_entry(document: Table, plugin: str) -> Any:
    """Return the table that overrides the default runtime's name on containerd 1.x, None if there is none."""
    return lookup(document, legacy_default(plugin)) if lookup(document, legacy_type(plugin)) else None


def list_low_level_runtimes(document: Table, plugin: str, built_in: str = BUILT_IN_RUNTIME) -> tuple[str, ...]:
    """Return the low-level runtimes of a plugin's table, best first (`ownership.list_low_level_runtimes`).

    `built_in`: the executable of a runtime that names none.
    """
    return ownership_of.list_low_level_runtimes(
        document, build_shape(plugin), legacy=find_legacy_entry(document, plugin), built_in=built_in
    )


def find_base_runtime(document: Table, name: str | None, toolkit_folder: str) -> Table:
    """Return the base runtime of another document, such as a daemon's printed configuration, under any CRI plugin name.

    `name` is the default runtime's, None for that document's own default. Entries of our toolkit are skipped, and so
    are values that a daemon fills in by itself.
    """
    for plugin in PLUGINS:
        for each in (name, BUILT_IN_RUNTIME):
            entry = get_base_runtime(document, plugin, each)
            if entry and not is_beneath(read_executable(entry), toolkit_folder):
                told = strip_defaults(entry)
                return told if isinstance(told, dict) else {}
    return {}


def strip_defaults(value: Any) -> Any:
    """Return a printed runtime without its empty and false values and the values that the daemon fills in."""
    if not isinstance(value, dict):
        return value
    told = {key: strip_defaults(each) for key, each in value.items()}
    return {
        key: each for key, each in told.items() if each not in ("", 0, [], {}) and each != _DAEMON_DEFAULTS.get(key, "")
    }


_REMOVED_IN_2 = "io.containerd.runc.v1"
"""Deprecated since 1.4, removed in 2.0 (containerd, RELEASES.md)."""
NVIDIA_RUNTIME = "nvidia-container-runtime"
"""Prefix of the names of NVIDIA's runtimes, whichever program installed them."""
_BUILT_IN: Table = {"runtime_type": DEFAULT_RUNTIME_TYPE}
_DEFAULT_SETTINGS = EngineSettings()
_PLUGINS = "plugins"


class TableAdditions(msgspec.Struct, frozen=True):
    """Our additions to one plugin's table of a file. `legacy`: as the default of containerd before 1.3.

    `built_in`: the engine's own runc is named too, since containerd 1.x drops its built-in runc once any runtime is
    named. `copied`: the operator's runtimes from the table under an older name, which this table replaces where a
    daemon reads both.
    """

    plugin: str
    handlers: tuple[tuple[str, Table], ...]
    default: str | None
    copied: tuple[tuple[str, Table], ...] = ()
    built_in: bool = False
    legacy: bool = False
    cdi: bool = False


def build_entries(
    source: Table, plugin: str, handlers: Sequence[Handler], settings: EngineSettings = _DEFAULT_SETTINGS
) -> tuple[tuple[str, Table], ...]:
    """Return each handler's runtime table: a copy of `source` with our executable and the requested settings."""
    annotations = settings.container_annotations
    made = []
    for handler in handlers:
        entry = copy.deepcopy(source)
        kind = entry.get("runtime_type")
        readable = bool(kind) and not (plugin == RUNTIME and kind == _REMOVED_IN_2)  # only a 2.x reads that table
        entry["runtime_type"] = settings.runtime_type or (kind if readable else DEFAULT_RUNTIME_TYPE)
        options = dict(entry.get("options", {}))
        asked = json.loads(settings.runtime_config_override)
        if isinstance(asked.get("options"), dict):
            entry = merge_tables(entry, {key: value for key, value in asked.items() if key != "options"})
            asked = asked["options"]
        entry["options"] = {**merge_tables(options, asked), "BinaryName": handler.executable}
        if plugin == SHORT:
            entry["options"]["Runtime"] = handler.executable
        if annotations:
            known_annotations = entry.get("container_annotations", [])
            entry["container_annotations"] = list(dict.fromkeys([*known_annotations, *annotations]))
        made.append((handler.name, entry))
    return tuple(made)


def build_built_in(plugin: str) -> Table:
    """Return our table for the engine's own runc, as 1.7 prints it; under newer names it has no `sandbox_mode`."""
    return _BUILT_IN if plugin == RUNTIME else _BUILT_IN | {"sandbox_mode": "podsandbox"}


def add_parts(base: bytes, parts: Sequence[TableAdditions], version: int | None = None) -> tuple[bytes, Ownership]:
    """Return `base` with the parts added, and the ownership of the additions. `version`: the version line to write.

    A handler is the table `runtimes.NAME` below the plugin's, with the executable as `options.BinaryName`.
    """
    document = toml_document.parse(base)
    changes: list[Change] = []
    if version is not None:
        changes.append(Set(VERSION, version))
    for part in parts:
        place = build_shape(part.plugin)
        if part.built_in:
            changes.append(Set((*place.runtimes, BUILT_IN_RUNTIME), build_built_in(part.plugin)))
        changes += [Set((*place.runtimes, name), entry) for name, entry in (*part.copied, *part.handlers)]
        if part.default is not None and part.legacy:
            changes.append(Set(legacy_default(part.plugin), dict(part.handlers)[part.default]))
        elif part.default is not None:
            changes.append(Set(place.default, part.default))
            if lookup(document, legacy_type(part.plugin)):
                changes.append(Set(legacy_type(part.plugin), ""))  # it would override the name
        if part.cdi:
            changes.append(Set(enable_cdi(part.plugin), True))  # noqa: FBT003  # the value of a key
    return toml_document.edit(base, changes, marker=MARKER), record_ownership(document, changes)


def keep_chosen_defaults(content: bytes, ownership: Ownership, handlers: Collection[str]) -> list[Change]:
    """Return the changes that keep our handlers as default where another program made them so. Raises DocumentError."""
    document = toml_document.parse(content)
    places = [build_shape(plugin) for plugin in PLUGINS]
    chosen = {place.default: find_chosen_default(document, place, ownership, handlers) for place in places}
    return [Set(path, name) for path, name in chosen.items() if name is not None]


def add_import(base: bytes, path: str) -> tuple[bytes, Ownership]:
    """Return `base` with an import of `path`, and its ownership; unchanged if `path` is imported already."""
    document = toml_document.parse(base)
    imports = document.get("imports", [])
    if path in imports:
        return base, Ownership()
    item = Owned(IMPORTS, path, lookup(document, IMPORTS), item=True)
    return toml_document.edit(base, [Set(IMPORTS, [*imports, path])], marker=MARKER), Ownership((item,))


def remove_ours_from_text(
    content: bytes,
    ownership: Ownership,
    toolkit_folder: str,
    before: bytes | None = None,
    handlers: Collection[str] = (),
) -> tuple[bytes, tuple[str, ...]]:
    """Return the text without our changes, and notes on what others changed in them. `before`: the original text.

    `handlers` are the names of our handlers, in any of containerd's files.

    Raises the errors of `parse_checked` for a file that names our toolkit folder.
    """
    document = toml_document.parse(content)
    version = document.get("version")
    known = version is None or (type(version) is int and version in FILE_VERSIONS)
    if toolkit_folder.encode() in content or known:
        parse_checked(content)
    else:
        # another program rewrote it for another containerd: only an import can still be ours
        ownership = Ownership(tuple(key for key in ownership.keys if key.item))
    ownership, original = _follow_table_rename(document, ownership, toml_document.parse(before or b""))
    changes: list[Change] = []
    left: list[str] = []
    for plugin in PLUGINS:
        made = _remove_legacy_default(document, plugin, ownership, toolkit_folder)
        if made and ownership.keys:
            goes = "it goes" if isinstance(made[0], Remove) else "the old one is back, with what was added to it"
            left.append(f"table default_runtime: somebody else changed it, but it runs our executable: {goes}")
        document = apply_changes(document, tuple(made))
        stripped, theirs = remove_ours(document, build_shape(plugin), ownership, toolkit_folder, original, handlers)
        made += stripped
        left += theirs
        document = apply_changes(document, stripped)
        kept, notes = _keep_built_in(document, build_shape(plugin), ownership)
        document = apply_changes(document, tuple(kept))
        changes += [*made, *kept]
        left += notes
    gone, notes = _remove_version(document, ownership)
    text = toml_document.remove_marker(toml_document.edit(content, [*changes, *gone], marker=MARKER), MARKER)
    if gone and not text.strip():
        text = b""
    return text, (*dict.fromkeys(left), *notes)


def _follow_table_rename(document: Table, ownership: Ownership, original: Table) -> tuple[Ownership, Table]:
    """Return our ownership and the original document, with the CRI plugin's table renamed to its current name.

    An administrator who migrates the file to a newer containerd renames the table.
    """
    had = plugins_in(original) | {key.path[1] for key in ownership.keys if key.path[:1] == (_PLUGINS,)}
    has = plugins_in(document)
    if len(had - has) != 1 or len(has - had) != 1:
        return ownership, original
    (old,), (new,) = had - has, has - had

    def moved(owned: Owned) -> Owned:
        table = owned.path[:2] == (_PLUGINS, old)
        return msgspec.structs.replace(owned, path=(_PLUGINS, new, *owned.path[2:])) if table else owned

    tables = {new if name == old else name: table for name, table in original.get(_PLUGINS, {}).items()}
    renamed = Ownership(tuple(map(moved, ownership.keys)), tuple(map(moved, ownership.created)))
    return renamed, {**original, _PLUGINS: tables}


def _remove_legacy_default(document: Table, plugin: str, ownership: Ownership, toolkit_folder: str) -> list[Change]:
    """Return the change that removes our default of containerd before 1.3, even where others added keys to it."""
    path = legacy_default(plugin)
    owned = ownership.of(path)
    entry = lookup(document, path)
    if not is_beneath(read_executable(entry), toolkit_folder) or (owned is not None and is_same(entry, owned.ours)):
        return []  # not ours, or `strip` removes it
    return [
        Remove(path)
        if owned is None or owned.prior is ABSENT
        else Set(path, _restore_replaced(owned.prior, owned.ours, entry))
    ]


def _restore_replaced(prior: Any, ours: Any, now: Any) -> Any:
    """Return the table that ours replaced, with the keys that others have added to ours since."""
    if not (isinstance(prior, dict) and isinstance(ours, dict) and isinstance(now, dict)):
        return prior
    added = {key: value for key, value in now.items() if key not in ours}
    return {**{key: _restore_replaced(value, ours.get(key), now.get(key)) for key, value in prior.items()}, **added}


def _keep_built_in(document: Table, place: Shape, ownership: Ownership) -> tuple[list[Change], list[str]]:
    """Return the change that keeps our entry for the built-in runtime if other runtimes rely on it, and a note.

    An administrator who added a runtime next to ours saw runc named there; without our line containerd 1.x would lose
    runc, and every ordinary pod with it.
    """
    owned = ownership.of((*place.runtimes, BUILT_IN_RUNTIME))
    runtimes = lookup(document, place.runtimes)
    default = lookup(document, place.default)
    needed = default is ABSENT or default == BUILT_IN_RUNTIME
    if owned is None or not isinstance(runtimes, dict) or not runtimes or not needed or BUILT_IN_RUNTIME in runtimes:
        return [], []
    note = f"runtime {BUILT_IN_RUNTIME!r}: the runtimes that others added need it beside them"
    return [Set(owned.path, owned.ours)], [note]


_VERSION_2_KEYS = ("plugins", "disabled_plugins", "required_plugins", "imports")
"""Keys whose meaning differs in a file of version 1."""


def _remove_version(document: Table, ownership: Ownership) -> tuple[list[Change], list[str]]:
    """Return the change that drops our version line, or a note if keys that others wrote since need it.

    A file without that line is of version 1, which means the same as long as the file names no plugin.
    """
    owned = ownership.of(VERSION)
    if owned is None or owned.prior is not ABSENT or not is_same(document.get("version"), owned.ours):
        return [], []
    needed = [key for key in _VERSION_2_KEYS if document.get(key)]
    if needed and owned.ours != 1:
        return [], [f"the version line: {', '.join(needed)}, which others wrote, would mean something else without it"]
    return [Remove(VERSION)], []


def has_ours(content: bytes, toolkit_folder: str) -> bool:
    """Return whether any runtime of the file lies in our toolkit folder. Raises DocumentError."""
    document = toml_document.parse(content)
    return any(ownership_of.ours(document, build_shape(plugin), toolkit_folder) for plugin in PLUGINS)


def has_only_our_runtimes(content: bytes, toolkit_folder: str) -> bool:
    """Return whether a runtime of the file lies in our toolkit folder, and no NVIDIA runtime lies elsewhere.

    nvidia-ctk copies all of config.toml's runtimes into its drop-in, ours among them, next to the one that it
    registers. Raises DocumentError.
    """
    return has_ours(content, toolkit_folder) and not has_nvidia_elsewhere(content, toolkit_folder)


def has_nvidia_elsewhere(content: bytes, toolkit_folder: str) -> bool:
    """Return whether an NVIDIA runtime of the file lies outside our toolkit folder. Raises DocumentError."""
    document = toml_document.parse(content)
    paths = [read_executable(entry) for plugin in PLUGINS for entry in build_shape(plugin).entries(document).values()]
    nvidia = [path for path in paths if path is not None and posixpath.basename(path).startswith(NVIDIA_RUNTIME)]
    return not all(is_beneath(path, toolkit_folder) for path in nvidia)


def find_unrecorded(content: bytes, *, whole: bool) -> Ownership:
    """Return what is ours in a file without a receipt: the built-in runtime, if it is in one of our marked blocks.

    The author of the block also wrote the tables around it, and the version line too if the file was `whole` ours: if
    it contains nothing else, since the author of a version line above others' content is unknown. Raises DocumentError.
    """
    marked = toml_document.find_marked_tables(content, MARKER)
    if not marked:
        return Ownership()
    document = toml_document.parse(content)
    keys: list[Owned] = []
    created: list[Owned] = []
    for plugin in PLUGINS:
        path = (*build_shape(plugin).runtimes, BUILT_IN_RUNTIME)
        named = build_built_in(plugin)
        if path in marked and is_same(lookup(document, path), named):
            keys.append(Owned(path, named))
        if any(table[:2] == path[:2] for table in marked):
            created += ownership_of.parents(path)
    if whole and "version" in document and document.keys() <= {"version", "plugins"}:
        keys.append(Owned(VERSION, document["version"]))
    return Ownership(tuple(keys), tuple({table.path: table for table in created}.values()))


def find_imports(content: bytes, paths: Sequence[str]) -> Ownership:
    """Return the ownership of the literal imports of any of `paths`. Raises DocumentError."""
    elements = toml_document.parse(content).get("imports", [])
    found = [each for each in elements if any(same_import(each, path) for path in paths)]
    return Ownership(tuple(Owned(IMPORTS, each, item=True) for each in dict.fromkeys(found)))
