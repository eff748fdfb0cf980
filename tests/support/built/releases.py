"""Engines of newer Debian releases, beside those that the machine has: fetched by apt, run from a folder of their own.

apt works on a private state and leaves the machine's alone. It fetches from where the machine's own sources say, and
trusts what Debian's archive keys have signed. Go's binaries run on an older release as they are; runc is linked against
a newer libc, so it gets that libc, and its loader, from where they were unpacked.
"""

from __future__ import annotations

import dataclasses
import enum
import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.built import commands

CACHE = Path(__file__).parents[3] / ".cache" / "releases"
_PACKAGES = ("containerd", "docker.io", "docker-cli", "runc")
_LIBRARIES = ("libc6", "libseccomp2")
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ENGINES, _LIBS = "engines", "libraries"
_SECONDS = 600


class ReleaseError(Exception):
    """A release's engines cannot be had; the message has what apt said."""


class Suite(enum.StrEnum):
    """A release of Debian that is newer than the one this was written on."""

    TRIXIE = "trixie"
    """docker 26, containerd 1.7."""
    SID = "sid"
    """docker 28 or later, containerd 2.1 or later."""


@dataclasses.dataclass(frozen=True)
class Release:
    """The engines of one suite. `root` has them where the packages put them: usr/bin, usr/sbin, usr/lib/systemd."""

    suite: Suite
    root: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where its programs are."""
        return self.root / "usr/sbin", self.root / "usr/bin"


def fetch(suite: Suite, cache: Path = CACHE) -> Release:
    """Return a suite's engines, fetched if they are not there yet; others may do so at the same time.

    Raises ReleaseError.
    """
    folder = cache / suite
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _complete(folder):
            if folder.exists():
                shutil.rmtree(folder)
            with tempfile.TemporaryDirectory(prefix=f"{suite}.", dir=cache) as work:
                made = _make(suite, Path(work), folder)
                made.rename(folder)
            if not _complete(folder):
                raise ReleaseError(f"runc of {suite} does not run, although it was fetched into {folder}")
    return Release(suite, folder / _ENGINES)


def _complete(folder: Path) -> bool:
    """Tell whether the release is there and runs: one that was moved has a runc without its loader."""
    runc = folder / _ENGINES / "usr/sbin/runc"
    try:
        return subprocess.run([runc, "--version"], capture_output=True, check=False, timeout=60).returncode == 0
    except FileNotFoundError:
        return False


def _make(suite: Suite, work: Path, final: Path) -> Path:
    """Fetch and unpack a suite's packages below `work`, such that they can be moved to `final`."""
    debs = work / "debs"
    debs.mkdir()
    _fetch_packages(suite, work, debs)
    made = work / "made"
    for folder, packages in ((made / _ENGINES, _PACKAGES), (made / _LIBS, _LIBRARIES)):
        folder.mkdir(parents=True)
        for package in packages:
            (deb,) = debs.glob(f"{package}_*.deb")
            _run(["dpkg", "--extract", deb, folder])
    # a shell would be no help: runc starts /proc/self/exe anew, which must be runc and not the loader
    (loader,) = (path for path in sorted((made / _LIBS).rglob("ld-linux*.so.*")) if not path.is_symlink())
    (seccomp,) = {path.parent for path in (made / _LIBS).rglob("libseccomp.so.2")}
    at = [str(final / path.relative_to(made)) for path in (loader, seccomp)]
    runc = made / _ENGINES / "usr/sbin/runc"
    _run(["patchelf", "--set-interpreter", at[0], "--force-rpath", "--set-rpath", at[1], runc])
    return made


def _fetch_packages(suite: Suite, work: Path, into: Path) -> None:
    """Let apt fetch the packages and check its signatures and hashes; nothing is installed."""
    state = work / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "parts"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()  # as if nothing were installed
    (state / "sources.list").write_text(f"deb [signed-by={_KEYS} target=Packages] {_mirror()} {suite} main\n")
    # read after the machine's own files: its proxies hold, its hooks and sources do not
    (state / "apt.conf").write_text(f"""\
#clear APT::Update;
Dir::Etc::SourceList "{state}/sources.list";
Dir::Etc::SourceParts "{state}/parts";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "{state}/parts";
Dir::State "{state}";
Dir::State::Lists "{state}/lists";
Dir::State::Status "{state}/status";
Dir::Cache "{state}/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
""")
    environment = os.environ | {"APT_CONFIG": str(state / "apt.conf"), "LC_ALL": "C.UTF-8"}
    _run(["apt-get", "--quiet=2", "update"], environment=environment)
    _run(["apt-get", "--quiet=2", "download", *_PACKAGES, *_LIBRARIES], folder=into, environment=environment)


def _mirror() -> str:
    """Return where the machine gets its own Debian release from. Raises ReleaseError."""
    names = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    if names.get("ID") != "debian":
        raise ReleaseError("newer engines come from newer releases of Debian, and this machine does not run Debian")
    wanted = ["Created-By: Packages", "Component: main", f"Release: {names['VERSION_CODENAME']}"]
    sites = _run(["apt-get", "indextargets", "--format", "$(SITE)", *wanted]).splitlines()
    if not sites:
        raise ReleaseError(f"apt has no source for this machine's own release, {names['VERSION_CODENAME']}")
    return sites[0]


def _run(command: list[str | Path], *, folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    return commands.output(command, ReleaseError, seconds=_SECONDS, folder=folder, environment=environment)
