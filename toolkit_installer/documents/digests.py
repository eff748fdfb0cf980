"""The digest by which a content is known: of files that were written, and of those that stood there before. Pure."""

from __future__ import annotations

import hashlib


def sha256(content: bytes) -> str:
    """Return the SHA-256 of a content, in hex."""
    return hashlib.sha256(content).hexdigest()
