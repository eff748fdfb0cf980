"""What is stated about a release beside its image, for whoever is to trust it: where it is from, and what it is not.

Both documents are made of values alone, and without a time or a random number: the same release has the same ones. They
are not signed here: the publisher signs, see docs/verify.md.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit_installer.toolkit.payload import FIXES, Version, payload_version

PROVENANCE = "application/vnd.in-toto+json"
VEX = "application/vnd.openvex+json"
Document = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Source:
    """What a release is made of, and by whom."""

    project: str
    """The address of the project's page."""
    version: str
    revision: str
    epoch: int
    """The time of all files, in seconds since 1970."""
    parameters: Mapping[str, Any]
    """What was asked of the build."""
    builder: str
    """The address that says who ran it."""


def provenance(source: Source, subjects: Mapping[str, str], materials: Iterable[Mapping[str, Any]]) -> Document:
    """Return an in-toto statement with SLSA's provenance, 1.0, of an image. Pure.

    `subjects` are the hashes (sha256) of the index and of its manifests by their names, `materials` what else went into
    them, each with its `uri` and its `digest`.
    """
    commit = {
        "uri": f"git+{source.project}@refs/tags/v{source.version}",
        "digest": {"gitCommit": source.revision},
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{source.project}/make-release/v1",
                "externalParameters": dict(source.parameters),
                "internalParameters": {"SOURCE_DATE_EPOCH": source.epoch},
                "resolvedDependencies": [commit, *map(dict, materials)],
            },
            "runDetails": {"builder": {"id": source.builder}},
        },
    }


_JUSTIFICATIONS = (
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
)
"""OpenVEX's."""


@dataclasses.dataclass(frozen=True)
class NotAffected:
    """A vulnerability of a package in the image that cannot be used there, and why."""

    vulnerability: str
    package: str
    justification: str
    impact: str


def not_affected(text: str) -> tuple[NotAffected, ...]:
    """Return the statements of not-affected.toml. Pure. Raises ValueError for what is none."""
    try:
        found = tuple(NotAffected(**each) for each in tomllib.loads(text).get("statement", ()))
    except TypeError as error:
        raise ValueError(f"not-affected.toml: {error}") from error
    for each in found:
        if each.justification not in _JUSTIFICATIONS:
            raise ValueError(f"not-affected.toml: {each.justification!r} is none of {', '.join(_JUSTIFICATIONS)}")
    return found


def vex(
    source: Source, image: str, digest: str, payload: str | None, created: str, known: Iterable[NotAffected]
) -> Document:
    """Return what is known of vulnerabilities of what is in the image, as OpenVEX 0.2.0. Pure.

    They are those of NVIDIA's toolkit that the installer warns of, and those in `known`. `payload` is the toolkit's
    release in the image, None where its files do not tell it. `created` is a time as RFC 3339 has it.
    """
    release = None if payload is None else payload_version(f"version {payload}")
    repository, _, name = image.rpartition("/")
    product = f"pkg:oci/{name}@sha256%3A{digest}?repository_url={repository}/{name}"
    toolkit = "pkg:generic/nvidia/nvidia-container-toolkit" + (f"@{payload}" if payload else "")
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": f"{source.project}/vex/{source.version}/{digest}",
        "author": source.project,
        "timestamp": created,
        "version": 1,
        "statements": [
            *(
                _statement(each, product, toolkit, _status(release, fixed))
                for fixed, names in FIXES
                for each in names.split(" and ")
            ),
            *(_statement(each.vulnerability, product, f"pkg:pypi/{each.package}", _unused(each)) for each in known),
        ],
    }


def _statement(vulnerability: str, product: str, part: str, status: Mapping[str, str]) -> Document:
    products = [{"@id": product, "subcomponents": [{"@id": part}]}]
    return {"vulnerability": {"name": vulnerability}, "products": products, **status}


def _unused(each: NotAffected) -> Mapping[str, str]:
    return {"status": "not_affected", "justification": each.justification, "impact_statement": each.impact}


def _status(known: Version | None, fixed: Version) -> Mapping[str, str]:
    release = ".".join(map(str, fixed))
    if known is None:
        return {"status": "under_investigation", "status_notes": f"The image's toolkit is to be {release} or later."}
    if known >= fixed:
        return {"status": "fixed"}
    statement = f"Build the image with a payload of NVIDIA's toolkit {release} or later."
    return {"status": "affected", "action_statement": statement}
