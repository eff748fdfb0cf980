"""Which builder images/build takes, and what it is given: stand-ins in a PATH of their own write their words down."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import toolkit_installer

PROJECT = Path(__file__).parents[2]
NEEDED = ("sh", "sed", "git", "dirname", "uname")
"""The programs that the script itself runs."""
STAND_IN = """\
#!/bin/sh
if [ "$1" = buildx ] && [ "$2" = version ]; then exit {buildx}; fi
printf '%s\\n' "${{0##*/}}" "$@" >'{words}'
printf '%s' "${{SOURCE_DATE_EPOCH-unset}}" >'{epoch}'
"""
BUILDERS = ("docker", "podman", "buildah")


@dataclasses.dataclass(frozen=True)
class Machine:
    """One with some builders. `folder` holds what the stand-ins write down."""

    folder: Path
    project: Path = PROJECT

    def has(self, *builders: str, buildx: bool = True) -> None:
        """Install builders; `buildx` says whether docker has that part."""
        for name in builders:
            program = self.folder / "bin" / name
            words, epoch = self.folder / "words", self.folder / "epoch"
            program.write_text(STAND_IN.format(buildx=int(not buildx), words=words, epoch=epoch))
            program.chmod(0o755)

    def build(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the script with these variables and no others; git wants to know whose checkouts it may trust."""
        return subprocess.run(
            [self.project / "images/build"],
            env={"PATH": str(self.folder / "bin"), "HOME": os.environ.get("HOME", "/"), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def words(self, **variables: str) -> list[str]:
        """Run it with a payload, and return the builder that it started and what that was given."""
        done = self.build(**{"PAYLOAD": "images", "SOURCE_DATE_EPOCH": "7", "REVISION": "abc"} | variables)
        assert done.returncode == 0, done.stderr
        return (self.folder / "words").read_text().splitlines()

    @property
    def epoch(self) -> str:
        """What the builder saw of SOURCE_DATE_EPOCH."""
        return (self.folder / "epoch").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        program = shutil.which(name)
        assert program is not None
        (tmp_path / "bin" / name).symlink_to(program)
    return Machine(tmp_path)


def following(words: list[str], flag: str) -> list[str]:
    """Return what follows each place where a flag stands."""
    return [words[place + 1] for place, word in enumerate(words) if word == flag]


# --- which builder ---


@pytest.mark.parametrize(
    "there, buildx, taken",
    [
        (BUILDERS, True, "docker"),
        (BUILDERS, False, "podman"),
        (("podman", "buildah"), False, "podman"),
        (("docker", "buildah"), False, "buildah"),
        (("docker", "buildah"), True, "docker"),
        (("buildah",), False, "buildah"),
    ],
)
def test_a_docker_without_buildx_is_passed_over_for_podman_then_buildah(
    machine: Machine, *, there: tuple[str, ...], buildx: bool, taken: str
) -> None:
    machine.has(*there, buildx=buildx)
    assert machine.words()[0] == taken


@pytest.mark.parametrize("there", [(), ("docker",)])
def test_without_any_builder_it_says_which_ones_there_could_be(machine: Machine, there: tuple[str, ...]) -> None:
    machine.has(*there, buildx=False)
    done = machine.build(PAYLOAD="images")
    assert done.returncode == 2
    assert done.stderr == "make image: none of docker buildx, podman and buildah is here: install one of them\n"
    assert not (machine.folder / "words").exists()


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_builder_that_is_asked_for_is_taken_whatever_else_is_there(machine: Machine, builder: str) -> None:
    machine.has(*BUILDERS)
    assert machine.words(BUILDER=builder)[0] == builder


# --- what it is given ---


@pytest.mark.parametrize(
    "builder, begins",
    [
        (
            "docker",
            ["docker", "--context", "far", "buildx", "build", "--no-cache", "--pull", "--provenance=false", "--load"],
        ),
        *(
            (
                each,
                [each, "--context", "far", "build", "--no-cache", "--pull", "--layers=false", "--identity-label=false"],
            )
            for each in ("podman", "buildah")
        ),
    ],
)
def test_flags_are_words_before_and_after_the_builders_command(
    machine: Machine, builder: str, begins: list[str]
) -> None:
    """And no step is kept: podman takes one again for another payload, since it does not look at what is mounted."""
    machine.has(builder)
    words = machine.words(BUILDER_FLAGS="--context far", BUILD_FLAGS="--no-cache --pull")
    assert words[: len(begins)] == begins
    assert words[-1] == "."
    assert following(words, "--file") == ["images/Dockerfile"]


@pytest.mark.parametrize("builder, seen", [("docker", "7"), ("podman", "unset"), ("buildah", "unset")])
def test_the_time_of_all_files_is_given_in_the_one_way_that_each_builder_takes(
    machine: Machine, builder: str, seen: str
) -> None:
    machine.has(builder)
    words = machine.words()
    assert "SOURCE_DATE_EPOCH=7" in following(words, "--build-arg")
    assert following(words, "--timestamp") == ([] if builder == "docker" else ["7"])
    assert machine.epoch == seen


def test_time_and_revision_default_to_the_commits_and_the_name_has_the_version(machine: Machine) -> None:
    machine.has(*BUILDERS)
    assert machine.build(PAYLOAD="images").returncode == 0
    words = (machine.folder / "words").read_text().splitlines()
    shown = subprocess.run(
        ["git", "log", "-1", "--format=%H %ct"], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60
    )
    commit, seconds = shown.stdout.split()
    version = toolkit_installer.__version__
    assert following(words, "--tag") == [f"toolkit-installer:{version}"]
    assert set(following(words, "--build-arg")) == {
        f"VERSION={version}",
        f"REVISION={commit}",
        f"SOURCE_DATE_EPOCH={seconds}",
    }
    assert machine.epoch == seconds
    assert "--platform" not in words
    assert following(words, "--build-context") == ["payload=images"]


def test_sources_outside_a_checkout_make_an_image_without_a_commit_dated_1970(machine: Machine, tmp_path: Path) -> None:
    for name in ("images/build", "toolkit_installer/__init__.py"):
        copy = tmp_path / "unpacked" / name
        copy.parent.mkdir(parents=True)
        shutil.copy2(PROJECT / name, copy)
    machine.has("podman")
    unpacked = dataclasses.replace(machine, project=tmp_path / "unpacked")
    done = unpacked.build(PAYLOAD="images", GIT_CEILING_DIRECTORIES=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    words = (machine.folder / "words").read_text().splitlines()
    assert {"REVISION=", "SOURCE_DATE_EPOCH=0"} <= set(following(words, "--build-arg"))
    assert following(words, "--timestamp") == ["0"]


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_folder_whose_name_has_a_space_stays_one_word_and_all_variables_arrive(
    machine: Machine, builder: str, tmp_path: Path
) -> None:
    payload, wheels = tmp_path / "a payload", tmp_path / "some wheels"
    payload.mkdir()
    wheels.mkdir()
    machine.has(*BUILDERS)
    words = machine.words(
        BUILDER=builder,
        PAYLOAD=str(payload),
        WHEELS=str(wheels),
        PLATFORM="linux/arm64",
        BASE_IMAGE="base@sha256:1",
        PIP_INDEX_URL="https://mirror.example/simple",
        IMAGE="registry.example/name:1",
    )
    assert following(words, "--build-context") == [f"payload={payload}", f"wheels={wheels}"]
    assert following(words, "--platform") == ["linux/arm64"]
    assert following(words, "--tag") == ["registry.example/name:1"]
    assert {"BASE_IMAGE=base@sha256:1", "PIP_INDEX_URL=https://mirror.example/simple"} <= set(
        following(words, "--build-arg")
    )


def test_a_payload_of_an_image_is_an_argument_and_no_folder_takes_its_place(machine: Machine) -> None:
    machine.has("podman")
    words = machine.words(PAYLOAD="", PAYLOAD_IMAGE="nvidia@sha256:2")
    assert "PAYLOAD_IMAGE=nvidia@sha256:2" in following(words, "--build-arg")
    assert following(words, "--build-context") == []


def test_a_builder_that_fails_is_not_taken_for_success(machine: Machine) -> None:
    program = machine.folder / "bin/podman"
    program.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 125\n")
    program.chmod(0o755)
    done = machine.build(PAYLOAD="images")
    assert (done.returncode, done.stderr) == (125, "no space left\n")
