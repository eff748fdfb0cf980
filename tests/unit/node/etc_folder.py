"""The `/etc` of a node's root, as tests of what writes there look at it past the code under test."""

from __future__ import annotations

import os
from pathlib import Path

from toolkit_installer.node.files import Files
from toolkit_installer.node.reading import Found

PATH = "/etc/daemon.json"


def place(files: Files, name: str = PATH) -> Path:
    """Return where the test sees a path of the node, or a name in its /etc."""
    return Path(files.root.outside(os.path.join("/etc", name)))


def present(files: Files) -> Found:
    """Return the file at PATH as the code under test reads it."""
    found = files.read_file(PATH)
    assert found is not None
    return found


def names(files: Files) -> list[str]:
    """Return all names in the folder: nothing else may be left there."""
    return sorted(os.listdir(place(files).parent))
