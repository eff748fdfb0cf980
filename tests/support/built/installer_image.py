"""The image as `make image` builds it, without a registry: buildah, a base of Debian's packages, NVIDIA's programs.

    python -m tests.support.built.installer_image

builds it at once, which takes a minute or two; a test that wants it builds it otherwise.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.built import commands, go_tools, real_payload

PROJECT = Path(__file__).parents[3]
CACHE = PROJECT / ".cache" / "image"
PROJECT_URL = "https://git.example/team/toolkit-installer"
WHEELS = PROJECT / ".cache" / "wheels"
BASE = "localhost/base:2"
"""Another number for another recipe: whoever has the former one makes it anew."""
NAME = "docker.io/library/toolkit-installer"
"""What engines make of `toolkit-installer`, the manifests' own name for the image."""

_CONTEXT = (
    *("images", "locks", "toolkit_installer", "docs/toolkit-installer.8"),
    *("pyproject.toml", "README.md", "LICENSE", "NOTICE", ".dockerignore"),
)
_PACKAGES = "python3,python3-venv"
# What slim bases leave out as well, Python's bytecode among it. They keep each package's licences.
_LEFT_OUT = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
)
_SECONDS = 900


class ImageBuildError(Exception):
    """The image cannot be built; the message has what is missing, or what the program that failed said."""


@dataclasses.dataclass(frozen=True)
class BuiltImage:
    """An image in a file as `docker save` makes it: for docker load, ctr images import, podman load."""

    reference: str
    archive: Path
    store: Path
    """Where buildah has it, see `buildah`."""


def missing() -> list[str]:
    """Return the programs that build the image and are not installed; what Go builds for it asks for more."""
    return [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]


