"""Where the settings of the handlers' tables come from: the default runtime's, as one of the sources has it. Pure.

One of containerd's files, of any version: what it says with us and without us. Pure.
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
from toolkit_installer.documents.changes import ABSENT, Change, Remove, Set, Table, apply, lookup, merged, same
from toolkit_installer.engines import ownership
from toolkit_installer.engines import ownership as ownership_of
from toolkit_installer.engines.containerd.tables import (
    BUILT_IN_RUNTIME,
    CRI_PLUGIN,
    DEFAULT_RUNTIME_TYPE,
    IMPORTS,
    PLUGINS,
    RUNTIME,
    SHORT,
    VERSION,
    enable_cdi,
    executable,
    is_runc,
    legacy_default,
    legacy_type,
    parse_checked,
    plugins_in,
    same_import,
    shape,
)
from toolkit_installer.engines.ownership import MARKER, Owned, Ownership, Shape, beneath, chosen_default, record, strip
from toolkit_installer.engines.target import Handler
from toolkit_installer.errors import located
from toolkit_installer.settings import EngineSettings

_FILLED_IN = {"sandbox_mode": "podsandbox", "sandboxer": "podsandbox"}
"""What a daemon itself puts where nothing is said."""
COMMAND, FILE = "command", "file"
"""The words of `--config-source`; the third is FILE, `=` and a path."""
_USUAL = (COMMAND, FILE)
_NOTHING = "no runtime of runc's kind that is not ours"


class Sources(msgspec.Struct, frozen=True):
    """Where the handlers' settings may come from, beside the engine's own files.

    `asked`: the words of `--config-source`, none where nothing was asked for. `printed`: what the live daemon's binary
    prints, None if it was not asked, or does not say. `files`: the others by path, None for one that is not there.
    """

    asked: tuple[str, ...] = ()
    printed: Table | None = None
    files: Mapping[str, bytes | None] = msgspec.field(default_factory=dict)


class Candidate(msgspec.Struct, frozen=True):
    """The base runtime that one source has, {} for none. `why`: the reason in words, if that is so."""

    source: str
    table: Table
    why: str


def candidates(sources: Sources, effective: Table, plugin: str, toolkit_folder: str) -> list[Candidate]:
    """Return what the sources have, the first one first. `effective` is what the engine's own files say without us.

    Raises ConfigurationError, naming the file, for one that cannot be read as containerd's.
    """
    return [_candidate(source, sources, effective, plugin, toolkit_folder) for source in sources.asked or _USUAL]


def _candidate(source: str, sources: Sources, effective: Table, plugin: str, toolkit_folder: str) -> Candidate:
    if source == FILE:
        return Candidate(source, base_runtime(effective, plugin), f"containerd's own files have {_NOTHING}")
    if source == COMMAND:
        name = lookup(effective, shape(plugin).default)
        named = name if isinstance(name, str) and name else BUILT_IN_RUNTIME
        found = base_runtime_elsewhere(sources.printed or {}, named, toolkit_folder)
        silent = "no containerd runs whose binary prints its configuration"
        return Candidate(source, found, silent if sources.printed is None else f"what its binary prints has {_NOTHING}")
    path = source.partition("=")[2]
    content = sources.files.get(path)
    with located(path):
        document, _ = parse_checked(content or b"")
    found = base_runtime_elsewhere(document, None, toolkit_folder)
    return Candidate(source, found, f"{path} is not there" if content is None else f"{path} has {_NOTHING}")


def unused(sources: Sources, candidates: Sequence[Candidate]) -> list[str]:
    """Return a note for every source that was asked for, comes before the one that counts, and has nothing."""
    if not sources.asked:
        return []
    empty = itertools.takewhile(lambda each: not each.table, candidates)
    return [f"--config-source {each.source} is not used: {each.why}" for each in empty]


def chosen_base_runtime(candidates: Sequence[Candidate], effective: Table, plugin: str) -> Table:
    """Return the settings that the handlers get: those of the first source that has any.

    Where the file says the same, they are as the file spells them.
    """
    first = next((each.table for each in candidates if each.table), {})
    file = base_runtime(effective, plugin)
    return file if same(said(first), said(file)) else first


def base_runtime(document: Table, plugin: str, name: str | None = None) -> Table:
    """Return the runtime of a plugin's table whose settings the handlers get, {} where there is none.

    That is the runtime `name`, by default the table's own default one. One that is no runc at all (Kata, gVisor) is
    none: its options mean something else; runc's are taken then.
    """
    place = shape(plugin)
    runtimes = lookup(document, place.runtimes)
    known = runtimes if isinstance(runtimes, dict) else {}
    default = lookup(document, place.default) if name is None else name
    named = (known.get(each) for each in (default, BUILT_IN_RUNTIME) if isinstance(each, str))
    candidates = (legacy_entry(document, plugin), *named)
    return next((entry for entry in candidates if is_runc(entry)), {})


def legacy_entry(document: Table, plugin: str) -> Any:
    """Return the table that overrides the default runtime's name on containerd 1.x, None where there is none."""
    return lookup(document, legacy_default(plugin)) if lookup(document, legacy_type(plugin)) else None


