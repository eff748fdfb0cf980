"""README's lines for a cluster, as they stand there: what is built is what is pushed, and what the cluster is given."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import manifests
from tests.support.built import go_tools
from tests.support.manifests import PROJECT, Object

pytestmark = pytest.mark.usefixtures("kustomize")
DOCKER = """\
#!/bin/sh
printf '%s\\n' "$*" >>{folder}/docker
"""
KUBECTL = """\
#!/bin/sh
case "$*" in
    kustomize\\ *) exec {kustomize} build "$2" ;;
    'apply -f -') exec cat >{folder}/applied ;;
esac
echo "no such command: kubectl $*" >&2
exit 1
"""


def lines() -> str:
    """Return what README tells a reader to type."""
    section = (PROJECT / "README.md").read_text(encoding="utf-8").partition("\n## In a cluster\n")[2]
    found = re.search(r"^```sh\n(.*?)^```$", section.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@dataclasses.dataclass(frozen=True)
class Typed:
    """What came of the lines."""

    docker: list[list[str]]
    """The words of each command that docker was given."""
    applied: list[Object]

    @property
    def images(self) -> set[str]:
        """The images of all containers, of those that come first too."""
        return set(images(self.applied))


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    """Type them into bash, in the project's folder: make and kustomize are real, docker and the cluster stand-ins."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    kustomize = go_tools.folder_of(go_tools.KUSTOMIZE) / "kustomize"
    for name, text in (("docker", DOCKER), ("kubectl", KUBECTL)):
        program = bin_folder / name
        program.write_text(text.format(folder=shlex.quote(str(tmp_path)), kustomize=shlex.quote(str(kustomize))))
        program.chmod(0o755)
    chosen = ("BUILD", "PAYLOAD", "IMAGE", "BASE_IMAGE", "PLATFORM", "WHEELS", "MAKE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(chosen)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines()],
        cwd=PROJECT,
        env=environment | {"PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return Typed(
        [line.split() for line in (tmp_path / "docker").read_text().splitlines()],
        manifests.objects((tmp_path / "applied").read_text()),
    )


def images(value: Any) -> list[str]:
    """Return every `image` of a document, wherever it is."""
    if isinstance(value, dict):
        own = [value["image"]] if isinstance(value.get("image"), str) else []
        return own + [image for each in value.values() for image in images(each)]
    return [image for each in value for image in images(each)] if isinstance(value, list) else []


def test_what_is_built_is_pushed_and_is_what_every_container_runs(typed: Typed) -> None:
    *_, build, push = typed.docker
    assert build[:2] == ["buildx", "build"]
    name = build[build.index("--tag") + 1]
    assert push == ["push", name]
    assert typed.images == {name}
    assert "/" in name, "a name without a registry is one that no node pulls"


def test_what_the_cluster_is_given_is_valid_in_each_minor(typed: Typed) -> None:
    minors = manifests.minors()
    assert typed.applied
    assert [problem for each in typed.applied for problem in manifests.problems(each, minors)] == []


def test_the_cluster_is_given_all_that_the_base_has_and_only_the_image_is_another(typed: Typed) -> None:
    changed = [dict(manifests.flat(each)) for each in typed.applied]
    base = [dict(manifests.flat(each)) for each in manifests.rendered("base")]
    differ = {
        path
        for ours, theirs in zip(changed, base, strict=True)
        for path in ours.keys() | theirs.keys()
        if ours.get(path) != theirs.get(path)
    }
    assert differ
    assert {path.rpartition("/")[2] for path in differ} == {"image"}
