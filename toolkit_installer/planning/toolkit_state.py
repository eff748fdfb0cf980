"""The toolkit's files on the node: as they are there, flushed, and removed again.

Which of the toolkit's files are copies of the payload's, as stat(2) still says of both what it said then.

Every write, rename and change of mode sets a file's ctime, and only the clock could set it back: a file whose size,
mtime, ctime and inode are what they were holds what it held. The device is not compared: each mount has another number.

Which files of the installed toolkit are no longer what they were when they were put in place. Reads alone.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterable

import msgspec

from toolkit_installer.errors import ConfigurationError, InstallerError, PayloadError
from toolkit_installer.node.disk.reading import Identity, OneLook, Tree, let_files_clock_move_on, read_bounded
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import Content, Copy, Receipt
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
