"""The program as users get it from pip: in a fresh virtual environment of the README's Python, with bytecode."""

from __future__ import annotations

import subprocess
from pathlib import Path

_PROJECT = Path(__file__).parents[2]
_PYTHON = "/usr/bin/python3"


def install(folder: Path) -> Path:
    """Make the environment in this folder, with the locked packages, and return the program's path."""
    subprocess.run([_PYTHON, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--require-hashes", "--requirement", str(_PROJECT / "locks/runtime.txt")], check=True)
    subprocess.run([*pip, "--no-deps", str(_PROJECT)], check=True)
    return folder / "bin/toolkit-installer"


def python_version(program: Path) -> str:
    """Return the version of the Python that runs the program."""
    command = [str(program.with_name("python")), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return version.removeprefix("Python ").strip()
