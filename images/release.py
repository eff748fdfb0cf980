"""Makes what is published of one commit: the image for both machines, and what is stated about it. Nothing is uploaded.

    .venv/bin/python -m images.release FOLDER      (make release; FOLDER is dist/release)

All is given by the variables of images/build, and:
    IMAGE         the name without a tag: registry.example/toolkit-installer
    BASE_IMAGE    by digest, for both machines: an index
    PROJECT_URL   the address of the page at which the project is published
    BUILDER_ID    the address that says who runs this build, for its provenance; unless given, PROJECT_URL and the
                  name of the target
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from images import project_urls, statements
from images.layout import Layout, LayoutError
from toolkit_installer import __version__

PROJECT = Path(__file__).resolve().parent.parent
MACHINES = ("amd64", "arm64")
BILL = "application/vnd.cyclonedx+json"
_BUILDERS = ("podman", "buildah")
_BY_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")
_BASE_NAME = "org.opencontainers.image.base.name"
_BASE_DIGEST = "org.opencontainers.image.base.digest"
_IN_IMAGE = "opt/toolkit-installer/sbom.cdx.json"


class ReleaseError(Exception):
    """What keeps a release from being made; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What is asked for, found fit before anything is built."""

    image: str
    base: str
    payload: Mapping[str, str]
    """The one variable that says where it is from."""
    source: statements.Source
    builder: str
    flags: tuple[str, ...]

    @property
    def created(self) -> str:
        """The time of all files, as RFC 3339 has it."""
        return dt.datetime.fromtimestamp(self.source.epoch, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def request(given: Mapping[str, str]) -> Request:
    """Return what the variables ask for. Raises ReleaseError."""
    image, base = given.get("IMAGE", ""), given.get("BASE_IMAGE", "")
    if not re.fullmatch(r"[a-z0-9][\w.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)+", image):
        raise ReleaseError(f"IMAGE={image!r} is no name without a tag: registry.example/toolkit-installer is one")
    if not _BY_DIGEST.fullmatch(base):
        raise ReleaseError(f"BASE_IMAGE={base!r} may be another image tomorrow: give NAME@sha256:DIGEST, of an index")
    payload = {name: given[name] for name in ("PAYLOAD_IMAGE", "PAYLOAD") if given.get(name)}
    if len(payload) != 1:
        raise ReleaseError("give one of PAYLOAD_IMAGE=NAME@sha256:DIGEST and PAYLOAD=FOLDER")
    if not _BY_DIGEST.fullmatch(payload.get("PAYLOAD_IMAGE", base)):
        raise ReleaseError(f"PAYLOAD_IMAGE={payload['PAYLOAD_IMAGE']!r} names no digest: give NAME@sha256:DIGEST")
    if "PAYLOAD" in payload and not Path(payload["PAYLOAD"]).is_dir():
        raise ReleaseError(f"PAYLOAD={payload['PAYLOAD']}: there is no such folder")
    project = given.get(project_urls.VARIABLE, "").rstrip("/")
    try:
        project_urls.urls(project, __version__)
    except ValueError as error:
        raise ReleaseError(str(error)) from error
    if not (builder := given.get("BUILDER") or next(filter(shutil.which, _BUILDERS), "")):
        raise ReleaseError("neither podman nor buildah is here: install one of them")
    if builder not in _BUILDERS:
        raise ReleaseError(f"BUILDER={builder} makes no index for two machines here: podman and buildah do")
    source = statements.Source(
        project=project,
        version=__version__,
        revision=given.get("REVISION") or _commit(),
        epoch=int(given.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")),
        parameters={"image": image, "base": base, "payload": payload.get("PAYLOAD_IMAGE", "a folder")},
        builder=given.get("BUILDER_ID") or f"{project}/make-release",
    )
    return Request(image, base, payload, source, builder, tuple(given.get("BUILDER_FLAGS", "").split()))


def _commit() -> str:
    if _git("status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed, and the provenance names a commit: commit them")
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    return _run("git", "-C", str(PROJECT), *arguments)


def make(asked: Request, folder: Path) -> str:
    """Build all of it in a new folder; return the image's name by its digest. Raises ReleaseError, LayoutError."""
    layout = _built(asked, folder / "image")
    index, machines = layout.index(), layout.machines()
    if set(machines) != set(MACHINES):
        raise ReleaseError(f"the index is for {', '.join(machines)}, and not for {' and '.join(MACHINES)}")
    bills = {machine: _bill(layout, described) for machine, described in machines.items()}
    if len(set(map(_toolkit, bills.values()))) != 1:
        said = "; ".join(f"{machine} has {_toolkit(bill)}" for machine, bill in bills.items())
        raise ReleaseError(f"the payload's releases differ ({said}): give one release for both machines")
    for machine, bill in bills.items():
        _state(layout, machines[machine], BILL, f"sbom-{machine}.cdx.json", bill, asked.created)
    subjects = {asked.image: index["digest"]} | {
        f"{asked.image}-{machine}": described["digest"] for machine, described in machines.items()
    }
    digests = {name: digest.removeprefix("sha256:") for name, digest in subjects.items()}
    where_from = statements.provenance(asked.source, digests, _materials(asked, bills))
    unused = statements.not_affected((PROJECT / "images/not-affected.toml").read_text())
    payload = _toolkit(bills["amd64"])
    holes = statements.vex(asked.source, asked.image, digests[asked.image], payload, asked.created, unused)
    for kind, name, document in (
        (statements.PROVENANCE, "provenance.intoto.json", where_from),
        (statements.VEX, "vex.openvex.json", holes),
    ):
        _state(layout, index, kind, name, json.dumps(document, indent=2).encode() + b"\n", asked.created)
    return f"{asked.image}@{index['digest']}"


