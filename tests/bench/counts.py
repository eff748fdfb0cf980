"""Counts of a command, which no other load changes: modules, programs, files, flushes, bytes, calls. By strace."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

from tests.bench.made_node import Node, payload_of

_MEGABYTES = 10
_CALL = re.compile(r"^(?:\d+ +)?\w+\(", re.MULTILINE)
_WHAT = ("modules loaded", "programs started", "files opened", "flushes", "MB read", "system calls")
_LIMITS = {  # about a fifth above what was seen: what grows beyond that was not meant
    "first install": (310, 2, 760, 65, 17.0, 11500),
    "converged run": (280, 2, 500, 13, 6.1, 7500),
    "status": (260, 2, 350, 0, 5.9, 8200),
    "uninstall": (540, 2, 820, 50, 11.0, 14400),
}


@dataclasses.dataclass(frozen=True)
class Count:
    """One count and the most that it may be."""

    name: str
    value: float
    most: float

    @property
    def good(self) -> bool:
        """Whether it is small enough."""
        return self.value <= self.most

    @property
    def line(self) -> str:
        """The row that is printed."""
        return f"{self.name:42} {self.value:>10g}  <= {self.most:<10g} {'' if self.good else 'TOO MANY'}".rstrip()


def counted(trace: str) -> dict[str, float]:
    """Return the counts of a trace; /proc is left out: what is read there depends on what else the machine runs."""
    trace = "\n".join(line for line in trace.splitlines() if "/proc" not in line)
    read = re.findall(r"\b(?:read|pread64|sendfile|copy_file_range)\(.* = (\d+)$", trace, re.MULTILINE)
    return {
        "modules loaded": len(re.findall(r'openat\(.*\.(?:pyc|so)".* = \d+\S*$', trace, re.MULTILINE)),
        "programs started": len(re.findall(r"execve\(.* = 0$", trace, re.MULTILINE)),
        # not with O_PATH, which finds what is there and opens nothing
        "files opened": len(re.findall(r"openat2?\((?!.*O_PATH).* = \d+\S*$", trace, re.MULTILINE)),
        "flushes": len(re.findall(r"\b(?:fsync|fdatasync|syncfs)\(.* = 0$", trace, re.MULTILINE)),
        "MB read": round(sum(map(int, read)) / 1e6, 1),
        "system calls": len(_CALL.findall(trace)),
    }


def of_commands(folder: Path) -> list[Count]:
    """Count what each command does on a node with a payload of 10 MB."""
    node = Node(folder / "counted", payload_of(folder / "payload-counted", _MEGABYTES))
    run = node.command("run", "--no-daemon")
    subprocess.run(node.command("status"), check=True, capture_output=True)  # its bytecode is there from now on
    commands = {
        "first install": run,
        "converged run": run,
        "status": node.command("status"),
        "uninstall": node.command("uninstall"),
    }
    found = []
    for name, command in commands.items():
        trace = folder / "trace"
        traced = ["strace", "-f", "-y", "-s", "0", "-o", str(trace), *command]
        subprocess.run(traced, check=True, capture_output=True)
        values = counted(trace.read_text())
        found += [Count(f"{name}: {what}", values[what], most) for what, most in zip(_WHAT, _LIMITS[name], strict=True)]
    return found
