"""A payload of NVIDIA's own programs. Its C parts, which are built with the driver's headers, are stand-ins.

The stand-ins are libnvidia-container, libnvidia-container-go and nvidia-container-cli: they are copied, as the
installer requires them, and never run: containers get their GPU by CDI here.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

from tests.support import payloads
from tests.support.built import go_tools

_STAND_INS = ("libnvidia-container", "libnvidia-container-go")
_SECONDS = 60


def build(root: Path, programs: Path, specifications: Path | None = None) -> Path:
    """Write a payload with the programs of go_tools.TOOLKIT below `root` and return `root`.

    Its config.toml is the one that its nvidia-ctk makes, with `specifications`, if given, as the folder of CDI's.
    """
    machine, version = platform.machine(), go_tools.TOOLKIT.version.removeprefix("v")
    bin_folder, libraries = root / "usr/bin", root / f"usr/lib/{machine}-linux-gnu"
    for folder in (bin_folder, libraries, root / "etc/nvidia-container-runtime"):
        folder.mkdir(parents=True)
    for name in go_tools.TOOLKIT.programs:
        shutil.copy2(programs / name, bin_folder / name)
    (bin_folder / "nvidia-container-toolkit").symlink_to("nvidia-container-runtime-hook")
    cli = bin_folder / "nvidia-container-cli"
    cli.write_bytes(payloads.executable("a stand-in for nvidia-container-cli\n", machine=machine))
    cli.chmod(0o755)
    for name in _STAND_INS:
        library = libraries / f"{name}.so.{version}"
        library.write_bytes(payloads.library(f"{name}.so.1", machine=machine))
        (libraries / f"{name}.so.1").symlink_to(library.name)
    config = root / "etc/nvidia-container-runtime/config.toml"
    ctk = bin_folder / "nvidia-ctk"
    _run(ctk, "--quiet", "config", "default", f"--output={config}")
    if specifications is not None:
        setting = f"nvidia-container-runtime.modes.cdi.spec-dirs={specifications}"
        _run(ctk, "--quiet", "config", f"--config-file={config}", "--in-place", f"--set={setting}")
    return root


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_SECONDS)
