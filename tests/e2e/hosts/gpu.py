"""A GPU and its driver, made up: a device node, a folder of libraries, a CDI specification, a line in /proc/modules.

A kernel that was built without modules has no /proc/modules, nor anything to mount over it. So it is the shell, which
runs the toolkit's wrappers, that is given another file to read there: a copy of the machine's own, in a mount namespace
of the test's.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Self

_MAJOR = 195
"""NVIDIA's character devices. Source: Documentation/admin-guide/devices.txt of Linux."""
_MODULES = "overlay 212992 0 - Live 0x0000000000000000\n"
_NVIDIA = "nvidia 56823808 12 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)\n"
_LIBRARY = Path(__file__).with_name("modules.c")
_SHELL = Path("/bin/sh")
_HOLD = 'mount --bind "$0" "$1" && echo held && exec sleep infinity'
PROGRAMS = ("gcc", "patchelf", "setpriv", "unshare", "nsenter")
"""What has to be installed."""

DEVICE = "/dev/nvidia0"
"""In a container."""
LIBRARIES = "/usr/lib/driver"
"""In a container."""
VARIABLE = "DRIVER_VERSION"
VERSION = "999.99.1"


class Driver:
    """The driver below `folder`. Programs started by way of `enter` find it loaded or not, as the test says.

    They have a mount namespace of their own, in which /bin/sh reads a file of the test's for /proc/modules.
    """

    def __init__(self, folder: Path) -> None:
        self.specifications = folder / "cdi"
        self._modules = folder / "modules"
        self._folder = folder
        self._keeper: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        libraries = self._folder / "libraries"
        libraries.mkdir(parents=True)
        (libraries / "libcuda.so.1").write_text("not a library: what counts is that it is seen\n")
        node = self._folder / "nvidia0"
        make_device(node)
        self.specifications.mkdir()
        (self.specifications / "gpu.json").write_text(json.dumps(specification(node, libraries)))
        self.unload()
        shell = make_shell(self._folder, self._modules, self._folder / "modules.so")
        command = ["sh", "-c", _HOLD, str(shell), str(_SHELL.resolve())]
        # it ends with the tests even where these are killed and no finalizer runs
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", *command]
        self._keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert self._keeper.stdout is not None
        if self._keeper.stdout.readline() != "held\n":
            self.__exit__()
            raise OSError("no mount namespace with a shell of its own could be made")
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            with self._keeper as keeper:
                keeper.kill()
            self._keeper = None

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put before a command so that it sees the driver's line, or does not."""
        assert self._keeper is not None
        return ("nsenter", f"--mount=/proc/{self._keeper.pid}/ns/mnt")

    def load(self) -> None:
        """Have the driver's kernel module loaded."""
        self._modules.write_text(modules(loaded=True))

    def unload(self) -> None:
        """Have it not loaded; others are."""
        self._modules.write_text(modules(loaded=False))


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=60)


def modules(*, loaded: bool) -> str:
    """Return what /proc/modules says."""
    return _MODULES + _NVIDIA if loaded else _MODULES


def make_device(node: Path) -> None:
    """Make a GPU's device node."""
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, 0))


def make_shell(folder: Path, modules: Path, library: Path) -> Path:
    """Make, in a folder, a copy of the machine's shell that reads the file `modules` for /proc/modules.

    The shell looks for its library, which is made in the folder too, where `library` says.
    """
    made, shell = folder / library.name, folder / "sh"
    defined = f'-DMODULES="{modules}"'
    _run("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", defined, "-o", made, _LIBRARY)
    shutil.copy2(_SHELL, shell)
    _run("patchelf", "--add-needed", library, shell)
    return shell


def specification(node: Path, libraries: Path) -> dict[str, object]:
    """Return the CDI specification of a GPU with this device node, and these libraries."""
    edits = {"deviceNodes": [{"path": DEVICE, "hostPath": str(node)}]}
    options = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {
            "env": [f"{VARIABLE}={VERSION}"],
            "mounts": [{"hostPath": str(libraries), "containerPath": LIBRARIES, "options": options}],
        },
        "devices": [{"name": name, "containerEdits": edits} for name in ("0", "all")],
    }
