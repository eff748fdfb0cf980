"""What the image takes of a payload: the same files, whatever they come in."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import payloads
from tests.support.built.installer_image import PROJECT
from tests.support.payloads import Generation, Package
from toolkit_installer.node.reading import Tree
from toolkit_installer.toolkit import payload as payload_of

PARTS = {
    "libnvidia-container1": ("usr/lib",),
    "nvidia-container-toolkit": ("usr/bin", "etc"),
}
"""The folders of each of two packages."""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

Packager = Callable[[str, Path, Path], None]


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = payloads.build(tmp_path_factory.mktemp("payload") / "root")
    for package in PARTS:
        terms = root / "usr/share/doc" / package / "copyright"
        terms.parent.mkdir(parents=True)
        terms.write_text(f"the terms of {package}\n")
    (root / "usr/bin/not-ours").write_text("a program that nobody asked for\n")
    return root


def started(source: Path, into: Path, *machine: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / "images/gather.py"), str(source), str(into), *machine]
    environment = {"PYTHONPATH": str(PROJECT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def gathered(source: Path, into: Path, *machine: str) -> dict[str, dict[str, object]]:
    """Return what was taken of each kind: the content and mode of each file, where each symlink leads."""
    done = started(source, into, *machine)
    assert done.returncode == 0, done.stderr
    return {kind.name: seen(kind) for kind in sorted(into.iterdir())}


def seen(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): path.readlink() if path.is_symlink() else (path.stat().st_mode, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def deb(package: str, tree: Path, folder: Path, compression: str = "xz", machine: str = platform.machine()) -> None:
    control = tree / "DEBIAN/control"
    control.parent.mkdir()
    control.write_text(
        f"Package: {package}\nVersion: 1.19.0-1\nArchitecture: {MACHINES[machine]}\n"
        "Maintainer: nobody <nobody@example.test>\nDescription: made\n"
    )
    command = ["dpkg-deb", f"-Z{compression}", "--root-owner-group", "--build", str(tree), str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def rpm(
    package: str, tree: Path, folder: Path, compression: str = "w6.xzdio", machine: str = platform.machine()
) -> None:
    if shutil.which("rpmbuild") is None:
        pytest.skip("not installed: rpmbuild (Debian's package rpm)")
    spec = folder / f"{package}.spec"
    files = "\n".join(f"/{name}" for name in seen(tree))
    spec.write_text(
        f"Name: {package}\nVersion: 1.19.0\nRelease: 1\nSummary: made\nLicense: none\nAutoReqProv: no\n"
        f"%define _binary_payload {compression}\n%define __os_install_post %{{nil}}\n%define debug_package %{{nil}}\n"
        f"%description\nmade\n%install\ncp -a {tree}/. %{{buildroot}}/\n%files\n{files}\n"
    )
    places = [
        f"--define=_topdir {folder}/work",
        f"--define=_rpmdir {folder}",
        "--define=_rpmfilename %%{NAME}.%%{ARCH}.rpm",
    ]
    subprocess.run(
        ["rpmbuild", "-bb", f"--target={machine}", *places, spec], check=True, capture_output=True, timeout=120
    )


def packed(payload: Path, folder: Path, packager: Packager) -> Path:
    """Make packages of the payload's parts in a folder."""
    folder.mkdir(exist_ok=True)
    for package, parts in PARTS.items():
        tree = folder.parent / f"{package}.tree"
        for part in (*parts, f"usr/share/doc/{package}"):
            shutil.copytree(payload / part, tree / part, symlinks=True)
        packager(package, tree, folder)
        shutil.rmtree(tree)
    return folder


@pytest.mark.parametrize("compression", ["gzip", "xz", "zstd"])
def test_debian_packages_give_what_the_tree_gives(payload: Path, tmp_path: Path, compression: str) -> None:
    folder = packed(payload, tmp_path / "packages", functools.partial(deb, compression=compression))
    assert gathered(folder, tmp_path / "a") == gathered(payload, tmp_path / "b")


@pytest.mark.parametrize("compression", ["w6.gzdio", "w6.xzdio", "w6.zstdio"])
def test_rpm_packages_give_what_the_tree_gives_under_their_own_name(
    payload: Path, tmp_path: Path, compression: str
) -> None:
    folder = packed(payload, tmp_path / "packages", functools.partial(rpm, compression=compression))
    assert gathered(folder, tmp_path / "a") == {"rpm": gathered(payload, tmp_path / "b")["deb"]}


