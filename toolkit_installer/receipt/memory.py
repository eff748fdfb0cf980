"""Converts the receipt's records to what planning works with, and back. Pure.

Whether the files that the receipt records are still as they were written.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolkit_installer.documents import changes
from toolkit_installer.documents.changes import ABSENT
from toolkit_installer.engines.api import DesiredFile, Engine, EngineFile, RecordedFile
from toolkit_installer.engines.ownership import Owned, Ownership
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Found, Metadata
from toolkit_installer.receipt.schema import AS_BEFORE, AS_WRITTEN, Before, EngineRecord, FileRecord, OwnedKey, Receipt


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of `content` in hex."""
    return changes.sha256(content)


def remembered(
    engine: Engine, record: FileRecord, before: bytes | None, of: EngineRecord | None = None, kept: str = ""
) -> RecordedFile:
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
    return RecordedFile(before, written, ownership, handlers, defaults, metadata, kept, record.role)


def recorded(
    engine: Engine,
    wanted: DesiredFile,
    found: Found | None,
    previous: FileRecord | None,
    contents: Iterable[bytes | None],
) -> FileRecord:
    """Return the record for a file that will hold one of `contents`, or does already."""
    written = {digest_of(content) for content in contents if content is not None}
    if previous is not None and found is not None and digest_of(found.content) in previous.written:
        written.add(digest_of(found.content))  # until it is replaced, the last version of ours stands there
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
    transitional = engine.build_transitional_content(wanted.base) if signalled else None
    if transitional is not None:
        written.add(digest_of(transitional))
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
    return Before(digest_of(base), metadata.mode, metadata.uid, metadata.gid, metadata.xattrs)


def _key(engine: Engine, owned: Owned) -> OwnedKey:
    prior = None if owned.prior is ABSENT else engine.write_value(owned.prior)
    return OwnedKey(owned.path, engine.write_value(owned.ours), prior, owned.item)


def _owned(engine: Engine, key: OwnedKey) -> Owned:
    prior = ABSENT if key.prior is None else engine.read_value(key.prior)
    return Owned(key.path, engine.read_value(key.ours), prior, key.item)


def drifted(node: Node, receipt: Receipt | None) -> list[str]:
    """Return the paths of the managed files that somebody else changed."""
    files = receipt.files() if receipt is not None else []
    return [file.path for file in files if state_of(node, file) != AS_WRITTEN]


def state_of(node: Node, file: FileRecord) -> str:
    """Return in words how a managed file stands: as written, missing, or what else became of it."""
    try:
        found = node.files.read_file(file.path)
    except ConfigurationError as error:
        return f"unreadable: {error.reason}"
    if found is None:
        return "missing" if file.written else AS_WRITTEN
    digest = digest_of(found.content)
    if digest in file.written:
        return AS_WRITTEN
    if file.before is not None and digest == file.before.sha256:
        return AS_BEFORE
    return "changed by somebody else"
