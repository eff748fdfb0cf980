"""Measures a command: its processor time, with that of the programs it started, by wait4; and medians of rounds."""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path


def seconds(command: list[str], root: Path | None = None) -> float:
    """Return the processor time of a command, whose `/` is `root` where one is named.

    Raises CalledProcessError where the command fails.
    """
    enter = None if root is None else functools.partial(os.chroot, root)
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=root,
        preexec_fn=enter,  # noqa: PLW1509  # no other thread is here; chroot(1) would cost what is to be measured
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def medians(rounds: int, measured: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median of each; all are measured in each round, one after the other, so that they share its noise."""
    values: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, measure in measured.items():
            values[name].append(measure())
    return {name: statistics.median(each) for name, each in values.items()}
