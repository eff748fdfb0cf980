"""Which CDI specifications an engine's release can read. Pure.

A specification of a newer version than an engine's CDI library knows is skipped whole, and its devices do not exist.
What each release has was looked up in its own go.mod or vendor.mod, and the versions in that library's
pkg/cdi/version.go; of CRI-O before 1.34 it is what its release notes say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from toolkit_installer.settings import EngineName

Version = tuple[int, int]
"""The first two numbers of a specification's version: the third has never counted."""

SWITCHES: Mapping[str, bytes] = {"enable_cdi": b"enable_cdi", "cdi": b'"cdi"'}
"""What the key is called that switches CDI on, containerd's and that in docker's `features`; and how files name it."""
_KNOWN: Mapping[EngineName, tuple[tuple[tuple[int, int, int], Version], ...]] = {
    EngineName.CONTAINERD: (
        ((1, 7, 0), (0, 5)),
        ((1, 7, 12), (0, 6)),
        ((1, 7, 16), (0, 7)),
        ((2, 0, 0), (0, 8)),
        ((2, 1, 0), (1, 0)),
        ((2, 4, 0), (1, 1)),
    ),
    EngineName.DOCKER: (((25, 0, 0), (0, 6)), ((26, 1, 0), (0, 7))),
    EngineName.CRIO: (((1, 23, 0), (0, 3)), ((1, 26, 0), (0, 5)), ((1, 30, 0), (0, 7)), ((1, 34, 0), (1, 0))),
}
"""From which release on which is the newest version of a specification that is known to be read."""
_RELEASE = r"v?(\d+)\.(\d+)(?:\.(\d+))?"
_SAID = rb"""(?m)^["']?cdiVersion["']?:\s*["']?v?(\d+)\.(\d+)"""


def newest(name: EngineName, version: str) -> Version | None:
    """Return the newest version of a specification that this release is known to read; None: it knows no CDI.

    `version` is the engine's own spelling, such as "1.7.24~ds1". One that says no numbers counts as without CDI.
    """
    found = re.match(_RELEASE, version)
    if found is None:
        return None
    release = (int(found[1]), int(found[2]), int(found[3] or 0))
    read = [known for since, known in _KNOWN.get(name, ()) if since <= release]
    return read[-1] if read else None


def first(name: EngineName) -> str:
    """Return the first release of the engine that knows CDI, in words."""
    (major, minor, _), _ = _KNOWN[name][0]
    return f"{major}.{minor}"


def version_of(specification: bytes) -> Version | None:
    """Return the version that a specification says to be of, None where it says none."""
    said = re.search(_SAID, specification)
    return (int(said[1]), int(said[2])) if said is not None else None