def low_level(document: Table, plugin: str, built_in: str = BUILT_IN_RUNTIME) -> tuple[str, ...]:
    """Return what can run containers in the end, best first (`ownership.low_level`), as a plugin's table has it.

    `built_in`: what a runtime runs that names no executable.
    """
    return ownership.low_level(document, shape(plugin), legacy=legacy_entry(document, plugin), built_in=built_in)


def base_runtime_elsewhere(document: Table, name: str | None, toolkit_folder: str) -> Table:
    """Return the same from another document, such as what a daemon printed, whatever plugin it has the runtimes under.

    `name` is the default runtime's, None for that document's own. Never an entry of ours, and nothing that a daemon
    fills in by itself.
    """
    for plugin in PLUGINS:
        for each in (name, BUILT_IN_RUNTIME):
            entry = base_runtime(document, plugin, each)
            if entry and not beneath(executable(entry), toolkit_folder):
                told = said(entry)
                return told if isinstance(told, dict) else {}
    return {}


def said(value: Any) -> Any:
    """Return a printed runtime without what says nothing: empty and false values, and what the daemon fills in."""
    if not isinstance(value, dict):
        return value
    told = {key: said(each) for key, each in value.items()}
    return {key: each for key, each in told.items() if each not in ("", 0, [], {}) and each != _FILLED_IN.get(key, "")}


_GONE_FROM_2 = "io.containerd.runc.v1"
"""Deprecated since 1.4, removed in 2.0 (containerd, RELEASES.md)."""
NVIDIA_RUNTIME = "nvidia-container-runtime"
"""How the names of NVIDIA's runtimes begin, whoever installed them."""
_BUILT_IN: Table = {"runtime_type": DEFAULT_RUNTIME_TYPE}
_NOTHING_ASKED = EngineSettings()
_PLUGINS = "plugins"


class Part(msgspec.Struct, frozen=True):
    """What we put into one plugin's table of a file. `legacy`: as the default of containerd before 1.3.

    `built_in`: the engine's own runc is named too, as naming ours alone would make containerd 1.x forget it.
    `copied`: the operator's runtimes of an older name's table, which this one replaces where a daemon reads both.
    """

    plugin: str
    made: tuple[tuple[str, Table], ...]
    default: str | None
    copied: tuple[tuple[str, Table], ...] = ()
    built_in: bool = False
    legacy: bool = False
    cdi: bool = False


def entries(
    source: Table, plugin: str, handlers: Sequence[Handler], settings: EngineSettings = _NOTHING_ASKED
) -> tuple[tuple[str, Table], ...]:
    """Return each handler's runtime table: a copy of `source` with our executable, and what the settings ask for."""
    annotations = settings.container_annotations
    made = []
    for handler in handlers:
        entry = copy.deepcopy(source)
        kind = entry.get("runtime_type")
        readable = bool(kind) and not (plugin == RUNTIME and kind == _GONE_FROM_2)  # only a 2.x reads that table
        entry["runtime_type"] = settings.runtime_type or (kind if readable else DEFAULT_RUNTIME_TYPE)
        options = dict(entry.get("options", {}))
        asked = json.loads(settings.runtime_config_override)
        if isinstance(asked.get("options"), dict):
            entry = merged(entry, {key: value for key, value in asked.items() if key != "options"})
            asked = asked["options"]
        entry["options"] = {**merged(options, asked), "BinaryName": handler.executable}
        if plugin == SHORT:
            entry["options"]["Runtime"] = handler.executable
        if annotations:
            known_annotations = entry.get("container_annotations", [])
            entry["container_annotations"] = list(dict.fromkeys([*known_annotations, *annotations]))
        made.append((handler.name, entry))
    return tuple(made)


def built_in(plugin: str) -> Table:
    """Return how we name the engine's own runc: as 1.7 prints it, whose `sandbox_mode` newer names do not have."""
    return _BUILT_IN if plugin == RUNTIME else _BUILT_IN | {"sandbox_mode": "podsandbox"}


