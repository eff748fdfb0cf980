"""What the image is made of: its locks, its stages, and the bill of materials that its build writes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import toolkit_installer
from images import sbom
from tests.support import payloads

PROJECT = Path(__file__).parents[2]


def pins(lock: str) -> dict[str, str]:
    found = re.findall(r"^([a-z0-9-]+)==([^ ;]+)(.*)$", (PROJECT / "locks" / lock).read_text(), re.MULTILINE)
    return {name: version for name, version, rest in found if "win32" not in rest}


def made_environment(home: Path) -> Path:
    """Make what pip installs of two packages, and return its report."""
    folder = home / "lib/python3.11/site-packages"
    licences = {
        ("Typing_Extensions", "4.0"): "License-Expression: PSF-2.0",
        ("old", "1.0"): "Classifier: License :: OSI Approved :: BSD License",
    }
    for (name, version), licence in licences.items():
        metadata = folder / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{licence}\n")
    installed = [
        {
            "metadata": {"name": name, "version": version},
            "download_info": {"url": "file:///secret", "archive_info": {"hash": f"sha256={digit * 64}"}},
        }
        for name, version, digit in (("typing-extensions", "4.0", "a"), ("old", "1.0", "b"))
    ]
    report = home / "report.json"
    report.write_text(json.dumps({"install": installed}))
    return report


def made_base(root: Path) -> Path:
    """Make a base of Debian's with one package, a Python of its own, and one that was removed."""
    (root / "usr/share/doc/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "usr/local/bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian 12"\n')
    (root / "var/lib/dpkg/status").write_text(
        "Package: dpkg\nStatus: install ok installed\nVersion: 1:1.21\nArchitecture: arm64\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: all\n"
    )
    (root / "usr/share/doc/dpkg/copyright").write_text(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
        "Files: *\nCopyright: somebody\nLicense: GPL-2+\n the text\n\nLicense: MIT\n the text\n"
    )
    (root / "usr/local/bin/python3.11").write_bytes(b"an interpreter")
    (root / "usr/local/lib/python3.11/site-packages/pip-23.0.dist-info").mkdir(parents=True)
    (root / "usr/local/lib/python3.11/site-packages/pip-23.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: pip\nVersion: 23.0\nLicense: MIT\n"
    )
    return root


@pytest.fixture
def bill(tmp_path: Path) -> dict[str, Any]:
    """The bill of materials of a made image, component by component, by their references."""
    report = made_environment(tmp_path / "home")
    root = made_base(tmp_path / "base")
    (tmp_path / "home/bin").mkdir()
    artifacts = payloads.build(tmp_path / "artifacts/deb").parent
    components = [
        *sbom.packages(json.loads(report.read_text()), tmp_path / "home/lib/python3.11/site-packages"),
        *sbom.payload(artifacts),
        *sbom.base(root, Path("/usr/local/bin/python3.11")),
    ]
    text = sbom.bill("aarch64", components)
    assert text == sbom.bill("aarch64", reversed(components)), "the order of what is found does not count"
    assert "secret" not in text
    return dict(json.loads(text))


def by_reference(bill: dict[str, Any]) -> dict[str, Any]:
    return {each["bom-ref"]: each for each in bill["components"]}


def licences(component: dict[str, Any]) -> list[str]:
    return [each["license"].get("id") or each["license"]["name"] for each in component["licenses"]]


def test_the_bill_of_materials_has_each_package_with_its_licence_and_checked_hash(
    bill: dict[str, Any],
) -> None:
    found = by_reference(bill)
    one, other = found["packages/typing-extensions@4.0"], found["packages/old@1.0"]
    assert (licences(one), licences(other)) == (["PSF-2.0"], ["BSD License"])
    assert one["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert one["purl"] == "pkg:pypi/typing-extensions@4.0"


def test_the_bill_of_materials_has_the_base_and_what_python_has_there(bill: dict[str, Any]) -> None:
    found = by_reference(bill)
    assert {name for name in found if name.startswith("base")} == {
        *("base", "base/dpkg@1:1.21", "base/python"),
        "base/usr/local/lib/python3.11/site-packages/pip@23.0",
    }
    assert found["base"]["version"] == "12"
    assert licences(found["base/dpkg@1:1.21"]) == ["GPL-2+", "MIT"]
    assert "arch=arm64" in found["base/dpkg@1:1.21"]["purl"]
    (interpreter,) = found["base/python"]["components"]
    assert interpreter["hashes"][0]["content"] == hashlib.sha256(b"an interpreter").hexdigest()


def test_a_python_that_is_a_package_of_the_base_is_not_named_twice(tmp_path: Path) -> None:
    root = made_base(tmp_path / "base")
    (root / "var/lib/dpkg/info/python3.11-minimal.list").write_text("/.\n/usr/local/bin/python3.11\n")
    found = [each.bom_ref.value for each in sbom.base(root, Path("/usr/local/bin/python3.11"))]
    assert "base/python" not in found


def test_a_base_that_is_no_debian_is_named_by_its_release(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=fedora\nVERSION_ID=43\n")
    (tmp_path / "python").touch()
    release, *_ = sbom.base(tmp_path, Path("/python"))
    assert (release.name, release.version) == ("fedora", "43")


def test_the_bill_of_materials_has_the_payload_with_its_release_and_each_file(bill: dict[str, Any]) -> None:
    toolkit = by_reference(bill)["payload/deb"]
    assert toolkit["version"] == payloads.VERSION
    names = {each["name"] for each in toolkit["components"]}
    assert "/artifacts/deb/usr/bin/nvidia-ctk" in names
    assert all(len(each["hashes"][0]["content"]) == 64 for each in toolkit["components"])


def test_the_bill_of_materials_is_of_this_release_and_of_no_moment(bill: dict[str, Any]) -> None:
    metadata = bill["metadata"]
    assert metadata["component"]["version"] == toolkit_installer.__version__
    assert metadata["component"]["properties"] == [{"name": "toolkit-installer:architecture", "value": "aarch64"}]
    assert "timestamp" not in metadata


def test_a_package_that_was_not_checked_by_sha256_ends_the_build(tmp_path: Path) -> None:
    report = json.loads(made_environment(tmp_path).read_text())
    report["install"][0]["download_info"]["archive_info"]["hash"] = "md5=0"
    with pytest.raises(SystemExit, match="checked by md5"):
        list(sbom.packages(report, tmp_path / "lib/python3.11/site-packages"))


@pytest.mark.parametrize("lock", ["runtime.txt", "build.txt"])
def test_what_the_image_is_built_of_is_what_the_tests_run_with(lock: str) -> None:
    assert pins(lock)
    assert pins(lock).items() <= pins("dev.txt").items()


def test_each_stage_of_the_image_has_an_instruction_or_buildah_leaves_a_container() -> None:
    words = re.findall(r"^([A-Z]+) ", (PROJECT / "images/Dockerfile").read_text(), re.MULTILINE)
    _, *stages = " ".join(words).split("FROM")
    assert len(stages) == 5
    assert all(stage.strip() for stage in stages), stages
