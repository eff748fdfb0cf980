"""Inspect the installed toolkit's files, and plan the CDI specifications.

A file of the toolkit counts as a copy of the payload's while stat(2) of both gives what it gave at the copying. Every
write, rename and change of mode sets a file's ctime, and only a changed clock could set it back: a file with the same
size, mtime, ctime and inode has the same content. The device is not compared, as each mount has another number.
The search for files that changed since they were installed only reads.

A CDI specification is ours as a whole. The file that another program had there before us is restored at cleanup, unless
it names our toolkit's folder: then an older installer left it, and its targets are gone. If another program overwrites
ours, the next run writes ours again. At cleanup, that program's version is restored; but if it is an edit of ours,
which still names the toolkit's folder, the file from before us is.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Mapping

import msgspec

from toolkit_installer.engines.api import DesiredFile, EngineFile
from toolkit_installer.errors import ConfigurationError, DriverNotReadyError, InstallerError, PayloadError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import CachedReader, FileIdentity, Found, Tree, read_bounded, wait_for_file_clock
from toolkit_installer.node.root import is_folder
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import SPECIFICATION_ROLE, Content, Copy, FileRecord, OriginalFile, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import ToolkitSettings
from toolkit_installer.toolkit import payload as payloads
from toolkit_installer.toolkit import wrappers


class InstalledFile(msgspec.Struct, frozen=True):
    """A file of the toolkit as found or as desired: SHA-256 or symlink target, and mode.

    `copy_of` replaces the SHA-256 if the file is known to be a copy of that payload file.
    """

    digest: str | None = None
    link: str | None = None
    mode: int = 0
    copy_of: str | None = None


def inspect_file(node: Node, folder: str, name: str, copy_of: str | None = None) -> InstalledFile | None:
    """Return one of the toolkit's files as found on the node, None if it is missing.

    It is hashed unless `copy_of` names the payload file that it is known to copy. Raises NodeError.
    """
    path = posixpath.join(folder, name)
    link = node.files.link_target(path)
    if link is not None:
        return InstalledFile(link=link)
    status = node.files.own_status(path)
    if status is None:
        return None
    digest = node.files.digest(path) if copy_of is None else None
    return InstalledFile(digest=digest, mode=status.st_mode & 0o7777, copy_of=copy_of)


class Copies:
    """Inspects the files of one toolkit folder, and of its payload."""

    def __init__(self, node: Node, folder: str, payload: Tree) -> None:
        self._files = node.files
        self._folder = folder
        self._payload = payload

    def taken(self, name: str, source: str, *, settled: bool = False) -> Copy | None:
        """Return the stamps of an installed file and its payload file; call this before reading their contents.

        None if one of them is not a regular file; with `settled`, also if a change made now might not show, as the
        kernel's clock has not moved on since the last one. Raises NodeError.
        """
        identities = []
        for status in self._files.own_status(posixpath.join(self._folder, name)), self._payload.status(source):
            if status is None or not stat.S_ISREG(status.st_mode):
                return None
            identities.append(FileIdentity.of(status))
        if settled and not all(each.will_differ() for each in identities):
            return None
        return Copy(name, source, *(each.stamp for each in identities))

    def settled(self, copies: Iterable[Copy]) -> tuple[Copy, ...]:
        """Return the copies that are unchanged since their stamps were taken, and whose later changes will show.

        If the kernel's clock has not moved on since the last copy, wait a few milliseconds: otherwise each later run
        would have to read that file again.
        """
        stand = [each for each in copies if self.taken(each.name, each.source) == each]
        if not all(self._is_settled(each) for each in stand):
            wait_for_file_clock()
        return tuple(each for each in stand if self._is_settled(each))

    def _is_settled(self, copy: Copy) -> bool:
        return self.taken(copy.name, copy.source, settled=True) == copy


class Damage(msgspec.Struct, frozen=True):
    """A missing or changed file of the toolkit, by its name there; `what` is a text."""

    name: str
    what: str
    certain: bool = True
    """False: the file was touched, and whether its content is the same cannot be checked from here."""


def is_toolkit_installed(node: Node, toolkit_folder: str) -> bool:
    """Return whether a toolkit is in the folder, with or without a receipt. Raises NodeError."""
    return node.files.status(f"{toolkit_folder}/{wrappers.CONFIG_NAME}") is not None


MISSING = "missing"
_TOUCHED = "touched since it was put in place, and the payload to compare it with is not seen from here"


def find_damage(node: Node, toolkit: ToolkitSettings, receipt: Receipt) -> tuple[Damage, ...]:
    """Return the toolkit's files that are missing or changed, in the receipt's order.

    A copy whose stamps differ is compared with the payload, if that is visible from here. A file that the receipt only
    names is reported only if it is empty or missing. Raises Stopped.
    """
    finder = _DamageFinder(node, toolkit, receipt)
    found = (finder.damage(name) for name in receipt.toolkit_files)
    return tuple(each for each in found if each is not None)


class _DamageFinder:
    """Inspects the files of one toolkit."""

    def __init__(self, node: Node, toolkit: ToolkitSettings, receipt: Receipt) -> None:
        self._node = node
        self._settings = toolkit
        self._files = CachedReader(node.files)  # all of them are in a few folders
        self._folder = receipt.toolkit_folder
        self._contents = {each.name: each for each in receipt.contents}
        self._copies = {each.name: each for each in receipt.copies}

    def damage(self, name: str) -> Damage | None:
        """Return the damage of a file, None if it is unchanged."""
        try:
            what = self._at(name)
        except InstallerError as error:
            return Damage(name, f"it cannot be looked at: {error.reason}", certain=False)
        return Damage(name, what, what != _TOUCHED) if what else None

    def _at(self, name: str) -> str:
        """Return the damage of a file as text, empty if it is unchanged."""
        path = posixpath.join(self._folder, name)
        status = self._files.own_status(path)
        if status is None:
            return MISSING
        known = self._contents.get(name)
        link = known.link if known is not None else None
        if stat.S_ISLNK(status.st_mode) and (known is None or link is not None):
            return "" if known is None or self._files.link_target(path) == link else f"it links to another than {link}"
        if not stat.S_ISREG(status.st_mode) or link is not None:
            return "it is another kind of file by now"
        if not status.st_size:
            return "it is empty"
        return self._changed(path, known, status) if known is not None else ""

    def _changed(self, path: str, known: Content, status: os.stat_result) -> str:
        mode, copy = stat.S_IMODE(status.st_mode), self._copies.get(known.name)
        if mode != known.mode:
            return f"its mode is {mode:04o}, not {known.mode:04o}"
        if known.sha256 is not None:
            return "" if self._digest(path) == known.sha256 else "its content was changed"
        if copy is None or FileIdentity.of(status).stamp == copy.stamp:
            return ""
        payload = self._payload()
        if payload is None or not payload.is_file(copy.source):
            return _TOUCHED
        same = self._node.files.digest(path) == payload.digest(copy.source)
        return "" if same else "its content was changed"

    def _digest(self, path: str) -> str | None:
        """Return the SHA-256 of a small file, with its folder cached; None if it cannot be ours."""
        try:
            return file_records.digest_of(read_bounded(self._files.root.outside(self._files.in_folder(path))))
        except (OSError, ConfigurationError):
            return None  # it vanished just now, or is larger than any of these files

    def _payload(self) -> Tree | None:
        """Return the payload as a run finds it, None if there is none: on the node itself, as a rule."""
        rpm = self._node.programs.find_program("rpm") is not None
        try:
            root = payloads.source_root(self._settings.source_root, self._settings.package_type, rpm, is_folder)
        except PayloadError:
            return None
        return Tree(root)


class SpecificationWork(DesiredFile, frozen=True):
    """The change of a CDI specification. `note`: a remark about another program's version, for the log."""

    note: str = ""


