"""NVIDIA's management library (NVML) without a driver: a `libnvidia-ml.so.1` of C, and the driver's root around it.

NVIDIA's programs open it as they open the real one: by its name, or below the driver's root. It reports two GPUs, or as
many as the environment variable MOCK_NVML_GPUS says, at most 16: `NVIDIA L4` with the UUIDs of `uuid`, 24 GiB each, no
MIG, no NVLink. It offers

- to `nvidia-ctk cdi generate --mode=nvml` (1.19, 1.20) and nvidia-container-runtime in jit-cdi mode: the library's
  start and end, error texts, the driver's version; of each GPU its handle, UUID, name, index, minor number, PCI
  address, addressing mode and fabric, and whether MIG is on;
- to NVIDIA's device plugin (0.17) these, and memory, architecture, brand, compute capability, the CUDA version, how two
  GPUs are connected, and events, of which none ever comes.

The GPU Operator's validator runs nvidia-smi and does not open it. A program that calls another function ends with
`undefined symbol: nvml…`: add that function to nvml.c.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from pathlib import Path

from tests.support import fake_ctk, payloads
from tests.support.built import commands

CACHE = Path(__file__).parents[3] / ".cache" / "nvml"
VARIABLE = "MOCK_NVML_GPUS"
GPUS = 2
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
PROGRAMS = ("gcc",)
"""The programs that have to be installed."""
_SOURCE = Path(__file__).with_suffix(".c")
_SECONDS = 60
_MAJOR = 195
"""NVIDIA's character devices. Source: Documentation/admin-guide/devices.txt of Linux."""
_MINORS = {"nvidiactl": 255, "nvidia-modeset": 254, "nvidia-uvm": 253, "nvidia-uvm-tools": 252}


class NvmlError(Exception):
    """The library cannot be built; the message has the compiler's words."""


def uuid(index: int) -> str:
    """Return a GPU's UUID."""
    return f"GPU-00000000-0000-4000-8000-{index:012x}"


def build(version: str = fake_ctk.VERSION, cache: Path = CACHE) -> Path:
    """Return the library of a driver of this version, compiled if it is not there yet; processes may race for it.

    Raises NvmlError.
    """
    state = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:8]
    library = cache / f"libnvidia-ml.so.{version}-{state}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                made = Path(work) / library.name
                defined = f'-DVERSION="{version}"'
                flags = ["-std=gnu11", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", defined]
                naming = "-Wl,-soname,libnvidia-ml.so.1"
                commands.output(["gcc", *flags, naming, "-o", made, _SOURCE], NvmlError, seconds=_SECONDS)
                made.rename(library)
    return library


def install(root: Path, version: str = fake_ctk.VERSION, *, gpus: int = GPUS) -> Path:
    """Add the driver's libraries, this NVML among them, and the device nodes of so many GPUs to a root, and return it.

    A root may be a whole machine's. libcuda.so.1 can be loaded and has no function. Only root can make device nodes.
    Raises NvmlError.
    """
    libraries, devices = root / fake_ctk.LIBRARIES, root / "dev"
    for folder in (libraries, devices):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(build(version), libraries / f"libnvidia-ml.so.{version}")
    (libraries / f"libcuda.so.{version}").write_bytes(payloads.library("libcuda.so.1", machine=platform.machine()))
    for name in LIBRARIES:
        (libraries / f"{name}.1").symlink_to(f"{name}.{version}")
    make_devices(devices, gpus)
    return root


def remove(root: Path) -> None:
    """Remove from a root what `install` added."""
    for name in LIBRARIES:
        for library in (root / fake_ctk.LIBRARIES).glob(f"{name}.*"):
            library.unlink()
    for device in (root / "dev").glob("nvidia*"):
        device.unlink()


def make_devices(folder: Path, gpus: int = GPUS) -> None:
    """Make the device nodes of so many GPUs and of their driver, where there are none."""
    for name, minor in {**{f"nvidia{index}": index for index in range(gpus)}, **_MINORS}.items():
        if not (folder / name).exists():
            os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(_MAJOR, minor))
            (folder / name).chmod(0o666)
