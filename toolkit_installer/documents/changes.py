"""Changes to a parsed configuration document, whatever its syntax, and the digest of a file's content. Pure.

The digest identifies files that were written and the originals that they replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from toolkit_installer.errors import ConfigurationError, InstallerError

Path = tuple[str, ...]
"""The keys that lead from a document's root to a value: `("runtimes", "nvidia")`."""

Table = dict[str, Any]


class Set(msgspec.Struct, frozen=True):
    """A change that sets `path` to exactly `value`; missing parents are created as tables."""

    path: Path
    value: Any


class Remove(msgspec.Struct, frozen=True):
    """A change that removes `path`; its parents stay, even when they become empty."""

    path: Path


Change = Set | Remove


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()
"""The value that `lookup` returns for a key that the document does not have."""


class DocumentError(ConfigurationError):
    """A document that cannot be parsed. `line` is 1-based; the caller that read the file sets `path`."""


class EditMismatchError(InstallerError):
    """An edited text with another meaning than intended: a bug in this program, found before the file is written."""


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


def apply_changes(document: Table, changes: tuple[Change, ...]) -> Table:
    """Return a copy of `document` with `changes` made; the argument is not changed."""
    result = dict(document)
    for change in changes:
        result = _applied(result, change.path, change)
    return result


def merge_tables(base: Table, over: Table, *, whole: Path | None = None, place: Path = ()) -> Table:
    """Return a new table of `base` overlaid with `over`: tables merge, other values replace.

    Tables directly below the path `whole` replace each other too, name by name. `place` is the path of both tables.
    """
    result = {**base, **over}
    for key, value in over.items():
        current = base.get(key)
        if place != whole and isinstance(current, dict) and isinstance(value, dict):
            result[key] = merge_tables(current, value, whole=whole, place=(*place, key))
    return result


def _applied(table: Table, path: Path, change: Change) -> Table:
    """Return a copy of `table` with one change made below it; only the tables along `path` are copied."""
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


def is_same(left: Any, right: Any) -> bool:
    """Return whether two parsed values are equal: types count (1, 1.0 and true differ), order of keys does not."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_same(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)  # NaN equals itself here, and -0.0 differs from 0.0
    return bool(left == right)


class _DigestSubstitutes:
    current: ClassVar[Mapping[str, str]] = {}


@contextlib.contextmanager
def substitute_digests(substitutes: Mapping[str, str]) -> Iterator[None]:
    """Let `sha256` return these digests for others inside the block.

    A capture contains files with placeholders for secrets, and what stands for the digests that the node's files have.
    """
    before, _DigestSubstitutes.current = _DigestSubstitutes.current, substitutes
    try:
        yield
    finally:
        _DigestSubstitutes.current = before


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content`, in hex."""
    digest = hashlib.sha256(content).hexdigest()
    return _DigestSubstitutes.current.get(digest, digest)
