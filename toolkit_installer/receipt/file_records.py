"""The receipt's records of files: build them, convert them for planning, and compare them with the node."""

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
from toolkit_installer.receipt.schema import (
    AS_BEFORE,
    AS_WRITTEN,
    EngineRecord,
    FileRecord,
    OriginalFile,
    OwnedKey,
    Receipt,
)


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of `content` in hex."""
    return changes.sha256(content)


def to_recorded_file(
    engine: Engine, record: FileRecord, before: bytes | None, of: EngineRecord | None = None, kept: str = ""
) -> RecordedFile:
    """Return a recorded file as planning works with it.

    `before` is its backup, stored at `kept`; `of` is the record of its engine.
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


def build_record(
    engine: Engine,
    wanted: DesiredFile,
    found: Found | None,
    previous: FileRecord | None,
    contents: Iterable[bytes | None],
) -> FileRecord:
    """Return the record of a file that holds, or will hold, one of `contents`."""
    written = {digest_of(content) for content in contents if content is not None}
    if previous is not None and found is not None and digest_of(found.content) in previous.written:
        written.add(digest_of(found.content))  # until it is replaced, the last version of ours stands there
    original = build_original(wanted.base, found, previous)
    return FileRecord(
        role=wanted.role,
        path=wanted.path,
        before=original,
        first=_first(original, previous),
        written=tuple(sorted(written)),
        keys=tuple(_key(engine, key) for key in wanted.ownership.keys),
        created=tuple(_key(engine, key) for key in wanted.ownership.created),
    )


def build_revert_record(engine: Engine, file: FileRecord, wanted: DesiredFile, *, signalled: bool) -> FileRecord:
    """Return the record for a revert: if it is killed, the next run must find the new original, not the old."""
    original = build_original(wanted.base, wanted.file.found, file)
    written = set(file.written)
    transitional = engine.build_transitional_content(wanted.base) if signalled else None
    if transitional is not None:
        written.add(digest_of(transitional))
    return msgspec.structs.replace(file, before=original, first=_first(original, file), written=tuple(sorted(written)))


def _first(original: OriginalFile | None, previous: FileRecord | None) -> OriginalFile | None:
    """Return the file as it was before the first run, None if that is `original`."""
    first = None if previous is None else previous.first or previous.before
    return first if first != original else None


def build_adopted_record(engine: Engine, file: EngineFile, ownership: Ownership) -> FileRecord:
    """Return the record of a file that was changed without one."""
    keys, created = (tuple(_key(engine, key) for key in part) for part in (ownership.keys, ownership.created))
    return FileRecord(file.role, file.path, None, (), keys, created)


def build_original(base: bytes | None, found: Found | None, previous: FileRecord | None) -> OriginalFile | None:
    """Return the record of what cleanup is to leave: `base`, with the file's present metadata."""
    if base is None:
        return None
    if found is None:
        return previous.before if previous is not None else None
    metadata = found.metadata
    return OriginalFile(digest_of(base), metadata.mode, metadata.uid, metadata.gid, metadata.xattrs)


def _key(engine: Engine, owned: Owned) -> OwnedKey:
    prior = None if owned.prior is ABSENT else engine.write_value(owned.prior)
    return OwnedKey(owned.path, engine.write_value(owned.ours), prior, owned.item)


def _owned(engine: Engine, key: OwnedKey) -> Owned:
    prior = ABSENT if key.prior is None else engine.read_value(key.prior)
    return Owned(key.path, engine.read_value(key.ours), prior, key.item)


def list_drifted(node: Node, receipt: Receipt | None) -> list[str]:
    """Return the paths of the managed files that another program or an administrator changed."""
    files = receipt.files() if receipt is not None else []
    return [file.path for file in files if describe_state(node, file) != AS_WRITTEN]


def describe_state(node: Node, file: FileRecord) -> str:
    """Return the state of a managed file as text: as written, missing, or why it is neither."""
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
