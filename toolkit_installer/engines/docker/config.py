"""docker's daemon.json: what it says with us and without us. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from toolkit_installer.documents import json_document
from toolkit_installer.documents.changes import ABSENT, Change, Path, Set, Table, lookup
from toolkit_installer.engines.listed import CgroupSetting, ListedRuntime
from toolkit_installer.engines.ownership import (
    BUILT_IN,
    Owned,
    Ownership,
    Shape,
    chosen_default,
    ours,
    record,
    strip,
)
from toolkit_installer.engines.target import Handler
from toolkit_installer.errors import ConfigurationError

RUNTIMES: Path = ("runtimes",)
DEFAULT: Path = ("default-runtime",)
FEATURES: Path = ("features",)
CDI: Path = (*FEATURES, "cdi")
"""Whether containers get devices by CDI: dockerd 25.0 and later, on where nothing is said from 28.2 on."""
_RUNC_TYPES = "io.containerd.runc."
"""How the types of containerd's shims begin that run an OCI runtime of runc's kind."""

CONFLICTING_FLAGS = {
    "--add-runtime": "a reload takes away what it adds (tried on 20.10, 26 and 28)",
    "--default-runtime": "the same directive in this file would stop its next start",
}
"""Flags of dockerd that do not go together with what we write, and why."""


def _executable(entry: Any) -> str | None:
    """Return what a runtime runs; one with a `runtimeType` names it as containerd's shim does."""
    path = entry.get("path") or lookup(entry, ("options", "BinaryName")) if isinstance(entry, dict) else None
    return path if isinstance(path, str) else None


def _is_low_level(entry: Any) -> bool:
    """Tell whether what a runtime runs is of runc's kind: a `path` is, and a `runtimeType` if it is one of runc's."""
    return isinstance(entry, dict) and str(entry.get("runtimeType") or _RUNC_TYPES).startswith(_RUNC_TYPES)


SHAPE = Shape(RUNTIMES, DEFAULT, _executable, others=(CDI,), is_low_level=_is_low_level, reset=BUILT_IN)


def parse_checked(content: bytes) -> Table:
    """Parse daemon.json and check the types of what we touch. Raises DocumentError, ConfigurationError with a line."""
    document = json_document.parse(content)
    for path in (RUNTIMES, DEFAULT, FEATURES):
        _refuse_other_case(document, path, content)
    _check(document, RUNTIMES, dict, content)
    for name, entry in (document.get("runtimes") or {}).items():
        _check(document, (*RUNTIMES, name), dict, content, spared=())
        _refuse_other_case(document, (*RUNTIMES, name, "path"), content)
        if "path" in entry:
            _check(document, (*RUNTIMES, name, "path"), str, content, spared=())
    _check(document, DEFAULT, str, content)
    return document


def _refuse_other_case(document: Table, path: Path, content: bytes) -> None:
    """Raise ConfigurationError for a key that dockerd takes for the one at `path`: it ignores case.

    Tried on 20.10, 26 and 28: they merge an empty "Runtimes" with "runtimes", and a "Path" replaces a "path".
    """
    *folder, key = path
    for other in lookup(document, tuple(folder)) if folder else document:
        if other != key and other.lower() == key:
            raise ConfigurationError(
                f'"{other}" is "{key}" to dockerd, which ignores case',
                line=json_document.line_of(content, (*folder, other)),
                hint=f'write "{key}", once: merge the two where both are there',
            )


_KINDS = {dict: "an object", str: "a string", bool: "true or false"}


def _check(document: Table, path: Path, kind: type, content: bytes, spared: tuple[Any, ...] = (ABSENT, None)) -> None:
    """Raise ConfigurationError for a value that is there and of another type. `spared`: what counts as not there."""
    value = lookup(document, path)
    if value not in spared and not isinstance(value, kind):
        raise ConfigurationError(
            f'"{".".join(path)}" must be {_KINDS[kind]}',
            line=json_document.line_of(content, path),
            hint="correct the file; dockerd would refuse it too",
        )


def without_us(
    content: bytes,
    ownership: Ownership,
    toolkit_folder: str,
    before: bytes | None = None,
    handlers: Collection[str] = (),
) -> tuple[bytes, tuple[str, ...]]:
    """Return the text without what is ours, and what others did to ours. `before` is the text from before us."""
    document = parse_checked(content)
    changes, left = strip(document, SHAPE, ownership, toolkit_folder, json_document.parse(before or b""), handlers)
    return json_document.edit(content, changes), left


