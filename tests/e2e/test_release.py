"""What is published: an image for two machines, by way of a real registry, and what is stated about it."""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import toolkit_installer
from images import release
from images.layout import Layout
from tests.e2e import registry
from tests.e2e.registry import Registry
from tests.support import chart, payloads
from tests.support.built import commands, go_tools, installer_image
from tests.support.built.go_tools import Tool
from tests.support.built.installer_image import BuiltImage

pytestmark = pytest.mark.alone  # a release takes minutes: it is made once for all of these tests, by one worker
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
PAYLOAD = "1.19.0"
REVISION = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "team/toolkit-installer"
HOME = "opt/toolkit-installer"


class ProgramError(Exception):
    """A program of the tests' own failed; the message has its words."""


@dataclass(frozen=True)
class Published:
    """A release in a folder, made twice, and in a registry."""

    folder: Path
    again: Path
    said: str
    """What `make release` printed of it."""
    registry: Registry
    oras: Callable[..., str]

    @property
    def layout(self) -> Layout:
        return Layout(self.folder / "image")

    @property
    def name(self) -> str:
        return f"{self.registry.name}/{REPOSITORY}"

    @property
    def digest(self) -> str:
        return str(self.layout.index()["digest"])

    def document(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / name).read_text()))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    if registry.missing():
        pytest.skip("not installed: docker-registry (Debian's package docker-registry)")
    with Registry(tmp_path_factory.mktemp("registry") / "registry") as running:
        yield running


@pytest.fixture(scope="module")
def published(
    built_image: BuiltImage, here: Registry, go_tool: Callable[[Tool], Path], tmp_path_factory: pytest.TempPathFactory
) -> Published:
    folder = tmp_path_factory.mktemp("release")
    store = built_image.store
    installer_image.foreign_base(store, "arm64", "localhost/base-arm64:1")
    digest = pushed_base(store, here)
    given = folder / "payload"
    shutil.copytree(installer_image.payload(), given / "amd64", symlinks=True)
    payloads.build(given / "arm64", machine="aarch64", version=PAYLOAD)
    wheels = folder / "wheels"
    for machine in MACHINES:
        installer_image.fetch_wheels(wheels, PLATFORM=f"linux/{machine}")
    variables = {
        "BUILDER": "buildah",
        "BUILDAH_ISOLATION": "chroot",
        "BUILDER_FLAGS": f"--root {store / 'root'} --runroot {store / 'run'}",
        "BUILD_FLAGS": "--tls-verify=false",
        "BASE_IMAGE": f"{here.name}/base@{digest}",
        "IMAGE": f"{here.name}/{REPOSITORY}",
        "PAYLOAD": str(given),
        "WHEELS": str(wheels),
        "REVISION": REVISION,
        "SOURCE_DATE_EPOCH": "1700000000",
        "PROJECT_URL": installer_image.PROJECT_URL,
    }

    def made(name: str) -> str:
        return commands.output(
            [sys.executable, "-m", "images.release", folder / name],
            ProgramError,
            seconds=900,
            folder=installer_image.PROJECT,
            environment=variables,
        )

    said = made("first")
    installer_image.buildah(store, "tag", variables["BASE_IMAGE"], "localhost/base-by-another-name:1")
    made("second")
    program = go_tool(go_tools.ORAS) / "oras"

    def oras(*arguments: str | Path) -> str:
        home = {"HOME": str(folder)}  # it keeps credentials and a cache there
        return commands.output([program, *arguments], ProgramError, seconds=120, environment=home)

    oras(*lines_of_verify("oras cp", folder / "first", f"{here.name}/{REPOSITORY}"), "--to-plain-http")
    return Published(folder / "first", folder / "second", said, here, oras)


def pushed_base(store: Path, here: Registry) -> str:
    """Push the bases of both machines as one index, and return its digest."""
    index = f"localhost/bases:{uuid.uuid4().hex}"  # a name that no killed run left
    bases = (f"containers-storage:{installer_image.BASE}", "containers-storage:localhost/base-arm64:1")
    installer_image.buildah(store, "manifest", "create", index, *bases)
    try:
        installer_image.buildah(
            store, "manifest", "push", "--all", "--tls-verify=false", index, f"docker://{here.name}/base:1"
        )
    finally:
        installer_image.buildah(store, "manifest", "rm", index)
    return here.digest("base", "1")


