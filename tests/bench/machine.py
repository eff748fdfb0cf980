"""The machine, the date and the versions that figures are of; no name of a host, and no path."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import toolkit_installer
from tests.bench import image_root, pip_install
from tests.support.built import go_tools


def about(image: Path | None = None, installed: Path | None = None) -> dict[str, Any]:
    """Return what a data file says besides its figures.

    `image` is the folder of the image's files, `installed` the program as pip installed it.
    """
    processors = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", processors, re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": {
            "processors": os.cpu_count(),
            "model": model[1] if model else platform.machine(),
            "memory": round(memory / 1e9),
            "kernel": platform.release(),
        },
        "versions": {
            "toolkit-installer": f"{toolkit_installer.__version__} ({_revision()})",
            "Python": platform.python_version() if installed is None else pip_install.python_version(installed),
            **({} if image is None else {"the image's Python": image_root.python_version(image)}),
            "nvidia-ctk-installer": go_tools.NEWEST_PEER.version.removeprefix("v"),
        },
    }


def _revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else "no commit"
