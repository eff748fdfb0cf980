"""Which files of the installed toolkit are no longer what they were when they were put in place. Reads alone."""

from __future__ import annotations

import os
import posixpath
import stat

import msgspec

from toolkit_installer.errors import InstallerError, PayloadError
from toolkit_installer.node.disk.readers import Tree
from toolkit_installer.node.disk.reading import Identity
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Content, Receipt
from toolkit_installer.settings import Settings
from toolkit_installer.toolkit import payload as payloads


class Damage(msgspec.Struct, frozen=True):
    """A file of the toolkit, by its name there, and in words what became of it."""

    name: str
    what: str
    certain: bool = True
    """False: somebody touched it, and whether it still holds what it held cannot be told from here."""


MISSING = "missing"
_TOUCHED = "touched since it was put in place, and the payload to compare it with is not seen from here"


def damaged(node: Node, receipt: Receipt, payload: str | None) -> tuple[Damage, ...]:
    """Return the files of the toolkit that are missing, or not what they were; in the receipt's order.

    `payload` is the folder that the copies were made from, None where it is not seen from here: a copy whose stamps
    differ is compared with it. Of files that the receipt says nothing of, only those that are empty or missing are
    told. Raises NodeError.
    """
    look = _Look(node, receipt, payload)
    found = ((name, look.at(name)) for name in receipt.toolkit_files)
    return tuple(Damage(name, what, what != _TOUCHED) for name, what in found if what)


def payload_folder(node: Node, settings: Settings) -> str | None:
    """Return the folder that a run takes the payload from, None where there is none: on the node itself, as a rule."""
    rpm = node.programs.find_program("rpm") is not None
    try:
        return payloads.source_root(settings.toolkit.source_root, settings.toolkit.package_type, rpm, os.path.isdir)
    except PayloadError:
        return None


class _Look:
    """Looks at the files of one toolkit."""

    def __init__(self, node: Node, receipt: Receipt, payload: str | None) -> None:
        self._files = node.files
        self._folder = receipt.toolkit_folder
        self._contents = {each.name: each for each in receipt.contents}
        self._copies = {each.name: each for each in receipt.copies}
        self._payload = Tree(payload) if payload is not None else None

    def at(self, name: str) -> str:
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
            return "" if self._files.digest(path) == known.sha256 else "its content was changed"
        if copy is None or Identity.of(status).stamp == copy.stamp:
            return ""
        if self._payload is None or not self._payload.is_file(copy.source):
            return _TOUCHED
        try:
            same = self._files.digest(path) == self._payload.digest(copy.source)
        except InstallerError as error:
            return f"it cannot be read: {error.reason}"
        return "" if same else "its content was changed"
