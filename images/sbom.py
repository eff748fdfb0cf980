"""Writes the bill of materials of the image, CycloneDX: what its build put into it, and what its base holds.

    PYTHONPATH=PROJECT python sbom.py MACHINE REPORT HOME BASE ARTIFACTS      (on standard output)

MACHINE is what the image is for, REPORT pip's own about the packages that it installed in the environment HOME, BASE
the root of the base, ARTIFACTS the folder of the payload. Only what lies there is named, with the hashes that it has.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, License, LicenseAcknowledgement
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from debian.deb822 import Deb822
from packageurl import PackageURL

from toolkit_installer import __version__

OURS = "toolkit-installer"
ARCHITECTURE = f"{OURS}:architecture"
_TOOLKIT = "nvidia-container-toolkit"
_LIBRARY = re.compile(r"libnvidia-container\.so\.(\d+\.\d+\.\d+\S*)")
_PYTHON_FOLDERS = ("usr/lib/python3*/dist-packages", "usr/local/lib/python3*/site-packages")
_LONGEST_NAME = 80
"""Some packages have the whole text of their licence where its name should stand."""


def bill(machine: str, components: Iterable[Component]) -> str:
    """Return the document for an image of a machine that has these components. Pure."""
    bom = Bom()
    own = Component(
        name=OURS,
        version=__version__,
        type=ComponentType.CONTAINER,
        bom_ref=OURS,
        licenses=[_named("Apache-2.0")],
        properties=[Property(name=ARCHITECTURE, value=machine)],
    )
    bom.metadata.component = own
    found = list(components)
    for component in found:
        bom.components.add(component)
    bom.register_dependency(own, found)
    # The same image has the same document: neither the time nor a random number is in it.
    bom.metadata.timestamp = None  # type: ignore[assignment]  # it is optional in the format
    bom.serial_number = uuid.UUID(int=0)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, _text(bom))
    return _text(bom) + "\n"


def _text(bom: Bom) -> str:
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)


def _named(name: str) -> License:
    """Return a licence by its SPDX identifier, an expression of such, or any other name."""
    acknowledged = LicenseAcknowledgement.DECLARED
    return LicenseFactory().make_from_string(name, license_acknowledgement=acknowledged)


# --- the program's packages ---


def packages(report: Mapping[str, Any], folder: Path) -> Iterator[Component]:
    """Yield what pip's report says was installed into a folder, each with the hash of the file that it came in."""
    licences = {_normal(each.name): each for each in importlib.metadata.distributions(path=[str(folder)])}
    for installed in report["install"]:
        name, version = installed["metadata"]["name"], installed["metadata"]["version"]
        algorithm, _, digest = installed["download_info"]["archive_info"]["hash"].partition("=")
        if algorithm != "sha256":
            raise SystemExit(f"sbom: {name} was checked by {algorithm}, not by sha256 as the locks have it")
        yield _python_package(licences[_normal(name)], version, "packages", digest)


def _python_package(found: importlib.metadata.Distribution, version: str, place: str, digest: str = "") -> Component:
    name = _normal(found.name)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{place}/{name}@{version}",
        purl=PackageURL("pypi", None, name, version),
        licenses=_licence_of(found),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)] if digest else (),
    )


def _normal(name: str) -> str:
    """Return a package's name as indexes have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence_of(found: importlib.metadata.Distribution) -> list[License]:
    """Return what a package says of its licence: PEP 639's expression, else its field, else its classifiers."""
    metadata = found.metadata
    stated = next((metadata[key] for key in ("License-Expression", "License") if metadata[key]), "")
    if stated and "\n" not in stated and len(stated) <= _LONGEST_NAME:
        return [_named(stated)]
    classified = (each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier", ()) if "License ::" in each)
    return [_other(name) for name in sorted(set(classified))]


def _other(name: str) -> License:
    return DisjunctiveLicense(name=name, acknowledgement=LicenseAcknowledgement.DECLARED)


# --- NVIDIA's files ---


def payload(artifacts: Path) -> Iterator[Component]:
    """Yield NVIDIA's toolkit, once for each kind of package that is there, with its files and their hashes."""
    for root in sorted(artifacts.iterdir()):
        files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        releases = {match[1] for match in map(_LIBRARY.fullmatch, (path.name for path in files)) if match}
        version = releases.pop() if len(releases) == 1 else None
        yield Component(
            name=_TOOLKIT,
            version=version,
            type=ComponentType.APPLICATION,
            bom_ref=f"payload/{root.name}",
            purl=PackageURL("generic", "nvidia", _TOOLKIT, version),
            # of the two projects that the files are from
            licenses=[_named("Apache-2.0")],
            components=[_file(path, f"/artifacts/{path.relative_to(artifacts)}") for path in files],
        )


def _file(path: Path, name: str) -> Component:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest)]
    return Component(name=name, type=ComponentType.FILE, bom_ref=f"file{name}", hashes=hashes)


