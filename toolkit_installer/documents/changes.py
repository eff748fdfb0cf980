"""A change to a configuration document, independent of its syntax.

The digest by which a content is known: of files that were written, and of those that stood there before. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from toolkit_installer.errors import ConfigurationError, InstallerError

Path = tuple[str, ...]
"""The keys that lead from a document's root to a value: `("runtimes", "nvidia")`."""

Table = dict[str, Any]


class Set(msgspec.Struct, frozen=True):
    """Make the value at `path` exactly `value`; missing parents are created as tables."""

    path: Path
    value: Any


class Remove(msgspec.Struct, frozen=True):
    """Make `path` absent; its parents stay, even when they become empty."""

    path: Path


Change = Set | Remove


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()
"""What `lookup` returns where a document has no such key."""


class DocumentError(ConfigurationError):
    """A document that cannot be parsed. `line` is 1-based; `path` is filled in by whoever read the file."""


class EditMismatchError(InstallerError):
    """An edited text does not mean what was intended: a bug of ours, found before it was written."""


def lookup(document: Table, path: Path) -> Any:
    """Return the value at `path`, or ABSENT."""
    value: Any = document
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return ABSENT
        value = value[key]
    return value


def line_at(text: str, offset: int) -> int:
    """Return the 1-based line of an offset."""
    return text.count("\n", 0, offset) + 1


def apply(document: Table, changes: tuple[Change, ...]) -> Table:
    """Return what `document` should mean after `changes`, as a new value; the argument is left alone."""
    result = dict(document)
    for change in changes:
        result = _applied(result, change.path, change)
    return result


def merged(base: Table, over: Table, *, whole: Path | None = None, place: Path = ()) -> Table:
    """Return `over` laid on `base`, as a new value: tables merge, values replace.

    So do the tables in the one at `whole`, each of which replaces the other of its name. `place` is where both stand.
    """
    result = {**base, **over}
    for key, value in over.items():
        current = base.get(key)
        if place != whole and isinstance(current, dict) and isinstance(value, dict):
            result[key] = merged(current, value, whole=whole, place=(*place, key))
    return result


def _applied(table: Table, path: Path, change: Change) -> Table:
    """Return a copy of `table` with one change made below it; only the tables on the way are copied."""
    result = dict(table)
    key, rest = path[0], path[1:]
    if rest:
        child = result.get(key)
        if not isinstance(child, dict):
            if isinstance(change, Remove):
                return result
            child = {}
        result[key] = _applied(child, rest, change)
    elif isinstance(change, Set):
        result[key] = change.value
    else:
        result.pop(key, None)
    return result


def same(left: Any, right: Any) -> bool:
    """Tell whether two parsed values mean the same: types count (1, 1.0 and true differ), order of keys does not."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)  # NaN equals itself here, and -0.0 differs from 0.0
    return bool(left == right)


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content, in hex."""
    return hashlib.sha256(content).hexdigest()
