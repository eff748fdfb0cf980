"""containerd's config.toml and drop-ins, versions 2 and 3: what they say with us and without us. Pure."""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Sequence
from typing import Any

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import ABSENT, Change, Path, Remove, Set, Table, lookup, same
from toolkit_installer.engines import ownership as ownership_of
from toolkit_installer.engines.ownership import Owned, Ownership, Shape, record, strip
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.toolkit.handlers import Handler

MARKER = "Added by toolkit-installer, which removes it when it stops."

CRI_PLUGIN = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
"""The plugin that owns the runtimes, by the file's version."""

BUILT_IN_RUNTIME = "runc"
DEFAULT_RUNTIME_TYPE = "io.containerd.runc.v2"
_RUNC_TYPES = "io.containerd.runc."
"""Runtime types whose options have a BinaryName."""

VERSION: Path = ("version",)
IMPORTS: Path = ("imports",)


def containerd_table(version: int) -> Path:
    """Return the path of the table that holds `runtimes` and `default_runtime_name`."""
    return ("plugins", CRI_PLUGIN[version], "containerd")


def shape(version: int) -> Shape:
    """Return where a file of this version keeps its runtimes."""
    table = containerd_table(version)
    return Shape(
        (*table, "runtimes"), (*table, "default_runtime_name"), _executable, (_legacy_type(version),), same_import
    )


def _legacy_type(version: int) -> Path:
    """Return the key that overrides `default_runtime_name` on containerd 1.x if it says anything."""
    return (*containerd_table(version), "default_runtime", "runtime_type")


def _executable(entry: Any) -> str | None:
    options = entry.get("options") if isinstance(entry, dict) else None
    path = options.get("BinaryName") if isinstance(options, dict) else None
    return path if isinstance(path, str) else None


def same_import(left: Any, right: Any) -> bool:
    """Tell whether two elements of `imports` name one file: one of them may be relative to config.toml's folder.

    Where that lies is not asked: in the installer's mount namespace it may be elsewhere than on the node.
    """
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    short, long = sorted((posixpath.normpath(left), posixpath.normpath(right)), key=len)
    return short == long or (not short.startswith("/") and long.endswith(f"/{short}"))


def check(content: bytes, unset_version: int) -> tuple[Table, int]:
    """Parse a file and check the types of what we touch; return its meaning and its version.

    A file that says nothing at all counts as one of `unset_version`.
    Raises DocumentError, ConfigurationError with a line.
    """
    document = toml_document.parse(content)
    version = _version(document, content, unset_version)
    table = containerd_table(version)
    for length in range(1, len(table) + 1):
        _require(document, table[:length], dict, "a table", content)
    runtimes = _require(document, (*table, "runtimes"), dict, "a table", content)
    for name in runtimes or {}:
        _require(document, (*table, "runtimes", name), dict, "a table", content)
        _require(document, (*table, "runtimes", name, "runtime_type"), str, "a string", content)
        _require(document, (*table, "runtimes", name, "container_annotations"), list, "a list", content)
        _require(document, (*table, "runtimes", name, "options"), dict, "a table", content)
        _require(document, (*table, "runtimes", name, "options", "BinaryName"), str, "a string", content)
    _require(document, (*table, "default_runtime_name"), str, "a string", content)
    _require(document, _legacy_type(version)[:-1], dict, "a table", content)
    _require(document, _legacy_type(version), str, "a string", content)
    imports = _require(document, IMPORTS, list, "a list of paths", content)
    if any(not isinstance(element, str) for element in imports or []):
        raise _wrong(content, IMPORTS, "must be a list of paths")
    return document, version


def _version(document: Table, content: bytes, unset_version: int) -> int:
    version = document.get("version", ABSENT)
    if version is ABSENT:
        if not document:
            return unset_version
        raise ConfigurationError(
            "has no `version` line, which makes it a version 1 file; versions 2 and 3 are supported",
            line=1,
            hint="migrate it with `containerd config migrate`, or add the version that its tables are written for",
        )
    if type(version) is not int:
        raise _wrong(content, VERSION, "must be a number")
    if version not in CRI_PLUGIN:
        raise ConfigurationError(
            f"is of version {version}; versions 2 and 3 are supported",
            line=toml_document.line_of(content, VERSION),
            hint="migrate it with `containerd config migrate`",
        )
    return version


def _is_known(document: Table) -> bool:
    """Tell whether a file is of a version that we edit, or says nothing at all."""
    return not document or (type(document.get("version")) is int and document["version"] in CRI_PLUGIN)


