"""What is added to a containerd whose files a distribution generates: runtimes in a file of our own. Pure.

The generated file is read, and never written; whoever reads our file merges it with that one, table by table.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from toolkit_installer.documents import toml_document
from toolkit_installer.documents.changes import Change, DocumentError, Path, Set, Table, apply, lookup
from toolkit_installer.engines import ownership as ownership_of
from toolkit_installer.engines.base import Memory
from toolkit_installer.engines.ownership import Owned, Ownership, Shape, beneath, record, strip
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.toolkit.handlers import Handler

MARKER = "Added by toolkit-installer, which removes it when it stops."
PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
"""The plugin that owns the runtimes, by the version of the file (containerd, docs/PLUGINS.md and its migrations)."""
RUNC = "runc"
RUNTIME_TYPE = "io.containerd.runc.v2"
_RUNC_TYPES = "io.containerd.runc."
_VERSION: Path = ("version",)


@dataclasses.dataclass(frozen=True)
class Addition:
    """What is to be registered: the runtimes' tables by name, the default's name (None: it stays), CDI turned on."""

    entries: tuple[tuple[str, Table], ...]
    default: str | None
    cdi: bool = False


def version_of(document: Table) -> int:
    """Return the version of a file; one that does not say is of version 1. Raises ConfigurationError for others."""
    version = document.get("version", 1)
    if type(version) is not int or version not in PLUGINS:
        raise ConfigurationError(
            f"is of version {version!r}; versions {min(PLUGINS)} to {max(PLUGINS)} are known",
            hint="use an installer that is as new as the distribution",
        )
    return version


def shape(version: int) -> Shape:
    """Return where a file of this version keeps its runtimes."""
    table = ("plugins", PLUGINS[version], "containerd")
    return Shape((*table, "runtimes"), (*table, "default_runtime_name"), executable, (enable_cdi(version),))


def enable_cdi(version: int) -> Path:
    """Return the key that turns CDI on. containerd 1.7 has it off, 2.0 and 2.1 on, and newer ones do not know it."""
    return ("plugins", PLUGINS[version], "enable_cdi")


def executable(entry: Any) -> str | None:
    """Return the program that a runtime's table names, None where it names none."""
    options = entry.get("options") if isinstance(entry, dict) else None
    path = options.get("BinaryName") if isinstance(options, dict) else None
    return path if isinstance(path, str) else None


def runtimes(document: Table, version: int) -> Table:
    """Return the runtimes' tables of a document, by name."""
    found = lookup(document, shape(version).runtimes)
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)} if isinstance(found, dict) else {}


def without_ours(document: Table, version: int, toolkit_folder: str) -> Table:
    """Return what a document means without the runtimes of our toolkit, whoever wrote them there."""
    return apply(document, strip(document, shape(version), Ownership(), toolkit_folder).changes)


def entries(
    document: Table,
    version: int,
    handlers: Sequence[Handler],
    runtime_type: str | None,
    annotations: Sequence[str] = (),
    override: Table | None = None,
) -> tuple[tuple[str, Table], ...]:
    """Return each handler's table: a copy of the default runtime's in `document`, or of runc's, with our executable.

    `override`: options that win over the copied ones. `document`: what the engine reads without us. A default that is
    no runc at all (Kata, gVisor) lends nothing.
    """
    known = runtimes(document, version)
    default = lookup(document, shape(version).default)
    lenders = (known.get(name) for name in (default, RUNC) if isinstance(name, str))
    source: Table = next((entry for entry in lenders if entry is not None and _is_runc(entry)), {})
    made = []
    for handler in handlers:
        entry = copy.deepcopy(source)
        entry["runtime_type"] = runtime_type or entry.get("runtime_type") or RUNTIME_TYPE
        entry["options"] = {**entry.get("options", {}), **(override or {}), "BinaryName": handler.executable}
        if annotations:
            entry["container_annotations"] = list(
                dict.fromkeys([*entry.get("container_annotations", []), *annotations])
            )
        made.append((handler.name, entry))
    return tuple(made)


def _is_runc(entry: Table) -> bool:
    kind = entry.get("runtime_type") or RUNTIME_TYPE
    return isinstance(kind, str) and kind.startswith(_RUNC_TYPES)


def changes(version: int, addition: Addition) -> list[Change]:
    """Return the addition as changes to a document of this version."""
    place = shape(version)
    made: list[Change] = [Set((*place.runtimes, name), entry) for name, entry in addition.entries]
    if addition.default is not None:
        made.append(Set(place.default, addition.default))
    if addition.cdi:
        made.append(Set(enable_cdi(version), value=True))
    return made


def with_us(base: bytes, version: int, addition: Addition) -> tuple[bytes, Ownership]:
    """Return a drop-in with the addition, and what of it is ours. Raises ConfigurationError for one that is not fit."""
    document = toml_document.parse(base)
    made: list[Change] = [] if document else [Set(_VERSION, version)]
    if document and version_of(document) != version:
        raise ConfigurationError(
            f"is of version {document.get('version', 1)!r}, and the file that imports it of version {version}",
            line=toml_document.line_of(base, _VERSION) or 1,
            hint="move it away, or write it for that version",
        )
    made += changes(version, addition)
    return toml_document.edit(base, made, marker=MARKER), record(document, made)


def without_us(
    content: bytes, memory: Memory, toolkit_folder: str, *, whole: bool
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return a file that somebody may have edited without us, None if nothing else is left, and what was found.

    `whole`: it is a drop-in, which was made for us unless something else is in it.
    Raises DocumentError, ConfigurationError.
    """
    document = toml_document.parse(content)
    version = version_of(document)
    marked = bool(toml_document.marked(content, MARKER))
    if whole and not marked and not memory.written:
        # an older installer's, whole: it wrote nothing of anybody else's into this file
        own = runtimes(document, version).values()
        if any(beneath(executable(entry), toolkit_folder) for entry in own):
            return None, ()
    ownership = memory.ownership
    if whole and marked and not ownership.keys:
        place = shape(version)
        ownership = Ownership((Owned(_VERSION, version),), ownership_of.parents((*place.runtimes, RUNC)))
    before = _parsed(memory.before)
    stripped = strip(document, shape(version), ownership, toolkit_folder, before)
    text = toml_document.edit(content, stripped.changes, marker=MARKER)
    owned = ownership.of(_VERSION)
    if whole and memory.before is None and owned is not None and set(toml_document.parse(text)) <= {"version"}:
        return None, stripped.left
    return text, stripped.left


def _parsed(content: bytes | None) -> Table:
    try:
        return toml_document.parse(content or b"")
    except DocumentError:
        return {}


def low_level(document: Table, version: int) -> tuple[str, ...]:
    """Return the executables that the engine itself runs containers with, as far as the document names them."""
    return ownership_of.low_level(document, shape(version))


def disagrees(document: Table, version: int, addition: Addition) -> str | None:
    """Return the name of a runtime that somebody else has under a name of ours, and that runs something else."""
    for name, entry in addition.entries:
        other = runtimes(document, version).get(name)
        if other is not None and executable(other) not in (None, executable(entry)):
            return name
    return None
