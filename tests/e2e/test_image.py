"""The image as `make image` builds it: what is in it, what it weighs, and that it is the same each time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import toolkit_installer
from tests.bench import image_root
from tests.bench.made_node import Place
from tests.support.built import image_files, installer_image
from tests.support.built.installer_image import BuiltImage, ImageBuildError

HOME = "opt/toolkit-installer"
NAMES = ("toolkit-installer", "nvidia-toolkit", "nvidia-ctk-installer")
MEGABYTE = 1_000_000
LIMIT = 45
"""Megabytes, besides the base and the payload."""
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture(scope="module")
def root(built_image: BuiltImage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a root file system of the image; what is written there does not come back."""
    folder = tmp_path_factory.mktemp("image")
    image_files.unpack(built_image.archive, folder)
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


def configuration(image: BuiltImage) -> dict[str, object]:
    with tarfile.open(image.archive) as archive:
        stream = archive.extractfile(str(image_files.described(archive)["Config"]))
        assert stream is not None
        return dict(json.load(stream))


@pytest.fixture
def inside(root: Path) -> Callable[..., str]:
    """Return a function that runs a program in the image and returns what it printed."""

    def run(*command: str, environment: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            ["chroot", str(root), *command],
            env=CLEAN | (environment or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_what_make_bench_measures_is_run_in_the_image(root: Path) -> None:
    assert Place(root, root).cost("--version") > 0, "no processor time"
    assert image_root.python_version(root).startswith("3.")


def test_the_version_names_this_release_its_commit_and_the_payloads(
    inside: Callable[..., str], built_image: BuiltImage
) -> None:
    expected = (
        f"toolkit-installer {toolkit_installer.__version__} (revision {labels(built_image)['revision']})\n"
        "payload: NVIDIA container toolkit 1.19.0 in /artifacts/deb\n"
    )
    assert [inside(name, "--version") for name in NAMES] == [expected] * 3


def test_what_an_operators_entry_point_calls_is_in_the_path(inside: Callable[..., str]) -> None:
    wanted = ("sh", "cat", "sleep", "test", *NAMES)
    script = "for name; do command -v $name >/dev/null || echo $name; done"
    assert inside("/bin/sh", "-c", script, "sh", *wanted) == ""


def test_without_a_command_it_is_the_old_name_and_no_shell_is_between(built_image: BuiltImage) -> None:
    config = configuration(built_image)["config"]
    assert isinstance(config, dict)
    assert config["Entrypoint"] == ["nvidia-toolkit"]
    assert not config.get("Cmd")
    assert "NVIDIA_VISIBLE_DEVICES=void" in config["Env"]


def labels(built_image: BuiltImage) -> dict[str, str]:
    config = configuration(built_image)["config"]
    assert isinstance(config, dict)
    return {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}


def test_its_labels_say_what_it_is(built_image: BuiltImage) -> None:
    said = labels(built_image)
    assert said["title"] == "toolkit-installer"
    assert said["version"] == toolkit_installer.__version__
    assert said["licenses"] == "Apache-2.0"
    assert re.fullmatch("[0-9a-f]{7,}", said["revision"])
    assert said["source"] == installer_image.PROJECT_URL


def test_nothing_of_the_callers_python_reaches_the_program(
    inside: Callable[..., str], root: Path, request: pytest.FixtureRequest
) -> None:
    evil = root / "evil"
    evil.mkdir()
    request.addfinalizer(lambda: subprocess.run(["rm", "-r", str(evil)], check=True))
    for name in ("click.py", "sitecustomize.py", "json.py"):
        (evil / name).write_text("raise SystemExit('the caller was here')\n")
    theirs = {"PYTHONPATH": "/evil", "PYTHONSTARTUP": "/evil/json.py"}
    said = inside("toolkit-installer", "--version", environment=theirs)
    assert said.startswith("toolkit-installer ")


def test_nothing_is_compiled_when_it_starts(root: Path, inside: Callable[..., str]) -> None:
    """A pod whose root is read-only could not keep the bytecode, and would compile everything at each start."""
    script = (
        "import importlib, pkgutil, sys, docker, structlog, tomlkit, toolkit_installer as package\n"
        "for m in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    m.name.endswith('__main__') or importlib.import_module(m.name)\n"
        "for m in list(sys.modules.values()):\n"
        "    c, f = getattr(m, '__cached__', None), getattr(m, '__file__', None)\n"
        "    if m.__name__ != '__main__' and c and f and f.endswith('.py'):\n"
        "        print(c)\n"
    )
    cached = inside(f"/{HOME}/bin/python", "-I", "-B", "-c", script).split()
    assert len(cached) > 300
    absent = [path for path in cached if not (root / path.lstrip("/")).exists()]
    assert absent == []
    flags = {int.from_bytes((root / path.lstrip("/")).read_bytes()[4:8], "little") for path in cached}
    assert flags == {1}, "PEP 552: 1 is bytecode with a hash, not checked against the source"


def test_it_adds_less_than_its_limit_to_the_base(built_image: BuiltImage) -> None:
    weights: dict[str, int] = {}
    with tarfile.open(built_image.archive) as archive:
        _, own = image_files.layers(archive)
        with tarfile.open(fileobj=archive.extractfile(own)) as files:
            for member in files:
                weights[part(member.name)] = weights.get(part(member.name), 0) + member.size
    largest_first = sorted(weights.items(), key=lambda each: -each[1])
    table = "\n".join(f"{size / MEGABYTE:6.1f} MB  {name}" for name, size in largest_first)
    ours = sum(size for name, size in weights.items() if name != "payload")
    assert weights["payload"]
    assert ours / MEGABYTE < LIMIT, table
    assert ours / MEGABYTE > LIMIT / 2, f"something is not counted:\n{table}"


def part(name: str) -> str:
    if name.startswith("artifacts"):
        return "payload"
    if not name.startswith(HOME):
        return "bytecode of the standard library" if name.endswith(".pyc") else "links"
    _, _, below = name.partition("site-packages/")
    return below.split("/")[0].split("-")[0] if below else "the environment"


def test_two_builds_have_one_digest(built_image: BuiltImage) -> None:
    again = "localhost/again:1"
    installer_image.make(built_image.store, again, BUILD_FLAGS="--no-cache")
    names = (again, built_image.reference)
    first, second = (
        installer_image.buildah(built_image.store, "images", "--quiet", "--no-trunc", name) for name in names
    )
    assert first == second


def test_a_payload_of_an_image_gives_the_same_as_one_of_a_folder(built_image: BuiltImage) -> None:
    payload = installer_image.payload()
    container = installer_image.buildah(built_image.store, "from", "scratch")
    installer_image.buildah(built_image.store, "copy", container, payload, "/artifacts/deb")
    installer_image.buildah(built_image.store, "commit", "--rm", container, "localhost/payload:1")
    installer_image.make(built_image.store, "localhost/other:1", PAYLOAD="", PAYLOAD_IMAGE="localhost/payload:1")
    names = ("localhost/other:1", built_image.reference)
    first, second = (
        installer_image.buildah(built_image.store, "images", "--quiet", "--no-trunc", name) for name in names
    )
    assert first == second
    # it is refused while a container of it is left
    installer_image.buildah(built_image.store, "rmi", "localhost/payload:1")


def test_an_incomplete_payload_ends_the_build_and_says_all_that_is_missing(
    built_image: BuiltImage, tmp_path: Path
) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    program = tmp_path / "usr/bin/nvidia-container-runtime"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with pytest.raises(ImageBuildError, match="payload is incomplete") as refusal:
        installer_image.make(built_image.store, "localhost/incomplete:1", tmp_path)
    assert "nvidia-container-cli is missing" in str(refusal.value)
    assert "libnvidia-container.so.1 is missing" in str(refusal.value)


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "no payload: give PAYLOAD_IMAGE"),
        ({"PAYLOAD": "/", "PAYLOAD_IMAGE": "x"}, "both given"),
        ({"PAYLOAD": "/nowhere"}, "/nowhere is no folder"),
        ({"PAYLOAD": "/", "BUILDER": "kaniko"}, "none of docker, podman, buildah"),
    ],
)
def test_what_cannot_be_built_is_refused_before_a_builder_starts(given: dict[str, str], said: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PAYLOAD", "BUILDER"))}
    command = ["make", "--no-print-directory", "image"]
    done = subprocess.run(
        command,
        cwd=installer_image.PROJECT,
        env=environment | given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("platform, machine", [("linux/amd64", "x86_64"), ("linux/arm64", "aarch64")])
def test_all_that_it_is_built_of_can_be_had_for_both_architectures(platform: str, machine: str, tmp_path: Path) -> None:
    installer_image.fetch_wheels(tmp_path, PLATFORM=platform, PYTHON_VERSION="3.11")
    locked = {
        line.split("==")[0].replace("-", "_")
        for name in ("runtime", "build")
        for line in (installer_image.PROJECT / f"locks/{name}.txt").read_text().splitlines()
        if "==" in line and "win32" not in line
    }
    wheels = {path.name.split("-")[0]: path.stem.split("-")[-1] for path in tmp_path.iterdir()}
    assert set(wheels) == locked
    assert machine in wheels["grpcio"]
    assert all(tag == "any" or machine in tag for tag in wheels.values()), wheels


def test_wheels_for_a_machine_that_it_is_not_built_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match="PLATFORM=linux/s390x is none of linux/amd64, linux/arm64"):
        installer_image.fetch_wheels(tmp_path, PLATFORM="linux/s390x")
    assert list(tmp_path.iterdir()) == []


def test_the_bill_of_materials_in_the_image_names_each_package_that_is_installed(root: Path) -> None:
    bill = json.loads((root / HOME / "sbom.cdx.json").read_text())
    folders = root.glob(f"{HOME}/lib/*/site-packages/*.dist-info")
    installed = {path.name.split("-")[0].replace("_", "-") for path in folders}
    named = {each["name"] for each in bill["components"] if each["bom-ref"].startswith("packages/")}
    assert named | {"toolkit-installer"} == installed


def test_the_image_has_the_licences_and_the_package_says_that_it_is_typed(root: Path) -> None:
    for name in ("LICENSE", "NOTICE"):
        assert (root / HOME / name).read_bytes() == (installer_image.PROJECT / name).read_bytes()
    assert [path.name for path in root.glob(f"{HOME}/lib/*/site-packages/toolkit_installer/py.typed")] == ["py.typed"]