def _require(document: Table, path: Path, kind: type, name: str, content: bytes) -> Any:
    """Return the value at `path`, None where it is absent; raise ConfigurationError if it is of another type."""
    value = lookup(document, path)
    if value is ABSENT:
        return None
    if type(value) is not kind:
        raise _wrong(content, path, f"must be {name}")
    return value


def _wrong(content: bytes, path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{'.'.join(path)} {what}",
        line=toml_document.line_of(content, path),
        hint="correct the file; containerd would refuse it too",
    )


def defines_cri(content: bytes) -> bool:
    """Tell whether a file configures the CRI plugin under any version's name."""
    plugins = toml_document.parse(content).get("plugins")
    return isinstance(plugins, dict) and any(name in plugins for name in (*CRI_PLUGIN.values(), "cri"))


def entries(
    effective: Table,
    version: int,
    handlers: Sequence[Handler],
    runtime_type: str | None,
    annotations: Sequence[str] = (),
) -> list[tuple[str, Table]]:
    """Return each handler's runtime table: a copy of the default runtime's, with our executable.

    `annotations` are patterns of container annotations that the runtime is to see as well.

    `effective` is what the engine reads without us. A default runtime that is no runc at all (Kata, gVisor) lends
    nothing: its options mean something else; runc's are taken then.
    """
    place = shape(version)
    runtimes = lookup(effective, place.runtimes)
    known = runtimes if isinstance(runtimes, dict) else {}
    default = lookup(effective, place.default)
    legacy = lookup(effective, _legacy_type(version)[:-1]) if lookup(effective, _legacy_type(version)) else None
    candidates = (legacy, *(known.get(name) for name in (default, BUILT_IN_RUNTIME) if isinstance(name, str)))
    source = next((entry for entry in candidates if isinstance(entry, dict) and _is_runc(entry)), {})
    made = []
    for handler in handlers:
        entry = copy.deepcopy(source)
        entry["runtime_type"] = runtime_type or entry.get("runtime_type") or DEFAULT_RUNTIME_TYPE
        entry["options"] = {**entry.get("options", {}), "BinaryName": handler.executable}
        if annotations:
            known_annotations = entry.get("container_annotations", [])
            entry["container_annotations"] = list(dict.fromkeys([*known_annotations, *annotations]))
        made.append((handler.name, entry))
    return made


def _is_runc(entry: Table) -> bool:
    kind = entry.get("runtime_type") or DEFAULT_RUNTIME_TYPE
    return isinstance(kind, str) and kind.startswith(_RUNC_TYPES)


def with_us(
    base: bytes, version: int, made: Sequence[tuple[str, Table]], default: str | None, effective: Table
) -> tuple[bytes, Ownership]:
    """Return `base` with the runtimes registered (and `default` as the default), and what of it is ours.

    `effective` is what the engine reads without us: where that has no runtimes map, naming ours would make
    containerd 1.x forget its built-in runc, so runc is named as well.
    """
    document = toml_document.parse(base)
    place = shape(version)
    changes: list[Change] = []
    if not document:
        changes.append(Set(VERSION, version))
    if lookup(effective, place.runtimes) is ABSENT:
        changes.append(Set((*place.runtimes, BUILT_IN_RUNTIME), {"runtime_type": DEFAULT_RUNTIME_TYPE}))
    changes += [Set((*place.runtimes, name), entry) for name, entry in made]
    if default is not None:
        changes.append(Set(place.default, default))
        if lookup(document, _legacy_type(version)):
            changes.append(Set(_legacy_type(version), ""))  # it would override the name
    return toml_document.edit(base, changes, marker=MARKER), record(document, changes)


def with_import(base: bytes, version: int, path: str) -> tuple[bytes, Ownership]:
    """Return `base` with `path` imported, and what of it is ours; unchanged if it is imported already."""
    document = toml_document.parse(base)
    imports = document.get("imports", [])
    if path in imports:
        return base, Ownership()
    changes: list[Change] = []
    if not document:
        changes.append(Set(VERSION, version))
    ownership = record(document, changes)
    changes.append(Set(IMPORTS, [*imports, path]))
    item = Owned(IMPORTS, path, lookup(document, IMPORTS), item=True)
    return toml_document.edit(base, changes, marker=MARKER), Ownership((*ownership.keys, item), ownership.created)


