"""A support bundle: texts in a compressed archive. Pure."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping

FOLDER = "toolkit-installer-report"
"""The folder in the archive that has all files."""
LONGEST = 1 << 20
"""Characters. Of a longer text the end is kept: the last lines of a log say most."""
_CUT = "(the beginning was cut off)\n"
_MODE = 0o600


def shown(text: str) -> str:
    """Return a text as the bundle has it: at most LONGEST characters of it."""
    return text if len(text) <= LONGEST else _CUT + text[-LONGEST:]


def archive(texts: Mapping[str, str], when: float) -> bytes:
    """Return a tar.gz of files with these names and texts; `when` is their time, in seconds since 1970.

    The same texts and time make the same bytes.
    """
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=when) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(texts):
            content = shown(texts[name]).encode(errors="backslashreplace")
            member = tarfile.TarInfo(f"{FOLDER}/{name.lstrip('/')}")
            member.size, member.mtime, member.mode = len(content), int(when), _MODE
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()
