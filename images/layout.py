"""An image layout of OCI: the folder that an image lies in, with what refers to it. Files are named by their hash.

The formats are those of the Open Container Initiative's image specification, 1.1: image-layout, manifest, index.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_EMPTY = b"{}"
_EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
_TAG = "org.opencontainers.image.ref.name"

Descriptor = dict[str, Any]


class LayoutError(Exception):
    """A folder is no layout, or not of one image for several machines; the message says of which file."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A layout in a folder that is there, with one image in it, which is an index."""

    folder: Path

    def index(self) -> Descriptor:
        """Return the descriptor of the image: of its index. Raises LayoutError."""
        described = [each for each in self._top()["manifests"] if _TAG in each.get("annotations", {})]
        if len(described) != 1 or described[0]["mediaType"] != INDEX:
            raise LayoutError(f"{self.folder / 'index.json'} names no single index")
        return dict(described[0])

    def machines(self) -> dict[str, Descriptor]:
        """Return the descriptors of the image's manifests by the architecture that each is for. Raises LayoutError."""
        return {each["platform"]["architecture"]: each for each in self.document(self.index())["manifests"]}

    def document(self, described: Descriptor) -> dict[str, Any]:
        """Return the JSON that a descriptor is of. Raises LayoutError where that is not what its hash says."""
        return dict(json.loads(self.content(described)))

    def content(self, described: Descriptor) -> bytes:
        """Return the bytes that a descriptor is of. Raises LayoutError likewise."""
        path = self._path(described["digest"])
        content = path.read_bytes()
        if _digest(content) != described["digest"]:
            raise LayoutError(f"{path} is not what its name says")
        return content

    def restate(self, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
        """Change every manifest and its configuration by a function of the two; nothing refers to them yet.

        The layers stay. What the manifests, the configurations and the index were before is gone. Raises LayoutError.
        """
        index = self.index()
        document = self.document(index)
        before, after = {index["digest"]}, set()
        for each in document["manifests"]:
            manifest = self.document(each)
            config = self.document(manifest["config"])
            before |= {each["digest"], manifest["config"]["digest"]}
            change(manifest, config)
            manifest["config"].update(self._add(_text(config), manifest["config"]["mediaType"]))
            each.update(self._add(_text(manifest), each["mediaType"]))
            after |= {each["digest"], manifest["config"]["digest"]}
        index.update(self._add(_text(document), INDEX))
        (self.folder / "index.json").write_bytes(_text(self._top() | {"manifests": [index]}))
        for digest in before - after - {index["digest"]}:
            self._path(digest).unlink()

    def attach(self, subject: Descriptor, kind: str, name: str, content: bytes, created: str) -> Descriptor:
        """Have a document refer to an image or to one of its manifests, and return its descriptor.

        `kind` is its media type, `name` what it is called when it is fetched, `created` a time as RFC 3339 has it.
        """
        file = self._add(content, kind) | {"annotations": {"org.opencontainers.image.title": name}}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": kind,
            "config": self._add(_EMPTY, _EMPTY_TYPE),
            "layers": [file],
            "subject": {key: subject[key] for key in ("mediaType", "digest", "size")},
            "annotations": {"org.opencontainers.image.created": created},
        }
        described = self._add(_text(manifest), MANIFEST) | {"artifactType": kind}
        top = self._top()
        if described not in top["manifests"]:
            top["manifests"].append(described)
        (self.folder / "index.json").write_bytes(_text(top))
        return described

    def _top(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "index.json").read_bytes()))

    def _add(self, content: bytes, kind: str) -> Descriptor:
        digest = _digest(content)
        self._path(digest).write_bytes(content)
        return {"mediaType": kind, "digest": digest, "size": len(content)}

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _text(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
