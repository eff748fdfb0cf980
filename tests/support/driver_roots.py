"""Drivers on made nodes: a root with an nvidia-smi that runs there, in a chroot, as the real one would."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

BUSYBOX = shutil.which("busybox", path="/usr/local/bin:/usr/bin:/bin")
MISSING = (
    "an nvidia-smi is run in a chroot: run as root"
    if os.geteuid() != 0
    else "busybox is not installed (Debian's package busybox-static)"
    if BUSYBOX is None
    else ""
)
"""Why no nvidia-smi can be run on a made node; empty where one can."""

CONTAINER, HOST = "/run/nvidia/driver", "/"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
VERSION = "580.65.06"


def install(place: Path, *, works: bool = True, devices: bool = True, folder: str = "usr/bin") -> Path:
    """Put a driver's root at `place`, and return its nvidia-smi."""
    shell = place / "bin" / "busybox"
    shell.parent.mkdir(parents=True, exist_ok=True)
    if BUSYBOX is not None and not shell.exists():
        shutil.copy2(BUSYBOX, shell)
        (place / "bin" / "sh").symlink_to("busybox")
    if devices:
        (place / "dev").mkdir(exist_ok=True)
    program = place / folder / "nvidia-smi"
    program.parent.mkdir(parents=True, exist_ok=True)
    # put in place as a package would: nobody runs half of it
    new = program.with_name("nvidia-smi.new")
    does = f"echo {VERSION}" if works else f'echo "{NO_DRIVER}"; exit 9'
    new.write_text(f"#!/bin/busybox sh\n{does}\n")
    new.chmod(0o755)
    new.rename(program)
    return program
