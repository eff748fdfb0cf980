"""The image of the tests' containers, made here from Debian's static busybox: no registry is asked."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.engines.daemons import PATH

IMAGE = "registry.example/busybox:1"
PAUSE = "registry.example/pause:1"
"""The same image, by the name that tests/e2e/data/config.toml has for a pod's own container."""

# It ends by SIGTERM alone: whoever has to kill it did not reach it.
_SCRIPT = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"
_BUSYBOX = "bin/busybox"
COMMAND = [f"/{_BUSYBOX}", "sh", "-c", _SCRIPT]
_OTHER_NAMES = ("repositories", "index.json", "oci-layout")
"""What names an image too: for docker before 1.10, and for those who read an OCI layout."""
_NOTHING: Mapping[str, Path] = {}
_AS_IS: Mapping[str, Any] = {}


class ImageError(Exception):
    """The image cannot be made; the message has what is missing."""


def archive(
    more: Mapping[str, Path] = _NOTHING, *, names: Sequence[str] = (IMAGE, PAUSE), settings: Mapping[str, Any] = _AS_IS
) -> bytes:
    """Return the image as `docker save` and an OCI layout have it, under these names; `more` are files in it, by path.

    `settings` are added to its command, or replace it, as an image's configuration has them: Cmd, Entrypoint, Env.
    Raises ImageError.
    """
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    files = more if _BUSYBOX in more else {_BUSYBOX: Path(_busybox()), **more}
    layer = _tar({name: path.read_bytes() for name, path in files.items()}, mode=0o755)
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": COMMAND, **settings},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    configuration = json.dumps(config).encode()
    kind = "application/vnd.oci.image"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": _descriptor(f"{kind}.config.v1+json", configuration),
            "layers": [_descriptor(f"{kind}.layer.v1.tar", layer)],
        }
    ).encode()
    named = [
        _descriptor(f"{kind}.manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name}}
        for name in names
    ]
    saved = [{"Config": _blob(configuration), "RepoTags": list(names), "Layers": [_blob(layer)]}]
    parts = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": named}).encode(),
        "manifest.json": json.dumps(saved).encode(),
    }
    return _tar(parts | {_blob(content): content for content in (layer, configuration, manifest)}, mode=0o644)


def renamed(archive: Path, into: Path, *names: str) -> None:
    """Write an image that is in a file as `docker save` makes it into another, under these names."""
    with tarfile.open(archive) as old, tarfile.open(into, "w") as new:
        for entry in old:
            if entry.name in _OTHER_NAMES:
                continue
            content = old.extractfile(entry) if entry.isreg() else None
            if entry.name == "manifest.json" and content is not None:
                (image,) = json.load(content)
                changed = json.dumps([image | {"RepoTags": list(names)}]).encode()
                entry.size, content = len(changed), io.BytesIO(changed)
            new.addfile(entry, content)


def _busybox() -> str:
    path = shutil.which("busybox", path=PATH)
    if path is None:
        raise ImageError("busybox is not installed (Debian's package busybox-static)")
    return path


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob(content: bytes) -> str:
    return f"blobs/{_digest(content).replace(':', '/')}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _tar(files: dict[str, bytes], *, mode: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
