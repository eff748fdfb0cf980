"""Programs that make what the tests run: what one printed, or its words in an error of the caller's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def output(
    command: Sequence[str | Path],
    error: type[Exception],
    *,
    seconds: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program in a folder and return what it printed; `environment` is added to this process's.

    Raises `error` with the program's words where it is not installed, fails, or takes longer than `seconds`.
    """
    words = " ".join(map(str, command))
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as failure:
        raise error(f"{words}: {failure}") from failure
    if done.returncode:
        raise error(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