def _built(asked: Request, folder: Path) -> Layout:
    """Build the image for both machines, and put it into a layout."""
    names = {machine: f"localhost/toolkit-installer-release:{machine}" for machine in MACHINES}
    for machine, name in names.items():
        variables = {
            "BUILDER": asked.builder,
            "IMAGE": name,
            "PLATFORM": f"linux/{machine}",
            "REVISION": asked.source.revision,
            "SOURCE_DATE_EPOCH": str(asked.source.epoch),
        }
        _run(str(PROJECT / "images/build"), environment=variables)
    builder = (asked.builder, *asked.flags)
    index = f"localhost/toolkit-installer-index:{uuid.uuid4().hex}"  # a name that nobody else's index has
    _run(*builder, "manifest", "create", index)
    try:
        for name in names.values():
            _run(*builder, "manifest", "add", index, f"containers-storage:{name}")
        _run(*builder, "manifest", "push", "--all", "--format", "oci", index, f"oci:{folder}:{__version__}")
    finally:
        _run(*builder, "manifest", "rm", index)
    layout = Layout(folder)
    layout.restate(functools.partial(name_base, asked.base))
    return layout


def name_base(base: str, manifest: dict[str, Any], config: dict[str, Any]) -> None:
    """Name the base as it was asked for: a builder does it by any name that its store has for the same image."""
    _, _, digest = base.partition("@")
    manifest["annotations"] = manifest.get("annotations", {}) | {_BASE_NAME: base, _BASE_DIGEST: digest}
    config["history"] = [{key: each[key] for key in each if key != "comment"} for each in config["history"]]


def _bill(layout: Layout, manifest: Mapping[str, Any]) -> bytes:
    """Return the bill of materials that an image has in it."""
    for layer in reversed(layout.document(dict(manifest))["layers"]):
        with tarfile.open(fileobj=io.BytesIO(layout.content(layer))) as archive:
            named = {member.name.removeprefix("./"): member for member in archive}
            if _IN_IMAGE in named and (stream := archive.extractfile(named[_IN_IMAGE])) is not None:
                return stream.read()
    raise ReleaseError(f"no layer of the image has /{_IN_IMAGE}")


def _toolkit(bill: bytes) -> str | None:
    """Return the release of NVIDIA's toolkit in an image."""
    releases = {
        each.get("version") for each in json.loads(bill)["components"] if each["bom-ref"].startswith("payload/")
    }
    return releases.pop() if len(releases) == 1 else None


def _materials(asked: Request, bills: Mapping[str, bytes]) -> Iterator[Mapping[str, Any]]:
    """Yield what went into the images beside the project's own files."""
    images = [asked.base, *(each for name, each in asked.payload.items() if name == "PAYLOAD_IMAGE")]
    for name, _, digest in (each.partition("@sha256:") for each in images):
        yield {"uri": f"oci://{name}", "digest": {"sha256": digest}}
    found: dict[tuple[str, str], None] = {}
    for bill in bills.values():
        for each in json.loads(bill)["components"]:
            if each["bom-ref"].startswith("packages/"):
                found |= {(each["purl"], entry["content"]): None for entry in each["hashes"]}
            if each["bom-ref"].startswith("payload/") and "PAYLOAD" in asked.payload:
                found |= {(file["name"], file["hashes"][0]["content"]): None for file in each["components"]}
    for uri, digest in sorted(found):
        yield {"uri": uri, "digest": {"sha256": digest}}


def _state(layout: Layout, subject: dict[str, Any], kind: str, name: str, content: bytes, created: str) -> None:
    layout.attach(subject, kind, name, content, created)
    (layout.folder.parent / name).write_bytes(content)


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(  # noqa: S603  # the publisher's own programs
        command, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def checksums(folder: Path) -> str:
    """Return what sha256sum prints of all files of a folder, but for the layout's, whose names say it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and folder / "image" not in path.parents)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files)


def main(folder: Path) -> int:
    """Make the release in a folder that takes the place of an older one; return the exit code."""
    from tests.support import release  # noqa: PLC0415  # kustomize and Helm are built for the project's own checks

    new = folder.with_name(f"{folder.name}.new")
    try:
        asked = request(os.environ)
        _remove(new)
        new.mkdir(parents=True)
        image = make(asked, new)
        release.manifests_of(image, new, asked.source.epoch)
    except (ReleaseError, LayoutError, release.NotFitError) as error:
        print(f"make release: {error}", file=sys.stderr)
        return 2
    (new / "SHA256SUMS").write_text(checksums(new))
    _remove(folder)
    new.rename(folder)
    print(image)
    return 0


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
