"""CDI specifications as files of the node: what to write, what to record, and what cleanup restores.

A specification is ours as a whole. What somebody else wrote in its place before us comes back at cleanup, unless it
names our toolkit's folder: an older installer left it, and it would name what is gone. What somebody else writes over
ours stays until the next run, which puts ours back: at cleanup theirs returns, or what stood there before us if theirs
is ours with an edit, which names the toolkit's folder still.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping

import msgspec

from toolkit_installer.engines.api import DesiredFile, EngineFile
from toolkit_installer.errors import DriverNotReadyError
from toolkit_installer.node.disk.reading import Found
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import SPECIFICATION_ROLE, Before, FileRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore


class SpecificationWork(DesiredFile, frozen=True):
    """What is to be done about a CDI specification. `note`: a remark about somebody else's version, for the log."""

    note: str = ""


class SpecificationFacts(msgspec.Struct, frozen=True):
    """The specifications that are desired or recorded, as they were found."""

    files: Mapping[str, tuple[str, Found | None]]
    """By the path that was looked at: the canonical one, and what stands there."""
    original: Callable[[Before], bytes]
    """Returns a kept copy. Raises ConfigurationError."""


class Generated(msgspec.Struct, frozen=True):
    """The CDI specification as the payload's nvidia-ctk makes it for the driver that is usable now."""

    path: str
    content: bytes | None = None
    """None where it cannot be known before the missing device nodes are there."""
    missing_nodes: tuple[str, ...] = ()
    """The driver's control device nodes that are to be created, as the installer sees them."""
    failure: DriverNotReadyError | None = None
    """Why none could be made."""


def read_specifications(node: Node, store: ReceiptStore, paths: Iterable[str]) -> SpecificationFacts:
    """Return what stands at these paths. Raises ConfigurationError, NodeError."""
    return SpecificationFacts({path: node.locate_file(path) for path in paths}, store.original)


def plan_specifications(
    seen: SpecificationFacts, receipt: Receipt | None, folder: str, wanted: Generated | None, remark: str = ""
) -> tuple[SpecificationWork, ...]:
    """Return the work on the desired specification, and on recorded ones that are no longer desired.

    `folder` is the toolkit's. The desired one is left alone where its content is not known yet; `remark` is for the
    log. Raises ConfigurationError.
    """
    recorded = {record.path: record for record in (receipt.specifications if receipt is not None else ())}
    made = []
    path = None
    if wanted is not None:
        path, found = seen.files[wanted.path]
        if wanted.content is not None:
            base, note = _base(seen, recorded.get(path), found, folder)
            file = EngineFile(SPECIFICATION_ROLE, path, found)
            made.append(SpecificationWork(file, base, wanted.content, note=note or remark))
    stale = (reverted(seen, record, folder) for name, record in recorded.items() if name != path)
    return (*made, *stale)


def standing(seen: SpecificationFacts, receipt: Receipt | None, path: str) -> bytes | None:
    """Return what stands at `path` if it is recorded there, and as this installer wrote it; else None."""
    path, found = seen.files[path]
    records = receipt.specifications if receipt is not None else ()
    ours_there = found is not None and any(file.path == path and file.is_ours(found.content) for file in records)
    return found.content if found is not None and ours_there else None


def reverted(seen: SpecificationFacts, record: FileRecord, folder: str) -> SpecificationWork:
    """Return the work on a recorded specification that is no longer desired. Raises ConfigurationError."""
    path, found = seen.files[record.path]
    file = EngineFile(SPECIFICATION_ROLE, path, found)
    if found is not None and not record.is_ours(found.content):
        changed = memory.digest_of(found.content) != (record.before.sha256 if record.before is not None else "")
        note = "it is theirs now, and stays" if changed else ""
        return SpecificationWork(file, found.content, found.content, note=note)
    base, _ = _base(seen, record, found, folder)
    return SpecificationWork(file, base, base)


def recognised(node: Node, path: str, folder: str) -> FileRecord | None:
    """Return a record of the specification at `path` if no receipt names it and it names the toolkit in `folder`.

    Raises ConfigurationError, NodeError.
    """
    path, found = node.locate_file(path)
    if found is None or not _names(found, folder):
        return None
    return FileRecord(SPECIFICATION_ROLE, path, None, (memory.digest_of(found.content),))


def recorded(work: SpecificationWork, previous: FileRecord | None) -> FileRecord | None:
    """Return the record of a file that is, or will be, what the work says; None where nothing in it is ours."""
    if work.target == work.base and not work.changes and previous is None:
        return None
    written = {memory.digest_of(content) for content in (work.target,) if content is not None}
    present = work.file.content
    if previous is not None and present is not None and previous.is_ours(present):
        written.add(memory.digest_of(present))  # until it is replaced, the last version of ours stands there
    before = memory.before(work.base, work.file.found, previous)
    return FileRecord(SPECIFICATION_ROLE, work.path, before, tuple(sorted(written)))


def settled(work: SpecificationWork, record: FileRecord) -> FileRecord | None:
    """Return the record once the work is done, of the desired content alone; None where that is not ours."""
    if work.target is None or work.target == work.base:
        return None
    return msgspec.structs.replace(record, written=(memory.digest_of(work.target),))


def ours(receipt: Receipt | None) -> dict[str, frozenset[str]]:
    """Return the SHA-256 of every content that we may have written, by path."""
    return {file.path: frozenset(file.written) for file in (receipt.specifications if receipt is not None else ())}


def _base(
    seen: SpecificationFacts, record: FileRecord | None, found: Found | None, folder: str
) -> tuple[bytes | None, str]:
    """Return the content that cleanup is to restore, and a remark for the log."""
    if found is None:
        return None, ""  # whatever stood there, somebody removed it since, or a boot did
    if record is not None and record.is_ours(found.content):
        return (None if record.before is None else seen.original(record.before)), ""
    if _names(found, folder):
        if record is not None and record.before is not None:
            note = "somebody edited ours: it is replaced, and what stood there before us comes back at cleanup"
            return seen.original(record.before), note
        return None, "somebody else wrote it, but it names the toolkit's folder: it is replaced, and does not come back"
    return found.content, "somebody else's version is replaced, and comes back at cleanup"


def _names(found: Found, folder: str) -> bool:
    return f"{posixpath.normpath(folder)}/".encode() in found.content