def with_us(base: bytes, parts: Sequence[Part], version: int | None = None) -> tuple[bytes, Ownership]:
    """Return `base` with the parts in it, and what of it is ours. `version`: the line that the file is to get.

    A handler is the table `runtimes.NAME` below the plugin's, with the executable as `options.BinaryName`.
    """
    document = toml_document.parse(base)
    changes: list[Change] = []
    if version is not None:
        changes.append(Set(VERSION, version))
    for part in parts:
        place = shape(part.plugin)
        if part.built_in:
            changes.append(Set((*place.runtimes, BUILT_IN_RUNTIME), built_in(part.plugin)))
        changes += [Set((*place.runtimes, name), entry) for name, entry in (*part.copied, *part.made)]
        if part.default is not None and part.legacy:
            changes.append(Set(legacy_default(part.plugin), dict(part.made)[part.default]))
        elif part.default is not None:
            changes.append(Set(place.default, part.default))
            if lookup(document, legacy_type(part.plugin)):
                changes.append(Set(legacy_type(part.plugin), ""))  # it would override the name
        if part.cdi:
            changes.append(Set(enable_cdi(part.plugin), True))  # noqa: FBT003  # the value of a key
    return toml_document.edit(base, changes, marker=MARKER), record(document, changes)


def chosen_defaults(content: bytes, ownership: Ownership, handlers: Collection[str]) -> list[Change]:
    """Return the changes that make handlers of ours the default as somebody else did. Raises DocumentError."""
    document = toml_document.parse(content)
    places = [shape(plugin) for plugin in PLUGINS]
    chosen = {place.default: chosen_default(document, place, ownership, handlers) for place in places}
    return [Set(path, name) for path, name in chosen.items() if name is not None]


def with_import(base: bytes, path: str) -> tuple[bytes, Ownership]:
    """Return `base` with `path` imported, and what of it is ours; unchanged if it is imported already."""
    document = toml_document.parse(base)
    imports = document.get("imports", [])
    if path in imports:
        return base, Ownership()
    item = Owned(IMPORTS, path, lookup(document, IMPORTS), item=True)
    return toml_document.edit(base, [Set(IMPORTS, [*imports, path])], marker=MARKER), Ownership((item,))


def without_us(
    content: bytes,
    ownership: Ownership,
    toolkit_folder: str,
    before: bytes | None = None,
    handlers: Collection[str] = (),
) -> tuple[bytes, tuple[str, ...]]:
    """Return the text without what is ours, and what others did to ours. `before` is the text from before us.

    `handlers` are ours, in whatever of containerd's files.

    Raises as `parse_checked` does for a file that names our toolkit folder.
    """
    document = toml_document.parse(content)
    version = document.get("version")
    known = version is None or (type(version) is int and version in CRI_PLUGIN)
    if toolkit_folder.encode() in content or known:
        parse_checked(content)
    else:
        # somebody wrote it anew, for another containerd: all that can be ours in it is an import
        ownership = Ownership(tuple(key for key in ownership.keys if key.item))
    ownership, original = _renamed(document, ownership, toml_document.parse(before or b""))
    changes: list[Change] = []
    left: list[str] = []
    for plugin in PLUGINS:
        made = _without_legacy(document, plugin, ownership, toolkit_folder)
        if made and ownership.keys:
            goes = "it goes" if isinstance(made[0], Remove) else "the old one is back, with what was added to it"
            left.append(f"table default_runtime: somebody else changed it, but it runs our executable: {goes}")
        document = apply(document, tuple(made))
        stripped, theirs = strip(document, shape(plugin), ownership, toolkit_folder, original, handlers)
        made += stripped
        left += theirs
        document = apply(document, stripped)
        kept, notes = _with_built_in(document, shape(plugin), ownership)
        document = apply(document, tuple(kept))
        changes += [*made, *kept]
        left += notes
    gone, notes = _without_version(document, ownership)
    text = toml_document.unmarked(toml_document.edit(content, [*changes, *gone], marker=MARKER), MARKER)
    if gone and not text.strip():
        text = b""
    return text, (*dict.fromkeys(left), *notes)