# --- the base ---


def base(root: Path, interpreter: Path) -> Iterator[Component]:
    """Yield what the base holds: its release, its Debian packages, Python, and what Python has installed there."""
    release = _release(root)
    system = release.get("ID", "linux"), release.get("VERSION_ID", "")
    yield Component(
        name=system[0],
        version=system[1] or None,
        type=ComponentType.OPERATING_SYSTEM,
        bom_ref="base",
        description=release.get("PRETTY_NAME"),
    )
    yield from _debian_packages(root, system)
    within = root / str(interpreter).lstrip("/")
    if not _is_of_a_package(root, str(interpreter)):
        version = ".".join(map(str, sys.version_info[:3]))
        yield Component(
            name="python",
            version=version,
            type=ComponentType.APPLICATION,
            bom_ref="base/python",
            purl=PackageURL("generic", None, "python", version),
            licenses=[_named("PSF-2.0")],
            components=[_file(within, str(interpreter))],
        )
    for pattern in _PYTHON_FOLDERS:
        for folder in sorted(root.glob(pattern)):
            found = importlib.metadata.distributions(path=[str(folder)])
            for each in sorted(found, key=lambda each: _normal(each.name)):
                yield _python_package(each, each.version, f"base/{folder.relative_to(root)}")


def _release(root: Path) -> dict[str, str]:
    """Return what os-release(5) says."""
    for path in (root / "etc/os-release", root / "usr/lib/os-release"):
        if path.is_file():
            lines = (line.partition("=") for line in path.read_text().splitlines() if "=" in line)
            return {name: value.strip("\"'") for name, _, value in lines}
    return {}


def _debian_packages(root: Path, system: tuple[str, str]) -> Iterator[Component]:
    status = root / "var/lib/dpkg/status"
    if not status.exists():
        return
    with status.open("rb") as file:
        for paragraph in Deb822.iter_paragraphs(file):
            if not paragraph.get("Status", "").endswith(" installed"):
                continue
            name, version, architecture = (paragraph[field] for field in ("Package", "Version", "Architecture"))
            qualifiers = {"arch": architecture, "distro": "-".join(filter(None, system))}
            yield Component(
                name=name,
                version=version,
                type=ComponentType.LIBRARY,
                bom_ref=f"base/{name}@{version}",
                purl=PackageURL("deb", system[0], name, version, qualifiers),
                licenses=[_other(each) for each in _debian_licences(root / "usr/share/doc" / name / "copyright")],
            )


def _debian_licences(terms: Path) -> list[str]:
    """Return the names of licences in a package's machine-readable file of them (DEP-5); none where it is not."""
    if not terms.is_file():
        return []
    with terms.open("rb") as file:
        paragraphs = list(Deb822.iter_paragraphs(file))
    if not paragraphs or "copyright-format" not in paragraphs[0].get("Format", ""):
        return []
    names = {str(each["License"]).partition("\n")[0].strip() for each in paragraphs if "License" in each}
    return sorted(filter(None, names))


def _is_of_a_package(root: Path, path: str) -> bool:
    """Tell whether dpkg knows a file of the base."""
    lists = (root / "var/lib/dpkg/info").glob("*.list")
    return any(path in file.read_text().splitlines() for file in lists if file.name.startswith(("python", "libpython")))


def main(machine: str, report: Path, home: Path, root: Path, artifacts: Path) -> str:
    """Return the document of an image that is made of these."""
    (folder,) = home.glob("lib/python3*/site-packages")
    found = (
        *packages(json.loads(report.read_text()), folder),
        *payload(artifacts),
        *base(root, (home / "bin/python").resolve()),
    )
    return bill(machine, found)


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1], *map(Path, sys.argv[2:])))
