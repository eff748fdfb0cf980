"""One version everywhere: toolkit_installer/__init__.py has it, and what else names it is made to agree, or checked.

python -m tests.support.release set 0.2.0      writes it wherever it stands (make version VERSION=0.2.0)
python -m tests.support.release check          whether this commit can be published (make release-check)
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from images import project_urls
from tests.support import chart, manifests
from tests.support.built.go_tools import GoToolError

SOURCE = "toolkit_installer/__init__.py"
_CHANGES = "CHANGELOG.md"
CHART = "daemonset/chart/Chart.yaml"
_OF_CHART = re.compile(r"^((?:version|appVersion): )(.*)$", re.MULTILINE)
_NAMED_IN = re.compile(r"((?:toolkit-installer:|toolkit\.version=))(\d+\.\d+\.\d+\S*?)(?=[\s`\"'|*,;]|$)", re.MULTILINE)
"""How manifests and documents name the image."""
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_IN_WHEEL = (
    *("toolkit_installer/py.typed", "licenses/LICENSE", "licenses/NOTICE", "entry_points.txt"),
    "man8/toolkit-installer.8",
)


class NotFitError(Exception):
    """What keeps a commit from being published; the text says what to do."""


def version(project: Path) -> str:
    """Return the version that the program says of itself."""
    found = re.search(r'^__version__ = "(.+)"$', (project / SOURCE).read_text(), re.MULTILINE)
    if found is None:
        raise NotFitError(f"{SOURCE} has no __version__")
    return found[1]


def naming(project: Path) -> Iterator[Path]:
    """Yield the files that may name the image: manifests and documents, but for the changelog."""
    for pattern in (
        "README.md",
        "docs/*.md",
        "daemonset/**/*.yaml",
        "daemonset/**/*.md",
        "tests/data/kubernetes/*.json",
    ):
        yield from sorted(project.glob(pattern))


def set_version(project: Path, new: str) -> list[str]:
    """Write the version wherever it stands; return the files that were changed, beneath the project."""
    if not _VERSION.fullmatch(new):
        raise NotFitError(f"{new!r} is no version: it has three numbers, such as 0.2.0, and may end with a1, b1 or rc1")
    old = version(project)
    edits: dict[Path, Callable[[str], str]] = {
        project / SOURCE: lambda text: text.replace(f'__version__ = "{old}"', f'__version__ = "{new}"'),
        **{path: lambda text: _NAMED_IN.sub(rf"\g<1>{new}", text) for path in naming(project)},
        project / CHART: lambda text: _OF_CHART.sub(rf"\g<1>{new}", text),
    }
    changed = []
    for path, edit in edits.items():
        text = path.read_text()
        if edit(text) != text:
            path.write_text(edit(text))
            changed.append(str(path.relative_to(project)))
    return changed


# --- what has to hold ---


def same_everywhere(project: Path) -> None:
    """Raise NotFitError where a manifest or a document names another version."""
    own = version(project)
    others = {
        f"{path.relative_to(project)} names {found[1]}{found[2]}"
        for path in naming(project)
        for found in _NAMED_IN.finditer(path.read_text())
        if found[2] != own
    }
    of_chart = {found[2] for found in _OF_CHART.finditer((project / CHART).read_text())}
    others |= {f"{CHART} names {each}" for each in of_chart - {own}}
    if others:
        raise NotFitError(f"{'; '.join(sorted(others))}: make version VERSION={own}")


def changes_are_dated(project: Path) -> None:
    """Raise NotFitError unless the changelog's newest part is this version's and has its day."""
    newest = re.search(r"^## (.*)$", (project / _CHANGES).read_text(), re.MULTILINE)
    own = version(project)
    if newest is None or not re.fullmatch(rf"\[{re.escape(own)}\] - \d{{4}}-\d\d-\d\d", newest[1]):
        said = newest[1] if newest else "nothing"
        raise NotFitError(f"{_CHANGES} begins with {said!r}: it should be '[{own}] - ' and the day")


def project_is_addressed(project: Path) -> None:
    """Raise NotFitError unless the package is told where it is from: the builds of a release are told the same."""
    address = os.environ.get(project_urls.VARIABLE, "")
    if not address:
        raise NotFitError(f"{project_urls.VARIABLE} is not set: export the address at which it is published")
    try:
        project_urls.urls(address, version(project))
    except ValueError as error:
        raise NotFitError(str(error)) from error


def commit_is_tagged(project: Path) -> None:
    """Raise NotFitError unless nothing is uncommitted and the tag of this version is this commit's."""
    if _git(project, "status", "--porcelain"):
        raise NotFitError("there are changes that are not committed")
    tags = _git(project, "tag", "--points-at", "HEAD").split()
    wanted = f"v{version(project)}"
    if wanted not in tags:
        said = f"it has {', '.join(tags)}" if tags else "it has no tag"
        raise NotFitError(f"this commit is not tagged {wanted}, {said}: git tag --annotate {wanted}")