def lines_of_verify(command: str, folder: Path, image: str) -> list[str]:
    """Return a command of publishing.md or verify.md, for a release in `folder` that is published as `image`."""
    text = "".join((installer_image.PROJECT / name).read_text() for name in ("docs/publishing.md", "docs/verify.md"))
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    (found,) = (line for line in lines if line.startswith(f"{command} "))
    words = found.partition("#")[0].split()
    version = toolkit_installer.__version__
    given = {"dist/release": str(folder), "registry.example/toolkit-installer": image, "0.1.0": version}
    for old, new in given.items():
        words = [word.replace(old, new) for word in words]
    return words[1:]


def files_of(published: Published, machine: str) -> dict[str, tarfile.TarInfo]:
    """Return what the image adds to its base, by name."""
    return {member.name.lstrip("./"): member for member in layer(published, machine).getmembers()}


def layer(published: Published, machine: str) -> tarfile.TarFile:
    described = published.layout.machines()[machine]
    digest = published.layout.document(described)["layers"][-1]["digest"]
    return tarfile.open(published.folder / "image/blobs" / digest.replace(":", "/"))


def parts_of(layout: Layout) -> dict[str, Any]:
    """Return what a difference between two images is to be read from: the documents, and each file's hash."""
    parts: dict[str, Any] = {}
    for machine, described in layout.machines().items():
        manifest = layout.document(described)
        parts[f"{machine} manifest"] = {key: manifest[key] for key in manifest if key not in ("config", "layers")}
        parts[f"{machine} config"] = layout.document(manifest["config"])
        with tarfile.open(fileobj=io.BytesIO(layout.content(manifest["layers"][-1]))) as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() else None
                said = hashlib.sha256(stream.read()).hexdigest() if stream else member.linkname
                parts[f"{machine} {member.name}"] = (member.mode, member.mtime, said)
    return parts


def content(published: Published, machine: str, name: str) -> bytes:
    with layer(published, machine) as archive:
        stream = archive.extractfile(next(each for each in archive if each.name.lstrip("./") == name))
        assert stream is not None
        return stream.read()


# --- the image ---