def _renamed(document: Table, ownership: Ownership, original: Table) -> tuple[Ownership, Table]:
    """Return what is ours, and what the file said before us, under the name that the CRI's table has by now.

    Somebody who writes the file for a newer containerd renames the table.
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


def _without_legacy(document: Table, plugin: str, ownership: Ownership, toolkit_folder: str) -> list[Change]:
    """Return the change that removes our default of containerd before 1.3, also where somebody added to it."""
    path = legacy_default(plugin)
    owned = ownership.of(path)
    entry = lookup(document, path)
    if not beneath(executable(entry), toolkit_folder) or (owned is not None and same(entry, owned.ours)):
        return []  # no other's, or `strip` has it
    return [
        Remove(path) if owned is None or owned.prior is ABSENT else Set(path, _merged(owned.prior, owned.ours, entry))
    ]


def _merged(prior: Any, ours: Any, now: Any) -> Any:
    """Return a table as it was before ours replaced it, and with what somebody has added to ours since."""
    if not (isinstance(prior, dict) and isinstance(ours, dict) and isinstance(now, dict)):
        return prior
    added = {key: value for key, value in now.items() if key not in ours}
    return {**{key: _merged(value, ours.get(key), now.get(key)) for key, value in prior.items()}, **added}


def _with_built_in(document: Table, place: Shape, ownership: Ownership) -> tuple[list[Change], list[str]]:
    """Keep the built-in runtime that we named if others rely on it by now.

    Somebody who added a runtime of their own beside ours saw runc named there; containerd 1.x would lose runc
    with our line, and every ordinary pod with it.
    """
    owned = ownership.of((*place.runtimes, BUILT_IN_RUNTIME))
    runtimes = lookup(document, place.runtimes)
    default = lookup(document, place.default)
    needed = default is ABSENT or default == BUILT_IN_RUNTIME
    if owned is None or not isinstance(runtimes, dict) or not runtimes or not needed or BUILT_IN_RUNTIME in runtimes:
        return [], []
    note = f"runtime {BUILT_IN_RUNTIME!r}: the runtimes that others added need it beside them"
    return [Set(owned.path, owned.ours)], [note]


_OF_VERSION_2 = ("plugins", "disabled_plugins", "required_plugins", "imports")
"""What reads otherwise in a file of version 1."""


def _without_version(document: Table, ownership: Ownership) -> tuple[list[Change], list[str]]:
    """Drop the version line that we wrote, unless what others wrote since needs it.

    A file without that line is one of version 1, and says the same wherever it speaks of no plugin.
    """
    owned = ownership.of(VERSION)
    if owned is None or owned.prior is not ABSENT or not same(document.get("version"), owned.ours):
        return [], []
    needed = [key for key in _OF_VERSION_2 if document.get(key)]
    if needed and owned.ours != 1:
        return [], [f"the version line: {', '.join(needed)}, which others wrote, would mean something else without it"]
    return [Remove(VERSION)], []


def ours(content: bytes, toolkit_folder: str) -> bool:
    """Tell whether any runtime of the file lies in our toolkit folder. Raises DocumentError."""
    document = toml_document.parse(content)
    return any(ownership_of.ours(document, shape(plugin), toolkit_folder) for plugin in PLUGINS)


def ours_alone(content: bytes, toolkit_folder: str) -> bool:
    """Tell whether a runtime of the file lies in our toolkit folder, and no NVIDIA runtime of it lies elsewhere.

    nvidia-ctk copies all of config.toml's runtimes into its drop-in, ours among them, beside the one that it registers.
    Raises DocumentError.
    """
    return ours(content, toolkit_folder) and not has_nvidia_elsewhere(content, toolkit_folder)


def has_nvidia_elsewhere(content: bytes, toolkit_folder: str) -> bool:
    """Tell whether an NVIDIA runtime of the file lies elsewhere than in our toolkit folder. Raises DocumentError."""
    document = toml_document.parse(content)
    paths = [executable(entry) for plugin in PLUGINS for entry in shape(plugin).entries(document).values()]
    nvidia = [path for path in paths if path is not None and posixpath.basename(path).startswith(NVIDIA_RUNTIME)]
    return not all(beneath(path, toolkit_folder) for path in nvidia)


def recognised(content: bytes, *, whole: bool) -> Ownership:
    """Return what is ours in a file though no receipt says so: the built-in runtime, if it stands in a block of ours.

    Whoever wrote the block also wrote the tables around it, and the version if the file was `whole` ours: if nothing
    else is in it, as nobody knows who wrote it above what others have there. Raises DocumentError.
    """
    marked = toml_document.marked(content, MARKER)
    if not marked:
        return Ownership()
    document = toml_document.parse(content)
    keys: list[Owned] = []
    created: list[Owned] = []
    for plugin in PLUGINS:
        path = (*shape(plugin).runtimes, BUILT_IN_RUNTIME)
        named = built_in(plugin)
        if path in marked and same(lookup(document, path), named):
            keys.append(Owned(path, named))
        if any(table[:2] == path[:2] for table in marked):
            created += ownership_of.parents(path)
    if whole and "version" in document and document.keys() <= {"version", "plugins"}:
        keys.append(Owned(VERSION, document["version"]))
    return Ownership(tuple(keys), tuple({table.path: table for table in created}.values()))


def imports_of(content: bytes, paths: Sequence[str]) -> Ownership:
    """Return the literal imports of any of `paths`, as ours. Raises DocumentError."""
    elements = toml_document.parse(content).get("imports", [])
    found = [each for each in elements if any(same_import(each, path) for path in paths)]
    return Ownership(tuple(Owned(IMPORTS, each, item=True) for each in dict.fromkeys(found)))
