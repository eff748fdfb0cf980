"""Takes of a payload what the installer installs, from whatever it comes in.

    PYTHONPATH=PROJECT python gather.py PAYLOAD ARTIFACTS [MACHINE]

PAYLOAD is NVIDIA's image (its /artifacts, or before it had one its own /), a folder with .deb or .rpm files, which may
be for several machines, or any folder with usr/bin/nvidia-container-runtime below it; or a folder with such a one for
each machine, amd64 and arm64. ARTIFACTS gets a folder for each kind: deb, rpm. MACHINE is x86_64 or aarch64: this
machine's, unless given.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rpmfile
from debian import debfile

from toolkit_installer.errors import PayloadError
from toolkit_installer.node.reading import Tree
from toolkit_installer.toolkit import payload

KINDS = ("deb", "rpm")
"""What the installer looks for below /artifacts: which of the two depends on the node (--toolkit-package-type)."""
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What builders and Debian call the machines."""
_WANTED = ("usr/bin/", "usr/lib", "usr/share/doc/", "usr/share/licenses/", "etc/nvidia-container-runtime/")
_TERMS = ("usr/share/doc/*nvidia-container*/copyright", "usr/share/licenses/*nvidia-container*/*")


@dataclass(frozen=True)
class Entry:
    """A file of a package: `name` relative to the root, `target` where a symlink leads (then it has no content)."""

    name: str
    mode: int
    content: bytes
    target: str | None


def main(source: Path, artifacts: Path, machine: str) -> None:
    """Gather what `source` holds below `artifacts`, or end with one message that says what is missing."""
    with tempfile.TemporaryDirectory() as scratch:
        for kind, root in _roots(source, machine, Path(scratch)).items():
            try:
                found = payload.find_payload(Tree(str(root)), str(root), machine)
            except PayloadError as error:
                # what it advises is for who runs the installer, not for who builds its image
                remedy = f"give a whole one for {machine}, as PAYLOAD or PAYLOAD_IMAGE"
                raise SystemExit(f"gather: {error.path}: {error.reason} ({remedy})") from None
            _copy(found, root, artifacts / kind)
            print(f"gather: {kind} payload of {len(found.programs)} programs and {len(found.libraries)} libraries")


def _roots(source: Path, machine: str, scratch: Path) -> dict[str, Path]:
    """Return the folder that stands for `/` of each kind of payload."""
    if any((source / name).is_dir() for name in _MACHINES.values()):
        source /= _MACHINES[machine]
        if not source.is_dir():
            raise SystemExit(f"gather: the payload has folders for machines, and none of them is {source.name}")
    image = {kind: source / "artifacts" / kind for kind in KINDS}
    if any(map(Path.is_dir, image.values())):
        return {kind: root for kind, root in image.items() if root.is_dir()}
    packages = {kind: sorted(source.glob(f"*.{kind}")) for kind in KINDS}
    if any(packages.values()):
        fitting = {kind: [each for each in files if _is_for(each, machine)] for kind, files in packages.items()}
        if not any(fitting.values()):
            raise SystemExit(f"gather: none of the payload's packages is for {machine}")
        for kind, files in fitting.items():
            for file in files:
                _unpack(file, scratch / kind)
        return {kind: scratch / kind for kind, files in fitting.items() if files}
    if not any(source.iterdir()):
        raise SystemExit("gather: no payload is given: give PAYLOAD_IMAGE, or a build context named payload")
    return {"deb": source}


def _is_for(package: Path, machine: str) -> bool:
    """Tell whether a package is for a machine, or for all of them."""
    if package.suffix == ".deb":
        with debfile.DebFile(str(package)) as opened:
            return opened.debcontrol()["Architecture"] in (_MACHINES[machine], "all")
    with rpmfile.open(str(package)) as opened:
        found = opened.headers["arch"]
    return (found.decode() if isinstance(found, bytes) else found) in (machine, "noarch")


def _unpack(package: Path, root: Path) -> None:
    entries = _deb_entries(package) if package.suffix == ".deb" else _rpm_entries(package)
    for entry in entries:
        name = posixpath.normpath(entry.name.lstrip("/"))
        if not name.startswith(_WANTED):
            continue
        path = root / name
        if not path.parent.resolve().is_relative_to(root.resolve()):
            raise SystemExit(f"gather: {package.name} has /{name}, which a symlink leads elsewhere")
        if path.is_symlink() or path.exists():
            raise SystemExit(
                f"gather: {package.name} has /{name}, and another package too: "
                "give one release of each package, for one architecture"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.target is not None:
            path.symlink_to(entry.target)
        else:
            path.write_bytes(entry.content)
            path.chmod(entry.mode)


def _deb_entries(package: Path) -> Iterator[Entry]:
    with debfile.DebFile(str(package)) as opened, opened.data.tgz() as archive:
        for member in archive.getmembers():
            if member.issym():
                yield Entry(member.name, member.mode, b"", member.linkname)
            elif stream := archive.extractfile(member):
                yield Entry(member.name, member.mode, stream.read(), None)


def _rpm_entries(package: Path) -> Iterator[Entry]:
    with rpmfile.open(str(package)) as opened:
        for member in opened.getmembers():
            content = opened.extractfile(member).read()
            yield Entry(member.name, member.mode, content, content.decode() if member.issymlink else None)


def _copy(found: payload.Payload, root: Path, artifacts: Path) -> None:
    """Copy the files of a payload under the paths at which the installer looks for them, and their licences."""
    tree = Tree(str(root))
    programs = {f"{payload.PROGRAM_FOLDERS[0]}/{name}": source for name, source in found.programs}
    for path, source in programs.items():
        _put(Path(tree.outside(source)), artifacts / path.lstrip("/"), 0o755)
    for library in found.libraries:
        folder = artifacts / posixpath.dirname(library.source).lstrip("/")
        _put(Path(tree.outside(library.source)), folder / library.name, 0o644)
        if library.name != library.soname:
            (folder / library.soname).symlink_to(library.name)
    if found.config is not None:
        config = artifacts / payload.CONFIG.lstrip("/")
        config.parent.mkdir(parents=True)
        config.write_bytes(found.config)
        config.chmod(0o644)
    for pattern in _TERMS:
        for terms in root.glob(pattern):
            _put(terms, artifacts / terms.relative_to(root), 0o644)


def _put(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *(sys.argv[3:] or [os.uname().machine]))
