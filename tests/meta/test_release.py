"""What is published has one version everywhere, a day, a tag and a whole package; what has not is said before."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.support import release

PROJECT = Path(__file__).parents[2]
ADDRESS = "https://git.example/team/toolkit-installer"


def git(project: Path, *arguments: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=project, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all that names a version, fit to be published."""
    made = tmp_path / "project"
    for path in [
        *release.naming(PROJECT),
        *(PROJECT / name for name in (release.SOURCE, "pyproject.toml")),
    ]:
        place = made / path.relative_to(PROJECT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    (made / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## [{release.version(made)}] - 2026-01-31\n\n## [0.0.1] - Unreleased\n"
    )
    monkeypatch.setenv("PROJECT_URL", ADDRESS)
    git(made, "init", "--quiet")
    git(made, "add", "--all")
    git(made, "commit", "--quiet", "--message", "x")
    git(made, "tag", f"v{release.version(made)}")
    return made


WITHOUT_WHEEL = {name: check for name, check in release.CHECKS.items() if check is not release.package_is_whole}


def failing(project: Path) -> dict[str, str]:
    found = {}
    for name, check in WITHOUT_WHEEL.items():
        try:
            check(project)
        except release.NotFitError as error:
            found[name] = str(error)
    return found


def test_this_tree_names_one_version() -> None:
    release.same_everywhere(PROJECT)


def test_the_wheel_of_this_tree_is_whole() -> None:
    release.package_is_whole(PROJECT)


def test_what_is_fit_is_found_fit(project: Path) -> None:
    assert failing(project) == {}


def test_each_thing_that_is_wrong_is_said_by_the_check_for_it(project: Path) -> None:
    wrong = {
        "one version everywhere": ("daemonset/base/daemonset.yaml", "toolkit-installer:", "toolkit-installer:9.9.9 #"),
        "the changelog is dated": ("CHANGELOG.md", "2026-01-31", "Unreleased"),
    }
    for name, (path, old, new) in wrong.items():
        place = project / path
        text = place.read_text()
        place.write_text(text.replace(old, new, 1))
        said = failing(project)
        assert set(said) == {name, "the commit is tagged"}, said
        assert Path(path).name in said[name]
        place.write_text(text)
    assert failing(project) == {}


@pytest.mark.parametrize(
    "address", ["", "git.example/team/x", "http://git.example/team/x", "https://git.example", "https://a b/c"]
)
def test_a_package_without_a_usable_address_is_not_published(
    project: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("PROJECT_URL", address)
    said = failing(project)
    assert set(said) == {"the package says where it is from"}
    assert "PROJECT_URL" in said["the package says where it is from"]


def metadata(folder: Path) -> Message:
    """Return what a wheel of this tree says of itself."""
    hatchling = Path(sys.executable).with_name("hatchling")
    subprocess.run([hatchling, "build", "--target", "wheel", "--directory", folder], cwd=PROJECT, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(wheel.read(name))


def test_the_wheel_names_the_addresses_that_its_build_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_URL", f"{ADDRESS}/")
    found = dict(str(each).split(", ") for each in metadata(tmp_path).get_all("Project-URL", ()))
    tag = f"v{release.version(PROJECT)}"
    assert found == {
        "Homepage": ADDRESS,
        "Source": ADDRESS,
        "Issues": f"{ADDRESS}/issues",
        "Changelog": f"{ADDRESS}/blob/{tag}/CHANGELOG.md",
    }


def test_a_build_that_was_given_no_address_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROJECT_URL", raising=False)
    assert metadata(tmp_path).get_all("Project-URL") is None


@pytest.mark.parametrize("tag", ["v9.9.9", None], ids=str)
def test_a_commit_without_its_tag_is_told_which(project: Path, tag: str | None) -> None:
    git(project, "tag", "--delete", f"v{release.version(project)}")
    if tag is not None:
        git(project, "tag", tag)
    said = failing(project)["the commit is tagged"]
    assert f"is not tagged v{release.version(project)}" in said
    assert tag is None or tag in said


def test_setting_a_version_sets_it_everywhere_and_nothing_else(project: Path) -> None:
    before = release.version(project)
    others = {path: path.read_text() for path in release.naming(project)}
    assert release.main(project, "set", "7.8.9rc1") == 0
    assert release.version(project) == "7.8.9rc1"
    assert "one version everywhere" not in failing(project)
    for path, text in others.items():
        assert path.read_text().replace("7.8.9rc1", before) == text
    assert not any(re.search(rf"toolkit-installer:{re.escape(before)}", path.read_text()) for path in others)


@pytest.mark.parametrize("word", ["", "1.2", "v1.2.3", "1.2.3; rm", "latest"])
def test_what_is_no_version_is_refused_and_changes_nothing(
    project: Path, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = release.version(project)
    assert release.main(project, "set", *([word] if word else [])) == 2
    assert "is no version" in capsys.readouterr().err
    assert release.version(project) == before
    assert failing(project) == {}
