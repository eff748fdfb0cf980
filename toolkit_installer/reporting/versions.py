"""The program's version, with its commit, and the release of NVIDIA's toolkit in a payload."""

from __future__ import annotations

import os
import re

from toolkit_installer import __version__
from toolkit_installer.errors import PayloadError
from toolkit_installer.node.programs import ProgramError, run
from toolkit_installer.node.reading import Tree
from toolkit_installer.toolkit import payload

_SECONDS = 5.0
_REVISION_FILE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "revision")
"""A file that the image's build writes; a checkout has none, and its commit is known from git."""
_LONGEST = 200


def own_version() -> str:
    """Return this program's version, with the commit that it was built from if that is known."""
    try:
        with open(_REVISION_FILE, encoding="ascii", newline="\n", errors="replace") as file:
            revision = file.read(_LONGEST).strip()
    except FileNotFoundError:
        return __version__
    return f"{__version__} (revision {revision})" if re.fullmatch("[0-9a-f]{7,64}", revision) else __version__


def read_runtime_version(root: str, runtime: str) -> str | None:
    """Return the output of the payload's runtime for `--version`, None if it cannot be run here.

    `root` is the payload's folder as the installer sees it, `runtime` the program's path below it.
    """
    try:
        return run([Tree(root).outside(runtime), "--version"], seconds=_SECONDS).output.decode(errors="replace")
    except ProgramError:
        return None  # built for another node


def describe_image_payload() -> str:
    """Return one line about the payload in the image, or that there is none."""
    try:
        root = payload.source_root(None, "auto", node_has_rpm=False, exists=os.path.isdir)
    except PayloadError:
        return "payload: none in /artifacts"
    path = f"{payload.PROGRAM_FOLDERS[0]}/{payload.RUNTIMES[0]}"
    said = read_runtime_version(root, path) if Tree(root).is_executable(path) else None
    release = None if said is None else payload.parse_release(said)
    return f"payload: NVIDIA container toolkit {release or 'of an unknown release'} in {root}"