def package_is_whole(project: Path) -> None:
    """Build the wheel, and raise NotFitError where it lacks something or has what it should not have."""
    with tempfile.TemporaryDirectory() as folder:
        hatchling = Path(sys.executable).with_name("hatchling")
        _run(project, str(hatchling), "build", "--target", "wheel", "--directory", folder)
        (wheel,) = Path(folder).glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
    missing = [wanted for wanted in _IN_WHEEL if not any(name.endswith(wanted) for name in names)]
    foreign = [name for name in names if not re.match(r"toolkit_installer[/-]", name)]
    if f"toolkit_installer-{version(project)}-" not in wheel.name or missing or foreign:
        raise NotFitError(f"{wheel.name} lacks {missing or 'nothing'}, and has beside its own {foreign or 'nothing'}")


def _git(project: Path, *arguments: str) -> str:
    return _run(project, "git", *arguments)


def _run(project: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotFitError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


# --- what is published beside the image ---


def manifests_of(image: str, folder: Path, epoch: int) -> None:
    """Write the manifests and the chart, which name the image by its digest, below a folder. Raises NotFitError.

    `epoch` is the time of the chart's files, in seconds since 1970.
    """
    try:
        (folder / "manifests").mkdir()
        for name in ("base", *(f"overlays/{each}" for each in chart.overlays())):
            text = _naming(manifests.FOLDER / name, image, folder)
            if image not in text:
                raise NotFitError(f"daemonset/{name} has no image of ours")
            (folder / "manifests" / f"{Path(name).name}.yaml").write_text(text)
        _chart_naming(image, folder, epoch)
    except (chart.ChartError, manifests.ManifestError, GoToolError) as error:
        raise NotFitError(str(error)) from error


def _naming(kustomization: Path, image: str, folder: Path) -> str:
    """Return what kustomize makes of a folder with another image."""
    name, _, digest = image.partition("@")
    with tempfile.TemporaryDirectory(dir=folder) as work:
        asked = {
            "resources": [os.path.relpath(kustomization, work)],
            "images": [{"name": "toolkit-installer", "newName": name, "digest": digest}],
        }
        (Path(work) / "kustomization.yaml").write_text(yaml.safe_dump(asked))
        return manifests.built(Path(work))


def _chart_naming(image: str, folder: Path, epoch: int) -> None:
    """Write the chart as an archive whose values name the image."""
    name, _, digest = image.partition("@")
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "chart"
        shutil.copytree(chart.CHART, copy)
        values = (copy / "values.yaml").read_text()
        for key, old, new in (("repository", "toolkit-installer", name), ("digest", '""', digest)):
            line = f"\n  {key}: {old}\n"
            if values.count(line) != 1:
                raise NotFitError(f"{chart.CHART}/values.yaml has no single line {line.strip()!r}")
            values = values.replace(line, f"\n  {key}: {new}\n")
        (copy / "values.yaml").write_text(values)
        chart.helm("package", copy, "--destination", work)
        (packed,) = Path(work).glob("*.tgz")
        _with_times(packed, folder / packed.name, epoch)


def _with_times(archive: Path, into: Path, epoch: int) -> None:
    """Write an archive once more with one time for all: Helm gives its files the time at which it packs them."""
    with tarfile.open(archive) as read, into.open("wb") as file:
        packer = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch)
        with packer, tarfile.open(fileobj=packer, mode="w", format=tarfile.GNU_FORMAT) as written:
            for member in sorted(read, key=lambda member: member.name):
                member.mtime = epoch
                written.addfile(member, read.extractfile(member))


CHECKS: dict[str, Callable[[Path], None]] = {
    "one version everywhere": same_everywhere,
    "the changelog is dated": changes_are_dated,
    "the package says where it is from": project_is_addressed,
    "the wheel is whole": package_is_whole,
    "the commit is tagged": commit_is_tagged,
}


def main(project: Path, *arguments: str) -> int:
    """Do what the arguments say; return the exit code."""
    try:
        if arguments[:1] == ("set",):
            print("\n".join(set_version(project, "".join(arguments[1:]))))
            return 0
    except NotFitError as error:
        print(f"make version: {error}", file=sys.stderr)
        return 2
    failed = 0
    for name, holds in CHECKS.items():
        try:
            holds(project)
        except NotFitError as error:
            failed += 1
            print(f"NO   {name}: {error}")
        else:
            print(f"yes  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[2], *sys.argv[1:]))