def test_two_releases_of_one_commit_are_the_same_to_the_bit(published: Published) -> None:
    """Even where the builder's store has got another name for the same base in between."""
    seen = [
        {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        for folder in (published.folder, published.again)
    ]
    if seen[0] != seen[1]:
        first, second = (parts_of(Layout(folder / "image")) for folder in (published.folder, published.again))
        assert first == second
    assert sorted(seen[0]) == sorted(seen[1])
    assert [name for name in seen[0] if seen[0][name] != seen[1][name]] == []


def test_the_programs_of_each_machine_are_its_own(published: Published) -> None:
    numbers = {"amd64": 62, "arm64": 183}  # e_machine of ELF: EM_X86_64, EM_AARCH64
    for machine, number in numbers.items():
        with layer(published, machine) as archive:
            compiled = [
                (member.name, int.from_bytes(head[18:20], "little"))
                for member in archive
                if (stream := archive.extractfile(member) if member.isfile() else None)
                and (head := stream.read(20)).startswith(b"\x7fELF")
            ]
        assert {each for _, each in compiled} == {number}, compiled
        names = " ".join(name for name, _ in compiled)
        assert "grpc" in names
        assert "psutil" in names
        assert "nvidia-container-runtime" in names


def test_nothing_but_what_is_compiled_for_a_machine_differs(published: Published) -> None:
    """The bytecode of a machine that nothing was run on is that of the other one."""
    found = [set(files_of(published, machine)) for machine in MACHINES]
    bytecode = [{name for name in names if name.endswith(".pyc") and "sysconfigdata" not in name} for names in found]
    assert len(bytecode[0]) > 500
    assert bytecode[0] ^ bytecode[1] == set()
    with layer(published, "arm64") as archive:
        flags = {
            int.from_bytes(stream.read(8)[4:], "little")
            for member in archive
            if member.name.endswith(".pyc") and (stream := archive.extractfile(member))
        }
    assert flags == {1}, "PEP 552: 1 is bytecode with a hash, not checked against the source"


def test_the_image_is_pulled_by_its_digest_from_a_registry_and_runs(
    published: Published, built_image: BuiltImage
) -> None:
    assert published.said == f"{published.name}@{published.digest}\n"
    assert published.registry.digest(REPOSITORY, toolkit_installer.__version__) == published.digest
    store = built_image.store
    pulled = f"{published.name}@{published.digest}"
    container = installer_image.buildah(store, "from", "--tls-verify=false", pulled)
    try:
        said = installer_image.buildah(
            store, "run", "--isolation", "chroot", container, "--", "toolkit-installer", "--version"
        )
    finally:
        installer_image.buildah(store, "rm", container)
        installer_image.buildah(store, "rmi", pulled)
    assert said == (
        f"toolkit-installer {toolkit_installer.__version__} (revision {REVISION})\n"
        f"payload: NVIDIA container toolkit {PAYLOAD} in /artifacts/deb"
    )


# --- what is stated of it ---


def test_what_is_stated_is_found_in_the_registry_from_the_image(published: Published, tmp_path: Path) -> None:
    machines = published.layout.machines()
    wanted = {
        published.digest: {"provenance.intoto.json", "vex.openvex.json"},
        **{described["digest"]: {f"sbom-{machine}.cdx.json"} for machine, described in machines.items()},
    }
    for digest, names in wanted.items():
        subject = f"{published.name}@{digest}"
        listed = json.loads(published.oras("discover", "--plain-http", "--format", "json", subject))
        fetched: dict[str, bytes] = {}
        for each in listed.get("referrers", listed.get("manifests", [])):
            manifest = published.registry.manifest(REPOSITORY, each["digest"])
            assert manifest["subject"]["digest"] == digest
            folder = tmp_path / each["digest"].replace(":", "-")
            source = f"{published.name}@{each['digest']}"
            published.oras("pull", "--plain-http", "--output", folder, source)
            fetched |= {path.name: path.read_bytes() for path in folder.iterdir()}
        assert set(fetched) == names
        assert all(text == (published.folder / name).read_bytes() for name, text in fetched.items())


@pytest.mark.parametrize("machine", MACHINES)
def test_the_bill_of_materials_names_what_is_in_the_image_with_its_own_hashes_alone(
    published: Published, machine: str
) -> None:
    bill = published.document(f"sbom-{machine}.cdx.json")
    assert (
        content(published, machine, f"{HOME}/sbom.cdx.json")
        == (published.folder / f"sbom-{machine}.cdx.json").read_bytes()
    )
    by_place: dict[str, dict[str, Any]] = {}
    for each in bill["components"]:
        by_place.setdefault(each["bom-ref"].partition("/")[0], {})[each["name"]] = each
    folders = re.findall(
        rf"{HOME}/lib/[^/]+/site-packages/([^/]+)-[^/-]+\.dist-info/METADATA", "\n".join(files_of(published, machine))
    )
    installed = {name.lower().replace("_", "-") for name in folders}
    assert set(by_place["packages"]) == installed - {"toolkit-installer"}
    assert len(by_place["packages"]) > 10
    for each in by_place["packages"].values():
        assert len(each["hashes"]) == 1
        assert each["licenses"], each
    (toolkit,) = by_place["payload"].values()
    assert toolkit["version"] == PAYLOAD
    assert toolkit["licenses"]
    for file in toolkit["components"]:
        digest = hashlib.sha256(content(published, machine, file["name"].lstrip("/"))).hexdigest()
        assert [entry["content"] for entry in file["hashes"]] == [digest]
    base = by_place["base"]
    assert {"debian", "python3.11-minimal", "libc6", "dpkg"} <= set(base)
    assert f"arch={machine}" in base["libc6"]["purl"]
    licensed = [name for name, each in base.items() if each.get("licenses")]
    assert len(licensed) > len(base) / 2, sorted(set(base) - set(licensed))


def test_the_bills_of_two_machines_have_the_hashes_of_their_own_files(published: Published) -> None:
    found = [published.document(f"sbom-{machine}.cdx.json")["components"] for machine in MACHINES]
    grpc = [next(each for each in components if each["name"] == "grpcio") for components in found]
    assert grpc[0]["version"] == grpc[1]["version"]
    assert grpc[0]["hashes"] != grpc[1]["hashes"]
    lock = (installer_image.PROJECT / "locks/runtime.txt").read_text()
    assert all(each["hashes"][0]["content"] in lock for each in grpc)


def test_the_provenance_names_the_commit_the_base_and_all_that_went_in(published: Published) -> None:
    statement = published.document("provenance.intoto.json")
    digests = [published.digest, *(each["digest"] for each in published.layout.machines().values())]
    assert [f"sha256:{each['digest']['sha256']}" for each in statement["subject"]] == digests
    definition = statement["predicate"]["buildDefinition"]
    materials = {each["uri"]: each["digest"] for each in definition["resolvedDependencies"]}
    version = toolkit_installer.__version__
    assert materials[f"git+{installer_image.PROJECT_URL}@refs/tags/v{version}"] == {"gitCommit": REVISION}
    base = published.registry.digest("base", "1").removeprefix("sha256:")
    assert materials[f"oci://{published.registry.name}/base"] == {"sha256": base}
    assert any(uri.startswith("pkg:pypi/grpcio@") for uri in materials)
    assert any(uri.endswith("/nvidia-container-runtime") for uri in materials)


def test_the_vex_file_says_which_holes_of_the_toolkit_are_closed_in_the_image(published: Published) -> None:
    document = published.document("vex.openvex.json")
    assert {each["vulnerability"]["name"]: each["status"] for each in document["statements"]} == dict.fromkeys(
        ("CVE-2024-0132", "CVE-2024-0136", "CVE-2024-0137", "CVE-2025-23359", "CVE-2025-23266"), "fixed"
    )
    product = document["statements"][0]["products"][0]["@id"]
    assert product.startswith(f"pkg:oci/toolkit-installer@{published.digest.replace(':', '%3A')}")


def test_the_manifests_and_the_chart_name_the_image_by_its_digest(published: Published) -> None:
    image = published.said.strip()
    made = {path.stem: path.read_text() for path in (published.folder / "manifests").glob("*.yaml")}
    assert set(made) == {"base", *chart.overlays()}
    for name, text in made.items():
        named = set(re.findall(r"^\s*(?:- )?image: (\S+)$", text, re.MULTILINE))
        assert named == {image}, name
    (archive,) = published.folder.glob("*.tgz")
    objects = yaml.safe_load_all(chart.helm("template", "toolkit-installer", archive))
    (daemon_set,) = (each for each in objects if each and each["kind"] == "DaemonSet")
    pod = daemon_set["spec"]["template"]["spec"]
    assert {each["image"] for each in (*pod["initContainers"], *pod["containers"])} == {image}


def test_the_chart_is_pushed_to_a_registry_and_pulled_the_same(published: Published, tmp_path: Path) -> None:
    (archive,) = published.folder.glob("*.tgz")
    charts = f"oci://{published.registry.name}/charts"
    chart.helm("push", archive, charts, "--plain-http")
    version = ("--version", toolkit_installer.__version__)
    chart.helm("pull", f"{charts}/toolkit-installer", *version, "--plain-http", "--destination", tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [archive.read_bytes()]


def test_the_checksums_are_those_of_all_files(published: Published) -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=published.folder, check=False, capture_output=True
    )
    assert checked.returncode == 0, checked.stdout
    assert len((published.folder / "SHA256SUMS").read_text().splitlines()) > 10


# --- what is refused before anything is built ---

FIT = {
    "IMAGE": "registry.example/toolkit-installer",
    "BASE_IMAGE": f"python@sha256:{'0' * 64}",
    "PAYLOAD_IMAGE": f"toolkit@sha256:{'0' * 64}",
    "PROJECT_URL": installer_image.PROJECT_URL,
    "REVISION": REVISION,
    "SOURCE_DATE_EPOCH": "0",
    "BUILDER": "buildah",
}


def test_what_is_fit_is_not_refused() -> None:
    assert release.request(FIT).created == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("IMAGE", "registry.example/toolkit-installer:1", "no name without a tag"),
        ("IMAGE", "toolkit-installer", "no name without a tag"),
        ("BASE_IMAGE", "python:3.11-slim", "may be another image tomorrow"),
        ("BASE_IMAGE", "", "may be another image tomorrow"),
        ("PAYLOAD_IMAGE", "toolkit:v1", "names no digest"),
        ("PAYLOAD_IMAGE", "", "give one of PAYLOAD_IMAGE"),
        ("PAYLOAD", "/", "give one of PAYLOAD_IMAGE"),
        ("PROJECT_URL", "", "PROJECT_URL"),
        ("BUILDER", "docker", "makes no index for two machines here"),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_built(name: str, value: str, said: str) -> None:
    with pytest.raises(release.ReleaseError, match=re.escape(said)):
        release.request(FIT | {name: value})


def test_a_refusal_leaves_an_older_release_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/old").touch()
    done = subprocess.run(
        [sys.executable, "-m", "images.release", tmp_path / "dist"],
        cwd=installer_image.PROJECT,
        env=os.environ | FIT | {"IMAGE": "x"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("make release: IMAGE='x' is no name")
    assert [path.name for path in tmp_path.rglob("*")] == ["dist", "old"]
