"""The toolkit's files as they are on the node."""

from __future__ import annotations

import posixpath

import msgspec

from toolkit_installer.node.node import Node


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