def recognised(content: bytes, toolkit_folder: str) -> Ownership:
    """Return what is ours though no receipt says so: beside our runtimes, the map that was made for them.

    Raises as `parse_checked` does.
    """
    if not ours(parse_checked(content), SHAPE, toolkit_folder):
        return Ownership()
    return Ownership(created=(Owned(RUNTIMES, {}),))


def with_us(
    base: bytes, handlers: Sequence[Handler], default: str | None, *, cdi: bool = False
) -> tuple[bytes, Ownership]:
    """Return `base` with the handlers registered (`default` as the default, CDI on), and what of it is ours.

    Raises as `parse_checked` does.
    """
    document = parse_checked(base)
    changes: list[Change] = [
        Set((*RUNTIMES, handler.name), {"path": handler.executable, "args": []}) for handler in handlers
    ]
    if default is not None:
        changes.append(Set(DEFAULT, default))
    if cdi:
        _check(document, FEATURES, dict, base)
        _check(document, CDI, bool, base)
        changes.append(Set(CDI, value=True))
    ownership = record(document, changes)
    tables = (RUNTIMES, FEATURES) if cdi else (RUNTIMES,)
    changes[:0] = [Set(table, {}) for table in tables if lookup(document, table) is None]  # "runtimes": null
    return json_document.edit(base, changes), ownership


def with_chosen_default(text: bytes, present: bytes, ownership: Ownership, handlers: Collection[str]) -> bytes:
    """Return `text` with the default that somebody else chose in `present`, if that is one of our handlers.

    It is none of ours, and goes with the handler. Raises DocumentError.
    """
    chosen = chosen_default(json_document.parse(present), SHAPE, ownership, handlers)
    return text if chosen is None else json_document.edit(text, [Set(DEFAULT, chosen)])


def told_when_gone(content: bytes, base: bytes) -> tuple[str, ...]:
    """Return what there is to say once `base` stands where `content` did."""
    before, after = (lookup(json_document.parse(text), CDI) for text in (content, base))
    if before is True and after is not True:
        return ("a dockerd that was restarted with features.cdi keeps CDI on until its next restart",)
    return ()


def explicit(content: bytes) -> bytes:
    """Return the text with `runtimes` and `default-runtime` named in any case.

    A SIGHUP does not take back keys that are gone from the file, and one on a file with only one of the two has
    crashed dockerd 20.10: it is only ever signalled on a file that names both.
    """
    document = parse_checked(content)
    changes: list[Change] = []
    if document.get("runtimes") is None:
        changes.append(Set(RUNTIMES, {}))
    if not document.get("default-runtime"):
        changes.append(Set(DEFAULT, BUILT_IN))
    return json_document.edit(content, changes)


def is_explicit(content: bytes) -> bool:
    """Tell whether the text names both keys that a signal takes over."""
    document = json_document.parse(content)
    return document.get("runtimes") is not None and bool(document.get("default-runtime"))


def served(content: bytes) -> tuple[dict[str, str], str]:
    """Return the runtimes (name to path) and the default that a dockerd with this file should show."""
    document = json_document.parse(content)
    runtimes = document.get("runtimes") or {}
    paths = {name: path for name, entry in runtimes.items() if (path := _executable(entry)) is not None}
    return paths, document.get("default-runtime") or BUILT_IN


def flag_conflicts(arguments: Sequence[str]) -> list[str]:
    """Return the flags on dockerd's command line that collide with the keys that we write."""
    return [flag for flag in CONFLICTING_FLAGS if any(word.partition("=")[0] == flag for word in arguments)]


def listed(files: Sequence[tuple[str, bytes]]) -> list[ListedRuntime]:
    """Return the runtimes of daemon.json with their lines. Raises ConfigurationError."""
    found = []
    for path, content in files:
        document = parse_checked(content)
        default = lookup(document, DEFAULT)
        for name, entry in SHAPE.entries(document).items():
            line = json_document.line_of(content, (*RUNTIMES, name))
            found.append(ListedRuntime(name, SHAPE.executable(entry), path, line, default=name == default))
    return found


def cgroup_driver(files: Sequence[tuple[str, bytes]]) -> CgroupSetting | None:
    """Return the cgroup driver that daemon.json names. Raises ConfigurationError."""
    for path, content in files:
        options = lookup(json_document.parse(content), _OPTIONS)
        for option in options if isinstance(options, list) else ():
            if isinstance(option, str) and option.startswith(_CGROUP_OPTION):
                return CgroupSetting(
                    option.removeprefix(_CGROUP_OPTION), path, json_document.line_of(content, _OPTIONS)
                )
    return None


_OPTIONS: Path = ("exec-opts",)
_CGROUP_OPTION = "native.cgroupdriver="
