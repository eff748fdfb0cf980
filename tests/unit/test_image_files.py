"""What is kept in the project for the image is what its locks say."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit_installer

PROJECT = Path(__file__).parents[2]
SBOM = PROJECT / "images/sbom.cdx.json"


def pins(lock: str) -> dict[str, str]:
    found = re.findall(r"^([a-z0-9-]+)==([^ ;]+)(.*)$", (PROJECT / "locks" / lock).read_text(), re.MULTILINE)
    return {name: version for name, version, rest in found if "win32" not in rest}


def bill() -> dict[str, object]:
    return dict(json.loads(SBOM.read_text()))


def test_the_bill_of_materials_is_made_of_the_lock_as_it_is_now() -> None:
    if importlib.metadata.version("click") != pins("runtime.txt")["click"]:
        pytest.skip("the licences are read from what is installed, and these are other versions (make test-versions)")
    command = [sys.executable, str(PROJECT / "images/sbom.py"), str(PROJECT / "locks/runtime.txt")]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=PROJECT)
    assert made.stdout == SBOM.read_text(), "make images/sbom.cdx.json"


def test_the_bill_of_materials_names_each_package_its_version_and_its_hashes() -> None:
    components = bill()["components"]
    assert isinstance(components, list)
    assert {each["name"]: each["version"] for each in components} == pins("runtime.txt")
    assert all(each["hashes"] and each["purl"].startswith("pkg:pypi/") for each in components)
    assert "://" not in json.dumps(components)


def test_the_bill_of_materials_is_of_this_release() -> None:
    metadata = bill()["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["component"]["version"] == toolkit_installer.__version__
    assert "timestamp" not in metadata


@pytest.mark.parametrize("lock", ["runtime.txt", "build.txt"])
def test_what_the_image_is_built_of_is_what_the_tests_run_with(lock: str) -> None:
    assert pins(lock)
    assert pins(lock).items() <= pins("dev.txt").items()


def test_no_stage_of_the_image_is_without_an_instruction_since_buildah_leaves_a_container_of_such_a_one() -> None:
    words = re.findall(r"^([A-Z]+) ", (PROJECT / "images/Dockerfile").read_text(), re.MULTILINE)
    _, *stages = " ".join(words).split("FROM")
    assert len(stages) == 4
    assert all(stage.strip() for stage in stages), stages