class SpecificationFacts(msgspec.Struct, frozen=True):
    """The desired and the recorded specifications, as found."""

    files: Mapping[str, tuple[str, Found | None]]
    """By requested path: the canonical path, and the file there."""
    original: Callable[[OriginalFile], bytes]
    """Returns a backup. Raises ConfigurationError."""


class Generated(msgspec.Struct, frozen=True):
    """The CDI specification that the payload's nvidia-ctk generates for the driver in use."""

    path: str
    content: bytes | None = None
    """None if it cannot be known before the missing device nodes exist."""
    missing_nodes: tuple[str, ...] = ()
    """The driver's control device nodes to create, as paths that the installer sees."""
    failure: DriverNotReadyError | None = None
    """Why none could be generated."""


def read_specifications(node: Node, store: ReceiptStore, paths: Iterable[str]) -> SpecificationFacts:
    """Return the files at these paths. Raises ConfigurationError, NodeError."""
    return SpecificationFacts({path: node.locate_file(path) for path in paths}, store.load_original)


def plan_specifications(
    seen: SpecificationFacts, receipt: Receipt | None, folder: str, wanted: Generated | None, remark: str = ""
) -> tuple[SpecificationWork, ...]:
    """Return the work on the desired specification, and on recorded ones that are no longer desired.

    `folder` is the toolkit's. The desired one is left alone while its content is unknown; `remark` is for the log.
    Raises ConfigurationError.
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
    stale = (plan_revert(seen, record, folder) for name, record in recorded.items() if name != path)
    return (*made, *stale)


def find_our_content(seen: SpecificationFacts, receipt: Receipt | None, path: str) -> bytes | None:
    """Return the content of the file at `path` if it is recorded and as this installer wrote it, else None."""
    path, found = seen.files[path]
    records = receipt.specifications if receipt is not None else ()
    ours_there = found is not None and any(file.path == path and file.is_ours(found.content) for file in records)
    return found.content if found is not None and ours_there else None


def plan_revert(seen: SpecificationFacts, record: FileRecord, folder: str) -> SpecificationWork:
    """Return the work on a recorded specification that is no longer desired. Raises ConfigurationError."""
    path, found = seen.files[record.path]
    file = EngineFile(SPECIFICATION_ROLE, path, found)
    if found is not None and not record.is_ours(found.content):
        changed = file_records.digest_of(found.content) != (record.before.sha256 if record.before is not None else "")
        note = "it is theirs now, and stays" if changed else ""
        return SpecificationWork(file, found.content, found.content, note=note)
    base, _ = _base(seen, record, found, folder)
    return SpecificationWork(file, base, base)


def recognize_specification(node: Node, path: str, folder: str) -> FileRecord | None:
    """Return a record of the unrecorded specification at `path` if it names the toolkit in `folder`, else None.

    Raises ConfigurationError, NodeError.
    """
    path, found = node.locate_file(path)
    if found is None or not _names(found, folder):
        return None
    return FileRecord(SPECIFICATION_ROLE, path, None, (file_records.digest_of(found.content),))


def build_record(work: SpecificationWork, previous: FileRecord | None) -> FileRecord | None:
    """Return the record of a specification before its change; None if nothing in the file is ours."""
    if work.target == work.base and not work.changes and previous is None:
        return None
    written = {file_records.digest_of(content) for content in (work.target,) if content is not None}
    present = work.file.content
    if previous is not None and present is not None and previous.is_ours(present):
        written.add(file_records.digest_of(present))  # until it is replaced, the file holds our last version
    before = file_records.build_original(work.base, work.file.found, previous)
    return FileRecord(SPECIFICATION_ROLE, work.path, before, tuple(sorted(written)))


def settled(work: SpecificationWork, record: FileRecord) -> FileRecord | None:
    """Return the record after the change, with the desired content only; None if the file is not ours."""
    if work.target is None or work.target == work.base:
        return None
    return msgspec.structs.replace(record, written=(file_records.digest_of(work.target),))


def list_our_digests(receipt: Receipt | None) -> dict[str, frozenset[str]]:
    """Return the SHA-256 of all contents that this installer may have written, by path."""
    return {file.path: frozenset(file.written) for file in (receipt.specifications if receipt is not None else ())}


def _base(
    seen: SpecificationFacts, record: FileRecord | None, found: Found | None, folder: str
) -> tuple[bytes | None, str]:
    """Return the content that cleanup restores, and a remark for the log."""
    if found is None:
        return None, ""  # an earlier file was removed since, by another program or a boot
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
