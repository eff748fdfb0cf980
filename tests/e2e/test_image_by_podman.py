"""The image as podman builds it by the same script: the very same one as buildah's, and it runs."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import toolkit_installer
from tests.support.built import commands, installer_image
from tests.support.built.installer_image import BuiltImage, ImageBuildError

BY_PODMAN = "localhost/by-podman:1"
RUN = (
    *("run", "--rm", "--network", "none", "--runtime", "runc"),
    # its own limits are higher than a root without CAP_SYS_RESOURCE may set
    *("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"),
)


@dataclasses.dataclass(frozen=True)
class Podman:
    """podman with a store of its own: in its database each store is known by the path that it had when it was made."""

    flags: tuple[str, ...]

    def __call__(self, *arguments: str) -> str:
        """Run it and return what it printed. Raises ImageBuildError."""
        return commands.output(["podman", *self.flags, *arguments], ImageBuildError, seconds=120).strip()


@pytest.fixture
def podman(built_image: BuiltImage, folder: Path) -> Iterator[Podman]:
    """Yield podman; the images that buildah made are there too, the base among them."""
    if shutil.which("podman") is None:
        pytest.skip("not installed: podman (Debian's package podman)")
    # podman refuses a runroot of more than 50 characters, and pytest's folders are longer
    with tempfile.TemporaryDirectory(prefix="podman.", dir="/run") as short:
        own = {"root": str(folder / "root"), "runroot": short, "tmpdir": str(folder / "tmpdir")}
        others = ("--storage-opt", f"additionalimagestore={built_image.store / 'root'}")
        yield Podman((*(word for name, path in own.items() for word in (f"--{name}", path)), *others))
        _wait_until_nobody_uses(short)
        for place in (folder / "root/overlay", folder / "root", Path(short)):  # what it mounts, it leaves mounted
            if place.is_mount():
                subprocess.run(["umount", str(place)], check=True, timeout=60)


def _wait_until_nobody_uses(folder: str) -> None:
    """Wait for podmans that clean up after a container: its monitor starts one, and nobody waits for that."""
    deadline = time.monotonic() + 60
    while any(folder.encode() in _command_line(process) for process in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < deadline, f"a process still names {folder}"
        time.sleep(0.1)


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""  # it has ended


def test_podman_builds_the_same_image_as_buildah_and_it_runs(built_image: BuiltImage, podman: Podman) -> None:
    installer_image.make(built_image.store, BY_PODMAN, BUILDER="podman", BUILDER_FLAGS=" ".join(podman.flags))
    theirs = installer_image.buildah(built_image.store, "images", "--quiet", "--no-trunc", built_image.reference)
    ours = podman("images", "--quiet", "--no-trunc", BY_PODMAN)
    assert ours == theirs
    said = podman(*RUN, "--entrypoint", "toolkit-installer", BY_PODMAN, "--version")
    version = re.escape(toolkit_installer.__version__)
    assert re.match(rf"toolkit-installer {version} \(revision [0-9a-f]+\)\npayload: NVIDIA container toolkit ", said)
