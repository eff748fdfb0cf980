"""What is stated beside a release: where it is from, and which vulnerabilities are none in it."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from images import release, statements
from images.layout import INDEX, MANIFEST, Layout, LayoutError
from images.statements import NotAffected, Source

PROJECT = Path(__file__).parents[2]
SOURCE = Source(
    project="https://git.example/team/toolkit-installer",
    version="1.2.3",
    revision="0" * 40,
    epoch=0,
    parameters={"image": "registry.example/x"},
    builder="https://ci.example",
)
CREATED = "1970-01-01T00:00:00Z"


def said(payload: str | None, *known: NotAffected) -> dict[str, dict[str, Any]]:
    document = statements.vex(SOURCE, "registry.example/team/x", "a" * 64, payload, CREATED, known)
    return {each["vulnerability"]["name"]: each for each in document["statements"]}


def test_a_hole_that_a_payloads_release_has_closed_is_fixed() -> None:
    assert {each["status"] for each in said("1.19.0").values()} == {"fixed"}


def test_a_hole_that_an_older_payload_still_has_is_said_with_what_to_do() -> None:
    found = said("1.17.4")
    assert found["CVE-2025-23359"]["status"] == "fixed"
    assert found["CVE-2025-23266"]["status"] == "affected"
    assert "1.17.8 or later" in found["CVE-2025-23266"]["action_statement"]


def test_a_release_candidate_counts_as_the_release_before_it() -> None:
    assert said("1.17.8-rc.1")["CVE-2025-23266"]["status"] == "affected"


def test_a_payload_that_does_not_say_its_release_is_no_good_news() -> None:
    assert {each["status"] for each in said(None).values()} == {"under_investigation"}


def test_what_cannot_be_used_in_the_image_is_stated_with_the_reason() -> None:
    unused = NotAffected("CVE-2099-1", "requests", "component_not_present", "it is not there")
    found = said("1.19.0", unused)["CVE-2099-1"]
    assert (found["status"], found["justification"]) == ("not_affected", "component_not_present")
    assert found["products"][0]["subcomponents"] == [{"@id": "pkg:pypi/requests"}]


def test_the_projects_own_list_of_what_is_not_affected_can_be_read() -> None:
    statements.not_affected((PROJECT / "images/not-affected.toml").read_text())


@pytest.mark.parametrize(
    "text",
    [
        '[[statement]]\nvulnerability = "x"\npackage = "y"\njustification = "it is fine"\nimpact = "z"\n',
        '[[statement]]\nvulnerability = "x"\n',
        '[[statement]]\nvulnerability = "x"\npackage = "y"\njustification = "z"\nimpact = "z"\nother = 1\n',
    ],
)
def test_a_statement_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not-affected\.toml"):
        statements.not_affected(text)


def test_the_provenance_names_the_commit_first_and_then_what_went_in() -> None:
    material = {"uri": "oci://base", "digest": {"sha256": "b" * 64}}
    found = statements.provenance(SOURCE, {"x": "a" * 64}, [material])
    assert found["subject"] == [{"name": "x", "digest": {"sha256": "a" * 64}}]
    commit, other = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": SOURCE.revision}
    assert other == material
    assert found["predicate"]["runDetails"]["builder"]["id"] == SOURCE.builder


# --- the layout ---


def built(folder: Path, base: str) -> Layout:
    """Return one image for two machines, without any layer, of a builder that has this name for the base."""
    (folder / "blobs/sha256").mkdir(parents=True)
    empty = Layout(folder)
    manifests = []
    for machine in ("amd64", "arm64"):
        last = {"created_by": "ENTRYPOINT", "comment": f"FROM {base}"}
        config = empty._add(json.dumps({"architecture": machine, "history": [last]}).encode(), "application/config")
        named = {"org.opencontainers.image.base.name": base}
        described = empty._add(json.dumps({"config": config, "layers": [], "annotations": named}).encode(), MANIFEST)
        manifests.append(described | {"platform": {"architecture": machine, "os": "linux"}})
    index = empty._add(json.dumps({"manifests": manifests}).encode(), INDEX)
    index |= {"annotations": {"org.opencontainers.image.ref.name": "1.2.3"}}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [index]}))
    return empty


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return built(tmp_path, "registry.example/base:1")


def test_a_release_is_the_same_whatever_its_builder_calls_the_base(tmp_path: Path) -> None:
    base = f"registry.example/base@sha256:{'a' * 64}"
    found = []
    for name in ("registry.example/base:1", "localhost/mine:2"):
        layout = built(tmp_path / name.replace("/", "-"), name)
        layout.restate(functools.partial(release.name_base, base))
        found.append({path.name: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()})
        for machine, described in layout.machines().items():
            manifest = layout.document(described)
            assert manifest["annotations"]["org.opencontainers.image.base.name"] == base
            assert manifest["annotations"]["org.opencontainers.image.base.digest"] == base.partition("@")[2]
            config = layout.document(manifest["config"])
            assert config == {"architecture": machine, "history": [{"created_by": "ENTRYPOINT"}]}
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 2 + 1 + 1, "what was there before is gone"


def test_what_refers_to_an_image_is_found_from_the_layout_and_has_its_content(layout: Layout) -> None:
    subject = layout.machines()["arm64"]
    described = layout.attach(subject, "application/x", "x.json", b"{}\n", CREATED)
    manifest = layout.document(described)
    assert manifest["subject"]["digest"] == subject["digest"]
    assert manifest["artifactType"] == "application/x"
    assert layout.content(manifest["layers"][0]) == b"{}\n"
    top = json.loads((layout.folder / "index.json").read_text())
    assert [each["digest"] for each in top["manifests"]] == [layout.index()["digest"], described["digest"]]


def test_what_is_attached_twice_is_there_once(layout: Layout) -> None:
    before = layout.attach(layout.index(), "application/x", "x.json", b"{}\n", CREATED)
    seen = {path: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()}
    assert layout.attach(layout.index(), "application/x", "x.json", b"{}\n", CREATED) == before
    assert {path: path.read_bytes() for path in layout.folder.rglob("*") if path.is_file()} == seen


def test_a_blob_that_is_not_what_its_name_says_is_refused(layout: Layout) -> None:
    described = layout.index()
    (layout.folder / "blobs" / described["digest"].replace(":", "/")).write_bytes(b"{}")
    assert hashlib.sha256(b"{}").hexdigest() not in described["digest"]
    with pytest.raises(LayoutError, match="is not what its name says"):
        layout.machines()


def test_a_layout_of_an_image_for_one_machine_is_refused(layout: Layout) -> None:
    top = json.loads((layout.folder / "index.json").read_text())
    top["manifests"][0]["mediaType"] = MANIFEST
    (layout.folder / "index.json").write_text(json.dumps(top))
    with pytest.raises(LayoutError, match="names no single index"):
        layout.index()
