"""The image's files, unpacked into a folder that is entered by chroot: there the program costs what it costs users.

They run the image's own Python, without a look at the caller's environment or at the time of a source. A development
environment has another Python, and looks at each source that it imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.support.built import installer_image

PROGRAM = "/usr/local/bin/toolkit-installer"


class ImageUnpackError(Exception):
    """The archive holds what is not known here; the message says what."""


def missing() -> str:
    """Return why the image cannot be built and entered here; empty: it can."""
    if os.geteuid() != 0:
        return "its files are entered as root"
    absent = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Build the image where that is not done yet, and yield the folder that has its files, with /proc.

    Raises ImageBuildError, GoToolError, ImageUnpackError.
    """
    folder.mkdir(parents=True)
    with tarfile.open(installer_image.built().archive) as archive:
        (described,) = json.loads(_member(archive, "manifest.json").read())
        for name in described["Layers"]:
            with tarfile.open(fileobj=_member(archive, name)) as layer:
                removed = [each for each in layer.getnames() if Path(each).name.startswith(".wh.")]
                if removed:
                    raise ImageUnpackError(f"a layer removes what another one has, such as {removed[0]}")
                layer.extractall(folder, filter="fully_trusted")  # noqa: S202  # our own image, devices and all
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


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    if found is None:
        raise ImageUnpackError(f"{name} is no file")
    return found
