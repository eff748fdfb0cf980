"""Writes what the image adds to its base as a bill of materials: CycloneDX, from the lock.

    python images/sbom.py LOCK      (on standard output)

The lock says all of it: each distribution's name and version, and the hashes that any of its files may have.
"""

from __future__ import annotations

import re
import sys
import uuid
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement

from toolkit_installer import __version__

_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bill(lock: str, version: str) -> str:
    """Return the document for the requirements in `lock`, each with hashes, and this project's `version`."""
    bom = Bom()
    own = Component(
        name="toolkit-installer",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="toolkit-installer",
        licenses=[LicenseExpression("Apache-2.0")],
    )
    bom.metadata.component = own
    components = [_component(line) for line in _lines(lock) if _for_linux(line)]
    for component in components:
        bom.components.add(component)
    bom.register_dependency(own, components)
    # The same lock gives the same document: neither the time nor a random number is in it.
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, version + lock)
    bom.metadata.timestamp = None  # type: ignore[assignment]  # it is optional in the format
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"


def _lines(lock: str) -> list[str]:
    return [line for line in lock.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def _requirement(line: str) -> Requirement:
    return Requirement(line.partition("--hash")[0])


def _for_linux(line: str) -> bool:
    marker = _requirement(line).marker
    return marker is None or marker.evaluate(_LINUX)


def _component(line: str) -> Component:
    requirement = _requirement(line)
    (pin,) = requirement.specifier
    return Component(
        name=requirement.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{requirement.name}@{pin.version}",
        purl=PackageURL("pypi", None, requirement.name, pin.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in _HASH.findall(line)],
    )


if __name__ == "__main__":
    sys.stdout.write(bill(Path(sys.argv[1]).read_text(), __version__))
