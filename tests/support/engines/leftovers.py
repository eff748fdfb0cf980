"""What an engine leaves behind that was killed, or that a failing test left running: processes and mounts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil

MARK = "TOOLKIT_TEST_ENGINE"
"""The variable by which an engine's processes are known, shims and all; its value is the engine's folder."""
_MONITOR = "conmon"
"""CRI-O gives its containers' monitors an environment of its own; they are known by the folders that they are told."""
_POLL = 0.02


class LeftoverError(Exception):
    """Something could not be taken away."""


def sweep(folder: Path) -> None:
    """Kill what an engine in `folder` started and unmount what it mounted there.

    Raises LeftoverError where a process survives SIGKILL, CalledProcessError where a mount stays.
    """
    kill_all(folder)
    unmount_all(folder)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the live processes that an engine in `folder` started, and all below them."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        # One that ends meanwhile, or is a zombie, is no process of anybody's.
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and _is_of(process, folder):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    return [process for process in found.values() if process.is_running() and process.status() != "zombie"]


def _is_of(process: psutil.Process, folder: Path) -> bool:
    if process.name() == _MONITOR:
        return any(Path(argument).is_relative_to(folder) for argument in process.cmdline())
    return Path(process.environ().get(MARK, "/")).is_relative_to(folder)


def kill_all(folder: Path, *, within: float = 10.0) -> None:
    """Kill the processes of an engine in `folder`. Raises LeftoverError where one survives."""
    deadline = time.monotonic() + within
    while processes := processes_of(folder):
        if time.monotonic() > deadline:
            raise LeftoverError(f"still there after SIGKILL: {processes}")
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        time.sleep(_POLL)


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points below `folder`, the latest first."""
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point) for point in points]
    return [point for point in reversed(points) if Path(point).is_relative_to(folder)]


def unmount_all(folder: Path) -> None:
    """Unmount everything below `folder`. Raises CalledProcessError."""
    for point in mounts_below(folder):
        subprocess.run(["umount", "--lazy", point], check=True, timeout=30)
