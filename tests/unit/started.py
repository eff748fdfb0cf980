"""A process that was just started, and can be looked at.

Popen returns when the kernel closes the files of the program before, and that is an instant before the kernel gives the
process its name, its arguments and its environment.
"""

from __future__ import annotations

import time
from pathlib import Path

_SECONDS = 30.0


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
