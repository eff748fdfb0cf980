"""The toolkit's files on the node: as they are there, flushed, and removed again.

Which of the toolkit's files are copies of the payload's, as stat(2) still says of both what it said then.

Every write, rename and change of mode sets a file's ctime, and only the clock could set it back: a file whose size,
mtime, ctime and inode are what they were holds what it held. The device is not compared: each mount has another number.

Which files of the installed toolkit are no longer what they were when they were put in place. Reads alone.

CDI specifications as files of the node: what to write, what to record, and what cleanup restores.

A specification is ours as a whole. What somebody else wrote in its place before us comes back at cleanup, unless it
names our toolkit's folder: an older installer left it, and it would name what is gone. What somebody else writes over
ours stays until the next run, which puts ours back: at cleanup theirs returns, or what stood there before us if theirs
is ours with an edit, which names the toolkit's folder still.
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
from toolkit_installer.node.reading import Found, Identity, OneLook, Tree, let_files_clock_move_on, read_bounded
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import SPECIFICATION_ROLE, Before, Content, Copy, FileRecord, Receipt
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import Settings
from toolkit_installer.toolkit import payload as payloads
from toolkit_installer.toolkit import wrappers


class Installed(msgspec.Struct, frozen=True):
    """A file of the toolkit as it is on the node, or as it should be: SHA-256 or symlink target, and mode.

    `copy_of` is set in place of the SHA-256 of a file that is known to be a copy of that one in the payload.
    """

    digest: str | None = None
    link: str | None = None
    mode: int = 0
    copy_of: str | None = None


def installed(node: Node, folder: str, name: str, copy_of: str | None = None) -> Installed | None:
    """Return one of the toolkit's files as it is on the node, None where there is nothing.

    It is hashed unless `copy_of` says what it is known to hold. Raises NodeError.
    """
    path = posixpath.join(folder, name)
    link = node.files.link_target(path)
    if link is not None:
        return Installed(link=link)
    status = node.files.own_status(path)
    if status is None:
        return None
    digest = node.files.digest(path) if copy_of is None else None
    return Installed(digest=digest, mode=status.st_mode & 0o7777, copy_of=copy_of)


class Copies:
    """Looks at the files of one toolkit folder, and of the payload that it is filled from."""

    def __init__(self, node: Node, folder: str, payload: Tree) -> None:
        self._files = node.files
        self._folder = folder
        self._payload = payload

    def taken(self, name: str, source: str, *, settled: bool = False) -> Copy | None:
        """Return the stamps of a file of the toolkit and of the payload's, to be taken before their contents are read.

        None where one of them is no regular file; with `settled`, also where a change that comes now might not show:
        the kernel's clock has not moved on since the last one. Raises NodeError.
        """
        identities = []
        for status in self._files.own_status(posixpath.join(self._folder, name)), self._payload.status(source):
            if status is None or not stat.S_ISREG(status.st_mode):
                return None
            identities.append(Identity.of(status))
        if settled and not all(each.will_differ() for each in identities):
            return None
        return Copy(name, source, *(each.stamp for each in identities))

    def settled(self, copies: Iterable[Copy]) -> tuple[Copy, ...]:
        """Return those that nobody has changed since their stamps were taken, and that any change from now on shows.

        What was copied since the kernel's clock moved on is waited for, a few milliseconds: each run from now on would
        have to read it again.
        """
        stand = [each for each in copies if self.taken(each.name, each.source) == each]
        if not all(self._is_settled(each) for each in stand):
            let_files_clock_move_on()
        return tuple(each for each in stand if self._is_settled(each))

    def _is_settled(self, copy: Copy) -> bool:
        return self.taken(copy.name, copy.source, settled=True) == copy


class Damage(msgspec.Struct, frozen=True):
    """A file of the toolkit, by its name there, and in words what became of it."""

    name: str
    what: str
    certain: bool = True
    """False: somebody touched it, and whether it still holds what it held cannot be told from here."""


def is_there(node: Node, toolkit_folder: str) -> bool:
    """Tell whether a toolkit is in the folder, whether or not a receipt says so. Raises NodeError."""
    return node.files.status(f"{toolkit_folder}/{wrappers.CONFIG_NAME}") is not None


MISSING = "missing"
_TOUCHED = "touched since it was put in place, and the payload to compare it with is not seen from here"


def damaged(node: Node, settings: Settings, receipt: Receipt) -> tuple[Damage, ...]:
    """Return the files of the toolkit that are missing, or not what they were; in the receipt's order.

    A copy whose stamps differ is compared with the payload, where that is seen from here. Of files that the receipt
    says nothing of, only those that are empty or missing are told. Raises Stopped.
    """
    look = _Look(node, settings, receipt)
    found = (look.damage(name) for name in receipt.toolkit_files)
    return tuple(each for each in found if each is not None)


class _Look:
    """Looks at the files of one toolkit."""

    def __init__(self, node: Node, settings: Settings, receipt: Receipt) -> None:
        self._node = node
        self._settings = settings.toolkit
        self._files = OneLook(node.files)  # all of them are in a few folders
        self._folder = receipt.toolkit_folder
        self._contents = {each.name: each for each in receipt.contents}
        self._copies = {each.name: each for each in receipt.copies}

    def damage(self, name: str) -> Damage | None:
        """Return what became of a file, None if it is what it was."""
        try:
            what = self._at(name)
        except InstallerError as error:
            return Damage(name, f"it cannot be looked at: {error.reason}", certain=False)
        return Damage(name, what, what != _TOUCHED) if what else None

    def _at(self, name: str) -> str:
        """Return in words what became of a file, nothing if it is what it was."""
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
        if copy is None or Identity.of(status).stamp == copy.stamp:
            return ""
        payload = self._payload()
        if payload is None or not payload.is_file(copy.source):
            return _TOUCHED
        same = self._node.files.digest(path) == payload.digest(copy.source)
        return "" if same else "its content was changed"

    def _digest(self, path: str) -> str | None:
        """Return the SHA-256 of a small file, its folder taken as it was found; None for one that cannot be ours."""
        try:
            return memory.digest_of(read_bounded(self._files.root.outside(self._files.in_folder(path))))
        except (OSError, ConfigurationError):
            return None  # it went just now, or is larger than any of these is

    def _payload(self) -> Tree | None:
        """Return what a run takes the payload from, None where there is none: on the node itself, as a rule."""
        rpm = self._node.programs.find_program("rpm") is not None
        try:
            root = payloads.source_root(self._settings.source_root, self._settings.package_type, rpm, os.path.isdir)
        except PayloadError:
            return None
        return Tree(root)


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
