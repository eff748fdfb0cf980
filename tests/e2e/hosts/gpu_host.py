"""A made-up GPU on a whole machine (host.py): its device, libraries, CDI specification, nvidia-smi.

As in gpu.py it is the machine's shell, which runs the toolkit's wrappers, that finds the driver's
kernel module loaded. Nothing of it is there before it is put there, and nvidia-smi is what comes last.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.e2e.hosts import gpu
from tests.e2e.hosts.host import Host
from tests.support import driver_roots

PROGRAMS = gpu.PROGRAMS
LOADED = Path("/run/test-modules")
_LIBRARY = Path("/usr/lib/test-modules.so")
_DEVICE, _LIBRARIES = Path("/dev/nvidia0"), Path("/usr/lib/nvidia-libraries")


def plug_in(host: Host) -> None:
    """Have the machine show a GPU, which it has no driver for."""
    gpu.make_device(host.path(_DEVICE))


def install(host: Host, work: Path) -> None:
    """Install the driver on a machine, which shows a GPU from now on; `work` is a folder of ours.

    What a container sees of it: gpu.py's names.
    """
    work.mkdir()
    shell = gpu.make_shell(work, LOADED, _LIBRARY)
    shutil.copy2(work / _LIBRARY.name, host.path(_LIBRARY))
    load(host)
    _replace(shell, host.path("/usr/bin/dash"))
    host.path(_LIBRARIES).mkdir(exist_ok=True)
    (host.path(_LIBRARIES) / "libcuda.so.1").write_text("not a library: what counts is that it is seen\n")
    host.path("/etc/cdi").mkdir(exist_ok=True)
    host.path("/etc/cdi/gpu.json").write_text(json.dumps(gpu.specification(_DEVICE, _LIBRARIES)))
    driver_roots.install(host.path("/"), devices=False)


def remove(host: Host) -> None:
    """Remove the driver and its GPU, as a node is that never had one; the rest of it says nothing to anybody."""
    host.path(LOADED).write_text(gpu.modules(loaded=False))
    host.path(_DEVICE).unlink(missing_ok=True)
    host.path("/usr/bin/nvidia-smi").unlink(missing_ok=True)


def load(host: Host) -> None:
    """Load its kernel module: at the installation, and at each boot of a machine whose disk outlives that."""
    host.path(LOADED).write_text(gpu.modules(loaded=True))
    if not host.path(_DEVICE).exists():
        plug_in(host)


def _replace(new: Path, old: Path) -> None:
    """Put a program in the place of one that may be running."""
    beside = old.with_name(f"{old.name}.new")
    shutil.copy2(new, beside)
    beside.rename(old)
