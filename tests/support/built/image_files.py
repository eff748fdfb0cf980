"""What an image's archive, as `docker save` makes it, says and holds."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

_REMOVED = ".wh."
"""What a layer's entry begins with that takes away another layer's (OCI's image-layout: whiteouts)."""


def described(archive: tarfile.TarFile) -> dict[str, Any]:
    """Return the manifest of its only image."""
    stream = archive.extractfile("manifest.json")
    assert stream is not None
    (image,) = json.load(stream)
    return dict(image)


def layers(archive: tarfile.TarFile) -> list[str]:
    """Return the names of its layers, the base's first."""
    return [str(name) for name in described(archive)["Layers"]]


def unpack(path: Path, folder: Path) -> None:
    """Write the image's files, devices and all, below a folder. Needs root. Raises ValueError for a whiteout."""
    with tarfile.open(path) as archive:
        for name in layers(archive):
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                removed = [each for each in layer.getnames() if Path(each).name.startswith(_REMOVED)]
                if removed:
                    raise ValueError(f"{path}: a layer takes away what another one has: {removed[0]}")
                # an image of our own: all of it is wanted; Python 3.11.3 and older have no filters, and heed none
                layer.extraction_filter = lambda member, _: member
                layer.extractall(folder)  # noqa: S202