def built() -> BuiltImage:
    """Return the image of this working tree, built if it has changed; others may do so at the same time.

    Raises ImageBuildError, GoToolError.
    """
    if absent := missing():
        raise ImageBuildError(f"not installed: {', '.join(absent)}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reference = f"{NAME}:{_version()}"
        image = BuiltImage(reference, CACHE / f"{_digest()}.tar", CACHE / "store")
        if not image.archive.exists():
            for old in CACHE.glob("*.tar"):
                old.unlink()
            fetch_wheels(WHEELS)
            if not _has(image.store, BASE):
                _base(image.store)
            make(image.store, reference)
            finished = image.archive.with_suffix(".new")
            finished.unlink(missing_ok=True)  # an archive that is there is not written anew
            buildah(image.store, "push", reference, f"docker-archive:{finished}:{reference}")
            finished.rename(image.archive)
    return image


def make(store: Path, reference: str, given: Path | None = None, **more: str) -> None:
    """Build the image with `make image`'s own script, offline; `more` are further variables. Raises ImageBuildError.

    `given` is the folder of a payload, in place of the usual one.
    """
    variables = {
        "BUILDER": "buildah",
        # the machine's runc or crun may not like the machine's control groups
        "BUILDAH_ISOLATION": "chroot",
        "BUILDER_FLAGS": " ".join(_flags(store)),
        "BASE_IMAGE": BASE,
        "IMAGE": reference,
        "PAYLOAD": str(given or payload()),
        "WHEELS": str(WHEELS),
        # the same image for the same files, whatever was committed meanwhile
        "REVISION": _digest(),
        "SOURCE_DATE_EPOCH": "1700000000",
        "PROJECT_URL": PROJECT_URL,
    }
    commands.output([PROJECT / "images/build"], ImageBuildError, seconds=_SECONDS, environment=variables | more)


def fetch_wheels(folder: Path, **more: str) -> None:
    """Fetch what the image is built of, for this Python unless `more` says another. Raises ImageBuildError."""
    variables = {"WHEELS": str(folder), "PYTHON_VERSION": f"{sys.version_info.major}.{sys.version_info.minor}"}
    command = ["make", "--no-print-directory", "wheels"]
    commands.output(command, ImageBuildError, seconds=_SECONDS, folder=PROJECT, environment=variables | more)


def buildah(store: Path, *arguments: str | Path) -> str:
    """Run buildah on a store of ours and return what it printed. Raises ImageBuildError."""
    return commands.output(["buildah", *_flags(store), *arguments], ImageBuildError, seconds=_SECONDS).strip()


def _flags(store: Path) -> tuple[str, ...]:
    return "--root", str(store / "root"), "--runroot", str(store / "run")


def _has(store: Path, image: str) -> bool:
    return bool(buildah(store, "images", "--quiet", "--filter", f"reference={image}"))


def _version() -> str:
    line = next(line for line in (PROJECT / "toolkit_installer/__init__.py").read_text().splitlines() if "=" in line)
    return line.split('"')[1]


def _digest() -> str:
    """Return what the image depends on, as one number."""
    found = hashlib.sha256(go_tools.TOOLKIT.version.encode())
    for path in _files():
        found.update(f"{path.relative_to(PROJECT)}\0{path.stat().st_mode}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _files() -> Iterator[Path]:
    for name in _CONTEXT:
        path = PROJECT / name
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file() and "__pycache__" not in each.parts:
                yield each


def foreign_base(store: Path, machine: str, name: str) -> None:
    """Make a base for another machine, and add it to a store: as far as that goes without running what is in it.

    Raises ImageBuildError.
    """
    if not _has(store, name):
        _base(store, name, machine)


def _base(store: Path, name: str = BASE, machine: str | None = None) -> None:
    """Make a base: Debian's own release of this machine, as small as debootstrap makes one, with Python."""
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    targets = commands.output(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"],
        ImageBuildError,
        seconds=_SECONDS,
    )
    mirrors = [
        place for codename, _, place in (line.partition(" ") for line in targets.splitlines()) if codename == suite
    ]
    foreign = () if machine is None else ("--foreign", f"--arch={machine}")
    with tempfile.TemporaryDirectory(prefix="base.", dir=CACHE) as work:
        root = Path(work) / "root"
        command = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", *foreign, suite, str(root)]
        commands.output([*command, *mirrors[:1]], ImageBuildError, seconds=_SECONDS)
        if machine is not None:
            _unpack_all(root)
        for left_out in _LEFT_OUT:
            shutil.rmtree(root / left_out)
            (root / left_out).mkdir()
        for text in [path for path in (root / "usr/share/doc").rglob("*") if path.is_file()]:
            if text.name != "copyright":
                text.unlink()
        for bytecode in list((root / "usr/lib").rglob("__pycache__")):
            shutil.rmtree(bytecode)
        container = buildah(store, "from", *(() if machine is None else ("--arch", machine)), "scratch")
        buildah(store, "copy", container, root, "/")
        buildah(store, "commit", "--rm", "--timestamp", "0", container, name)


def _unpack_all(root: Path) -> None:
    """Unpack what debootstrap only fetched, as its second stage would on the machine, and write what dpkg would."""
    status = []
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        commands.output(["dpkg-deb", "--extract", package, root], ImageBuildError, seconds=_SECONDS)
        control = commands.output(["dpkg-deb", "--field", package], ImageBuildError, seconds=_SECONDS)
        status.append(f"{control.rstrip()}\nStatus: install ok installed\n")
    (root / "var/lib/dpkg/status").write_text("\n".join(status))
    if (root / "debootstrap").exists():
        shutil.rmtree(root / "debootstrap")


def payload() -> Path:
    """Return the folder of the payload that the image is built with, made if it is not there. Raises GoToolError."""
    programs = go_tools.build(go_tools.TOOLKIT)
    folder = CACHE / f"payload-{go_tools.TOOLKIT.version}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(prefix="payload.", dir=CACHE) as work:
            os.rename(real_payload.build(Path(work) / "made", programs), folder)
    return folder


if __name__ == "__main__":
    print(built().archive)  # noqa: T201  # that is what it is for
