"""Converts the receipt's records to what planning works with, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolkit_installer.documents import digests
from toolkit_installer.documents.changes import ABSENT
from toolkit_installer.engines.api import DesiredFile, Engine, EngineFile, Recorded
from toolkit_installer.engines.ownership import Owned, Ownership
from toolkit_installer.node.disk.reading import Found, Metadata
from toolkit_installer.receipt.schema import Before, EngineRecord, FileRecord, OwnedKey


def digest(content: bytes) -> str:
    """Return the SHA-256 of `content` in hex."""
    return digests.sha256(content)


def remembered(
    engine: Engine, record: FileRecord, before: bytes | None, of: EngineRecord | None = None, kept: str = ""
) -> Recorded:
    """Return what planning needs to know of a recorded file.

    `before` is its kept copy, which lies at `kept`; `of` is the record of its engine.
    """
    keys = tuple(_owned(engine, key) for key in record.keys)
    created = tuple(_owned(engine, key) for key in record.created)
    was = record.before
    metadata = Metadata(was.mode, was.uid, was.gid, was.xattrs) if was is not None else None
    handlers = frozenset(dict(of.handlers)) if of is not None else frozenset[str]()
    defaults = of.defaults if of is not None else ()
    ownership = Ownership(keys, created)
    written = frozenset(record.written)
    return Recorded(before, written, ownership, handlers, defaults, metadata, kept, record.role)


def recorded(
    engine: Engine,
    wanted: DesiredFile,
    found: Found | None,
    previous: FileRecord | None,
    contents: Iterable[bytes | None],
) -> FileRecord:
    """Return the record for a file that will hold one of `contents`, or does already."""
    written = {digest(content) for content in contents if content is not None}
    if previous is not None and found is not None and digest(found.content) in previous.written:
        written.add(digest(found.content))  # until it is replaced, the last version of ours stands there
    original = before(wanted.base, found, previous)
    return FileRecord(
        role=wanted.role,
        path=wanted.path,
        before=original,
        first=_first(original, previous),
        written=tuple(sorted(written)),
        keys=tuple(_key(engine, key) for key in wanted.ownership.keys),
        created=tuple(_key(engine, key) for key in wanted.ownership.created),
    )


def going_back(engine: Engine, file: FileRecord, wanted: DesiredFile, *, signalled: bool) -> FileRecord:
    """Return the record for the way back: a run that is killed on it must find the new original, not the old."""
    original = before(wanted.base, wanted.file.found, file)
    written = set(file.written)
    transitional = engine.transitional(wanted.base) if signalled else None
    if transitional is not None:
        written.add(digest(transitional))
    return msgspec.structs.replace(file, before=original, first=_first(original, file), written=tuple(sorted(written)))


def _first(original: Before | None, previous: FileRecord | None) -> Before | None:
    """Return the file as it was before the first run, None where that is `original`."""
    first = None if previous is None else previous.first or previous.before
    return first if first != original else None


def adopted(engine: Engine, file: EngineFile, ownership: Ownership) -> FileRecord:
    """Return the record for a file that was changed without one."""
    keys, created = (tuple(_key(engine, key) for key in part) for part in (ownership.keys, ownership.created))
    return FileRecord(file.role, file.path, None, (), keys, created)


def before(base: bytes | None, found: Found | None, previous: FileRecord | None) -> Before | None:
    """Return the record of what cleanup is to leave: `base`, with what the file carries beside it."""
    if base is None:
        return None
    if found is None:
        return previous.before if previous is not None else None
    metadata = found.metadata
    return Before(digest(base), metadata.mode, metadata.uid, metadata.gid, metadata.xattrs)


def _key(engine: Engine, owned: Owned) -> OwnedKey:
    prior = None if owned.prior is ABSENT else engine.write_value(owned.prior)
    return OwnedKey(owned.path, engine.write_value(owned.ours), prior, owned.item)


def _owned(engine: Engine, key: OwnedKey) -> Owned:
    prior = ABSENT if key.prior is None else engine.read_value(key.prior)
    return Owned(key.path, engine.read_value(key.ours), prior, key.item)
