"""Puts together what the image adds to its base, in a folder: the program in its own environment, and the payload.

    python3 assemble.py WHEELS PAYLOAD BASE OUT      (in the project's folder, as the Dockerfile's build stage does)

Needs root, because the environment is made where it will be. If WHEELS has wheels in it, nothing is downloaded. BASE is
the root of the image's base. Where that is for another machine than this one (TARGETARCH), nothing of it is run: this
machine's Python compiles what both have alike, and then the packages are exchanged for those of the other machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path("/opt/toolkit-installer")
PROGRAMS = ("toolkit-installer", "nvidia-toolkit", "nvidia-ctk-installer")
_IN_PATH = Path("usr/local/bin")
_BASH = Path("usr/bin/bash")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""The machines by the names that builders have for them."""
_GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_28", "manylinux_2_34")
"""What glibc a wheel asks for at least (PEP 600); Debian 12, the base, has 2.36."""


def main(wheels: Path, payload: Path, base: Path, out: Path) -> None:
    """Do it all; `out` is made, and holds the paths of the image."""
    own = os.uname().machine
    machine = _MACHINES.get(os.environ.get("TARGETARCH", ""), own)
    images = Path(__file__).resolve().parent
    project = images.parent
    tools = Path("/tmp/tools")  # noqa: S108  # the build stage is nobody else's
    _environment(tools, pip=True)
    pip = _Pip(tools / "bin/python", wheels)
    pip.install(tools, "--requirement", str(project / "locks/build.txt"), "--require-hashes")
    seen = {"PYTHONPATH": str(project)}
    artifacts = out / "artifacts"
    out.mkdir()
    # before all that takes long: a payload may be incomplete
    _run(tools / "bin/python", images / "gather.py", payload, artifacts, machine, environment=seen)
    _environment(HOME, pip=False)
    report = Path("/tmp/report.json")  # noqa: S108  # see above
    packages = ("--requirement", str(project / "locks/runtime.txt"), "--require-hashes", "--report", str(report))
    pip.install(HOME, *packages)
    _run(tools / "bin/hatchling", "build", "--target", "wheel", "--directory", "/tmp/dist", cwd=project)  # noqa: S108  # see above
    pip.install(HOME, *map(str, Path("/tmp/dist").glob("*.whl")))  # noqa: S108  # see above
    if revision := os.environ.get("REVISION"):
        (package,) = HOME.glob("lib/python*/site-packages/toolkit_installer")
        (package / "revision").write_text(f"{revision}\n")
    for source in (project / "LICENSE", project / "NOTICE"):
        shutil.copyfile(source, HOME / source.name)
    _trim()
    compiler = (HOME / "bin/python", "-I", "-B", images / "bytecode.py")
    _run(*compiler, "library", HOME, base, out)
    if machine != own:
        _exchange(pip, machine, *packages)
    _run(*compiler, "packages", HOME)
    bill = (tools / "bin/python", images / "sbom.py", machine, report, HOME, base, artifacts)
    (HOME / "sbom.cdx.json").write_text(_run(*bill, environment=seen, kept=True))
    shutil.copytree(HOME, out / HOME.relative_to("/"), symlinks=True)
    (out / _IN_PATH).mkdir(parents=True)
    for name in PROGRAMS:
        (out / _IN_PATH / name).symlink_to(HOME / "bin" / name)
    _shell(base, out)
    _same_times(out, int(os.environ.get("SOURCE_DATE_EPOCH") or 0))


def _exchange(pip: _Pip, machine: str, *packages: str) -> None:
    """Put the packages for another machine in the place of this one's."""
    (folder,) = HOME.glob("lib/python*/site-packages")
    for path in folder.iterdir():
        if path.name.partition("-")[0] != "toolkit_installer":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    platforms = [word for glibc in _GLIBC for word in ("--platform", f"{glibc}_{machine}")]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    foreign = ("--target", str(folder), "--implementation", "cp", "--python-version", version, *platforms)
    pip.install(HOME, *foreign, *packages)
    if (scripts := folder / "bin").exists():
        shutil.rmtree(scripts)


def _shell(base: Path, out: Path) -> None:
    """Have `sh -c COMMAND` become the command, as bash does and dash does not, where the base has bash.

    The GPU Operator's entry point is `sh -c /bin/entrypoint.sh`: a shell that stayed in between would get the engine's
    signal, end of it, and leave nobody to clean up.
    """
    if os.path.lexists(base / _BASH):
        (out / "usr/bin").mkdir(parents=True)
        (out / "usr/bin/sh").symlink_to(_BASH.name)


class _Pip:
    """The pip of one environment, which installs into any."""

    def __init__(self, python: Path, wheels: Path) -> None:
        self._command = (python, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "--quiet")
        offline = ("--no-index", "--find-links", str(wheels))
        self._source = offline if any(wheels.glob("*.whl")) else ()

    def install(self, environment: Path, *what: str) -> None:
        options = ("--no-deps", "--no-compile", "--only-binary", ":all:", "--root-user-action", "ignore")
        python = environment / "bin/python"
        _run(*self._command, "--python", python, "install", *options, *self._source, *what)


def _environment(folder: Path, *, pip: bool) -> None:
    _run(sys.executable, "-m", "venv", *(() if pip else ("--without-pip",)), folder)


def _trim() -> None:
    """Leave of the environment what the program runs with; its programs see nothing of the caller's Python."""
    shutil.rmtree(HOME / "include")
    shutil.rmtree(HOME / "share")  # the manual page, which nobody reads in a container
    interpreter = f"#!{HOME}/bin/python"
    for path in (HOME / "bin").iterdir():
        if path.name in PROGRAMS:
            first, rest = path.read_text().split("\n", 1)
            if first != interpreter:
                raise SystemExit(f"{path} begins with {first!r}, not {interpreter!r}: the base's Python is not known")
            path.write_text(f"{interpreter} -I\n{rest}")
        elif not path.name.startswith("python"):
            path.unlink()


def _same_times(folder: Path, seconds: int) -> None:
    """Give everything one time of change, so that two builds of the same files make the same image."""
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.utime(os.path.join(place, name), (seconds, seconds), follow_symlinks=False)


def _run(
    *command: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None, kept: bool = False
) -> str:
    """Run a program of the build; return what it printed, if that is to be kept."""
    # What the base comes with compiled is to be told from what its Python compiles here.
    seen = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    printed = subprocess.PIPE if kept else None
    done = subprocess.run(command, check=False, cwd=cwd, env=seen, stdout=printed, text=True)  # noqa: S603  # the build's own
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}")
    return done.stdout or ""


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
