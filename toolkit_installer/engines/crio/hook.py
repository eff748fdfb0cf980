"""The OCI hook's file: what it says, and whose it is. Pure. Format: oci-hooks(5), version 1.0.0."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection

from toolkit_installer.documents import json_document
from toolkit_installer.documents.changes import DocumentError, lookup
from toolkit_installer.engines.ownership import beneath, revert_content
from toolkit_installer.toolkit.payload import HOOK

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def content(toolkit_folder: str) -> bytes:
    """Return the file that runs the toolkit's hook before every container starts; the hook decides what it is for."""
    document = {
        "version": "1.0.0",
        "hook": {"path": posixpath.join(toolkit_folder, HOOK), "args": [HOOK, "prestart"], "env": [_PATH]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def without_us(
    present: bytes | None, before: bytes | None, written: Collection[str], toolkit_folder: str
) -> tuple[bytes | None, tuple[str, ...]]:
    """Return the file without us (None: no file), and what happens to somebody's edit, in words.

    `before` is what stood there before us, `written` the SHA-256 of all that we wrote.
    """

    def without_ours(content: bytes) -> tuple[bytes | None, tuple[str, ...]]:
        if not _runs_ours(content, toolkit_folder):
            return content, ()
        # whatever else they changed in it: it runs a program that goes, and every container would fail on it
        left = (
            ("somebody changed the hook since; it is removed nevertheless, as it runs the toolkit's",)
            if written
            else ()
        )
        return before, left

    return revert_content(present, before, written, without_ours)


def _runs_ours(present: bytes, toolkit_folder: str) -> bool:
    try:
        path = lookup(json_document.parse(present), ("hook", "path"))
    except DocumentError:
        return False  # broken, and so not ours: we write whole files
    return isinstance(path, str) and beneath(path, toolkit_folder)