@pytest.fixture(scope="module")
def each_machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a whole payload for each machine."""
    folder = tmp_path_factory.mktemp("machines")
    roots = {machine: payloads.build(folder / name, machine=machine) for machine, name in MACHINES.items()}
    for root in roots.values():
        for package in PARTS:
            terms = root / "usr/share/doc" / package / "copyright"
            terms.parent.mkdir(parents=True)
            terms.write_text(f"the terms of {package}\n")
    return roots


@pytest.mark.parametrize("kind, packager", [("deb", deb), ("rpm", rpm)])
def test_of_packages_for_several_machines_those_for_the_images_own_are_taken(
    each_machine: dict[str, Path], tmp_path: Path, kind: str, packager: Callable[..., None]
) -> None:
    folder = tmp_path / "packages"
    for machine, root in each_machine.items():
        packed(root, folder, functools.partial(packager, machine=machine))
    assert len(list(folder.glob(f"*.{kind}"))) == 4
    for machine, root in each_machine.items():
        (found,) = gathered(folder, tmp_path / f"taken-{machine}", machine).values()
        assert found == gathered(root, tmp_path / f"wanted-{machine}", machine)["deb"]


def test_packages_for_other_machines_alone_are_refused(each_machine: dict[str, Path], tmp_path: Path) -> None:
    folder = packed(each_machine["x86_64"], tmp_path / "packages", functools.partial(deb, machine="x86_64"))
    done = started(folder, tmp_path / "a", "aarch64")
    assert done.returncode == 1
    assert "none of the payload's packages is for aarch64" in done.stderr


def test_a_folder_may_have_one_for_each_machine(each_machine: dict[str, Path], tmp_path: Path) -> None:
    folder = next(iter(each_machine.values())).parent
    for machine, root in each_machine.items():
        taken = gathered(folder, tmp_path / f"taken-{machine}", machine)
        assert taken == gathered(root, tmp_path / f"wanted-{machine}", machine)
    shutil.copytree(each_machine["x86_64"], tmp_path / "one/amd64", symlinks=True)
    done = started(tmp_path / "one", tmp_path / "a", "aarch64")
    assert done.returncode == 1
    assert "the payload has folders for machines, and none of them is arm64" in done.stderr


def test_two_releases_of_a_package_are_refused_by_name(payload: Path, tmp_path: Path) -> None:
    folder = packed(payload, tmp_path / "packages", deb)
    for first in list(folder.glob("libnvidia*.deb")):
        shutil.copy(first, first.with_name(f"zz-{first.name}"))
    done = started(folder, tmp_path / "a")
    assert done.returncode == 1
    assert "zz-libnvidia-container1" in done.stderr
    assert "give one release of each package" in done.stderr
    assert not (tmp_path / "a").exists()


def test_an_image_with_both_kinds_keeps_both(payload: Path, tmp_path: Path) -> None:
    for kind in ("deb", "rpm"):
        shutil.copytree(payload, tmp_path / "image/artifacts" / kind, symlinks=True)
    (tmp_path / "image/usr/bin").mkdir(parents=True)
    found = gathered(tmp_path / "image", tmp_path / "a")
    assert found["deb"] == found["rpm"] == gathered(payload, tmp_path / "b")["deb"]


def test_only_what_is_installed_and_its_terms_are_taken(payload: Path, tmp_path: Path) -> None:
    gathered(payload, tmp_path / "a")
    taken = {str(path.relative_to(tmp_path / "a/deb")) for path in (tmp_path / "a").rglob("*") if not path.is_dir()}
    assert "usr/bin/not-ours" not in taken
    assert {f"usr/share/doc/{package}/copyright" for package in PARTS} <= taken
    assert {"usr/bin/nvidia-ctk", "usr/bin/nvidia-cdi-hook", "etc/nvidia-container-runtime/config.toml"} <= taken


def test_a_payload_for_another_architecture_is_refused_with_what_to_give_the_build(tmp_path: Path) -> None:
    machine = platform.machine()
    (other,) = {"x86_64", "aarch64"} - {machine}
    done = started(payloads.build(tmp_path / "payload", machine=other), tmp_path / "taken")
    assert done.returncode == 1
    assert f"nvidia-container-cli is built for {other}" in done.stderr
    assert f"libnvidia-container.so.1 is built for {other}" in done.stderr
    assert done.stderr.endswith(f"(give a whole one for {machine}, as PAYLOAD or PAYLOAD_IMAGE)\n")
    assert "--toolkit-source-root" not in done.stderr
    assert not (tmp_path / "taken").exists()


def test_nothing_at_all_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = started(tmp_path / "empty", tmp_path / "a")
    assert done.returncode == 1
    assert "no payload is given: give PAYLOAD_IMAGE" in done.stderr


@pytest.mark.parametrize("package", Package)
@pytest.mark.parametrize("generation", Generation)
def test_what_was_taken_is_as_much_of_a_payload_as_what_was_given(
    tmp_path: Path, generation: Generation, package: Package
) -> None:
    given = payloads.build(tmp_path / "given", generation=generation, package=package)
    gathered(given, tmp_path / "a")
    names = []
    for root in (given, tmp_path / "a/deb"):
        found = payload_of.find_payload(Tree(str(root)), str(root))
        names.append((found.executables, [library.name for library in found.libraries], found.hook, found.config))
    assert names[0] == names[1]
