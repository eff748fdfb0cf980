"""The image's files, unpacked into a folder that is entered by chroot: there the program costs what it costs users.

They run the image's own Python, without a look at the caller's environment or at the time of a source. A development
environment has another Python, and looks at each source that it imports.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.built import image_files, installer_image

PROGRAM = "/usr/local/bin/toolkit-installer"


def missing() -> str:
    """Return why the image cannot be built and entered here; empty: it can."""
    if os.geteuid() != 0:
        return "its files are entered as root"
    absent = installer_image.missing()
    return f"not installed: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Build the image where that is not done yet, and yield the folder that has its files, with /proc.

    Raises ImageBuildError, GoToolError.
    """
    folder.mkdir(parents=True)
    image_files.unpack(installer_image.built().archive, folder)
    proc = folder / "proc"
    subprocess.run(["mount", "-t", "proc", "proc", str(proc)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(proc)], check=True)


def python_version(root: Path) -> str:
    """Return the version of the Python that runs the image's program."""
    command = ["chroot", str(root), "/opt/toolkit-installer/bin/python", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return said.removeprefix("Python ").strip()
