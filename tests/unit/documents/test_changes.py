"""The digest of a file's content, and the digests that a replay of a capture puts in its place."""

from __future__ import annotations

import contextlib
import hashlib

from toolkit_installer.documents import changes


def test_substitutes_for_digests_hold_inside_their_block_alone() -> None:
    real = changes.sha256(b"masked")
    with contextlib.suppress(KeyError), changes.substitute_digests({real: "of the node's file"}):
        assert changes.sha256(b"masked") == "of the node's file"
        assert changes.sha256(b"other") == hashlib.sha256(b"other").hexdigest()
        raise KeyError
    assert changes.sha256(b"masked") == real