def without_us(
    content: bytes, ownership: Ownership, toolkit_folder: str, before: bytes | None = None
) -> tuple[bytes, tuple[str, ...]]:
    """Return the text without what is ours, and what others did to ours. `before` is the text from before us."""
    if toolkit_folder.encode() not in content and not _is_known(toml_document.parse(content)):
        # somebody wrote it anew, for another containerd: all that can be ours in it is an import
        ownership = Ownership(tuple(key for key in ownership.keys if key.item))
        document, version = toml_document.parse(content), 2
    else:
        document, version = check(content, unset_version=2)
    place = shape(version)
    stripped = strip(document, place, ownership, toolkit_folder, toml_document.parse(before or b""))
    text = toml_document.edit(content, stripped.changes, marker=MARKER)
    text, kept = _without_built_in(text, place, ownership)
    return _without_version(text, ownership), (*stripped.left, *kept)


def _without_built_in(content: bytes, place: Shape, ownership: Ownership) -> tuple[bytes, tuple[str, ...]]:
    """Keep the built-in runtime that we named if others rely on it by now.

    Somebody who added a runtime of their own beside ours saw runc named there; containerd 1.x would lose runc
    with our line, and every ordinary pod with it.
    """
    owned = ownership.of((*place.runtimes, BUILT_IN_RUNTIME))
    document = toml_document.parse(content)
    runtimes = lookup(document, place.runtimes)
    default = lookup(document, place.default)
    needed = default is ABSENT or default == BUILT_IN_RUNTIME
    if owned is None or not isinstance(runtimes, dict) or not runtimes or not needed or BUILT_IN_RUNTIME in runtimes:
        return content, ()
    kept = toml_document.edit(content, [Set(owned.path, owned.ours)], marker=MARKER)
    return kept, (f"runtime {BUILT_IN_RUNTIME!r}: the runtimes that others added need it beside them",)


def _without_version(content: bytes, ownership: Ownership) -> bytes:
    """Drop the version line that we wrote if nothing else is left in the file."""
    owned = ownership.of(VERSION)
    document = toml_document.parse(content)
    if owned is None or not same(document, {"version": owned.ours}):
        return content
    rest = toml_document.edit(content, [Remove(VERSION)], marker=MARKER)
    return rest if rest.strip() else b""


def ours(content: bytes, toolkit_folder: str) -> bool:
    """Tell whether any runtime of the file lies in our toolkit folder. Raises as `check` does."""
    document, version = check(content, unset_version=2)
    return ownership_of.ours(document, shape(version), toolkit_folder)


def is_marked(content: bytes) -> bool:
    """Tell whether the file has a block of ours. Raises DocumentError."""
    return bool(toml_document.marked(content, MARKER))


def recognised(content: bytes, *, whole: bool) -> Ownership:
    """Return what is ours in a file though no receipt says so: the built-in runtime, if it stands in a block of ours.

    Whoever wrote the block also wrote the tables around it, and the version if the file was `whole` ours.
    Raises as `check` does.
    """
    marked = toml_document.marked(content, MARKER)
    if not marked:
        return Ownership()
    document, version = check(content, unset_version=2)
    path = (*shape(version).runtimes, BUILT_IN_RUNTIME)
    entry = {"runtime_type": DEFAULT_RUNTIME_TYPE}
    keys = [Owned(path, entry)] if path in marked and same(lookup(document, path), entry) else []
    if whole:
        keys.append(Owned(VERSION, version))
    return Ownership(tuple(keys), ownership_of.parents(path))


def imports_of(content: bytes, paths: Sequence[str]) -> Ownership:
    """Return the literal imports of any of `paths`, as ours. Raises DocumentError."""
    elements = toml_document.parse(content).get("imports", [])
    found = [each for each in elements if any(same_import(each, path) for path in paths)]
    return Ownership(tuple(Owned(IMPORTS, each, item=True) for each in dict.fromkeys(found)))


def merged(base: Table, over: Table) -> Table:
    """Return what containerd 2.1 and later make of a file and one that it imports: tables merge, values replace."""
    result = dict(base)
    for key, value in over.items():
        current = result.get(key)
        result[key] = merged(current, value) if isinstance(current, dict) and isinstance(value, dict) else value
    return result


def with_default_imports(content: bytes) -> bytes:
    """Return a config.toml that we create with the import that containerd 2.2 and later has without any file."""
    return toml_document.edit(content, [Set(IMPORTS, ["/etc/containerd/conf.d/*.toml"])], marker=MARKER)
