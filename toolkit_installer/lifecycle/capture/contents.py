"""The files whose contents a capture tells, and what can be said of a content that may have had secrets."""

from __future__ import annotations

import hashlib
from typing import Final

from toolkit_installer.documents.hiding import Hiding
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.lifecycle.capture import asking, values
from toolkit_installer.lifecycle.capture.archive import Archive
from toolkit_installer.lifecycle.capture.comparing import Text
from toolkit_installer.lifecycle.capture.values import NotReadableError
from toolkit_installer.node.disk.reading import Found

READ: Final = "node.disk.reading.Reader.read_file"
"""The seam at which files of the node are read whole."""


def files_of(archive: Archive, path: str) -> dict[str, Text]:
    """Return the files of the node that were read for the capture at `path`, those that were not there as well.

    What could not be read is left out. Raises ConfigurationError for a damaged capture.
    """
    found: dict[str, Text] = {}
    for line, raw in archive.answers.get(READ, {}).items():
        folder, *asked = asking.parts(values.unescaped(line))
        if folder != archive.root or len(asked) != 1:
            continue
        try:
            file = values.read(raw, Found | None)
        except NotReadableError as error:
            raise ConfigurationError(f"is damaged: {READ}: {error}", path=path) from error
        except (InstallerError, OSError):
            continue
        found[asked[0] if file is None else file.path] = captured(archive, None if file is None else file.content)
    return found


def captured(archive: Archive, content: bytes | None) -> Text:
    """Return a content as it is in a capture, None for no file. What it was on the node is known by its digest."""
    if content is None:
        return Text(None)
    found = _sha256(content)
    return Text(content, archive.digests.get(found, found), archive.key, whole=_is_whole(archive, content))


def planned(archive: Archive, content: bytes | None, now: bytes | None) -> Text:
    """Return a content that was planned for the node of a capture, where `now` stands.

    What it would be on the node is not known where a stand-in is in it.
    """
    if content is None or content == now or _sha256(content) in archive.digests:
        return captured(archive, content)
    whole = _is_whole(archive, content)
    return Text(content, _sha256(content) if whole else None, archive.key, whole=whole)


def _is_whole(archive: Archive, content: bytes) -> bool:
    """Tell whether nothing is hidden in a content, as it is in a capture or was planned for it."""
    return archive.secrets_kept or Hiding().content(content) == content


def _sha256(content: bytes) -> str:
    """Return the SHA-256 of a content as it is here, also while a player says what it is on the node."""
    return hashlib.sha256(content).hexdigest()
