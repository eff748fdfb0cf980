"""A process that was just started, and can be looked at.

Popen returns when the kernel closes the files of the program before, and that is an instant before the kernel gives the
process its name, its arguments and its environment.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

_SECONDS = 30.0
_PROGRAM = "#!/bin/sh\nread -r _\n"
"""It waits for its standard input to be closed, whatever its arguments are."""


def wait_until_it_shows(pid: int, name: str) -> None:
    """Wait until a process has its name, as the kernel cuts it, its arguments and its environment.

    Raises TimeoutError.
    """
    place = Path(f"/proc/{pid}")
    deadline = time.monotonic() + _SECONDS
    while not (
        (place / "comm").read_text().rstrip("\n") == name[:15]
        and (place / "cmdline").read_bytes()
        and (place / "environ").read_bytes()
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"PID {pid} has not become {name}")
        time.sleep(0.001)


class Started:
    """Starts processes that have the name and the arguments given, and a folder as their working directory."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where their programs are written, and what they work in unless another one is said."""
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, name: str, *arguments: str, folder: Path | None = None) -> int:
        """Start one, and return its PID once it shows its name."""
        program = self._folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        if not program.exists():  # one that was started may still have to read it
            program.write_text(_PROGRAM)
            program.chmod(0o755)
        place = self._folder if folder is None else folder
        place.mkdir(parents=True, exist_ok=True)
        self._processes.append(subprocess.Popen([program, *arguments], cwd=place, stdin=subprocess.PIPE))
        wait_until_it_shows(self._processes[-1].pid, name)
        return self._processes[-1].pid

    @property
    def pids(self) -> set[int]:
        """The processes that were started."""
        return {process.pid for process in self._processes}

    def close(self) -> None:
        """End them all."""
        for process in self._processes:
            process.kill()
            process.communicate()
