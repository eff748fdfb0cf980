"""strace around whole processes: what they change beneath a folder, and kills at a chosen system call."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e.marked_program import BEGIN, END

STRACE = "/usr/bin/strace"
CHANGING = (
    "rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,symlink,symlinkat,link,linkat,mknod,mknodat,"
    "chmod,fchmod,fchmodat,chown,lchown,fchown,fchownat,setxattr,lsetxattr,fsetxattr,removexattr,lremovexattr,"
    "fremovexattr,truncate,ftruncate,fallocate,write,writev,pwrite64,pwritev,pwritev2,copy_file_range,sendfile,splice,"
    "utimensat,creat"
)
"""System calls that change a file or a folder. open, openat and ioctl do so with some of their flags only."""
_OPENING = re.compile(r"O_(CREAT|TRUNC|WRONLY|RDWR)")
_LINE = re.compile(r"(\w+)\((.*)")
SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Change:
    """A system call beneath the folder; `seam` is the call of the seam that made it, empty if it was made past it."""

    name: str
    line: str
    seam: str


def traced(command: Sequence[str], traces: Path) -> list[str]:
    """Return a command that writes one trace per process into the folder `traces`."""
    traces.mkdir()
    calls = f"trace={CHANGING},open,openat,openat2,ioctl,access,faccessat,faccessat2"
    return [STRACE, "-ff", "-qq", "-y", "-s", "4096", "-o", str(traces / "trace"), "-e", calls, *command]


def changes(traces: Path, root: Path) -> list[Change]:
    """Return what the traced processes changed beneath `root`."""
    return [change for path in sorted(traces.iterdir()) for change in _changes(path.read_text(), f"{root}/")]


def _changes(trace: str, root: str) -> Iterator[Change]:
    seam = ""
    for line in trace.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue  # a signal, or the process's end
        name, arguments = match.groups()
        if f'"{BEGIN}/' in arguments:
            seam = arguments.split(f'"{BEGIN}/')[1].split('"')[0]
        elif f'"{END}/' in arguments:
            seam = ""
        elif _is_change(name, arguments) and _within(root, name, arguments):
            yield Change(name, line, seam)


def _within(root: str, name: str, arguments: str) -> bool:
    """Tell whether a call is about something beneath `root`, which ends with a slash; what is written may name it."""
    about = arguments.partition(",")[0] if "write" in name else arguments
    return root in about or f"{root[:-1]}>" in about


def _is_change(name: str, arguments: str) -> bool:
    if name in ("open", "openat", "openat2"):
        return _OPENING.search(arguments) is not None
    if name == "ioctl":
        return "FICLONE" in arguments
    return name not in ("access", "faccessat", "faccessat2")


def marks(traces: Path) -> list[str]:
    """Return the calls of the seam that were made, in order."""
    return [
        name
        for path in sorted(traces.iterdir())
        for name in re.findall(rf'"{BEGIN}/(\w+)"', path.read_text())
        if name not in ("restart_unit", "make_device_nodes")  # marks themselves: the call behind them is a program
    ]


def killing(command: Sequence[str], call: str, when: int) -> list[str]:
    """Return a command that is killed when it enters its `when`-th system call named `call`, before it is done."""
    inject = f"inject={call}:signal=KILL:when={when}"
    return [STRACE, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject, *command]


def counted(command: Sequence[str], traces: Path) -> dict[str, int]:
    """Run a command; return how often its first process made each of the changing system calls."""
    traces.mkdir()
    tracing = [STRACE, "-ff", "-qq", "-o", str(traces / "trace"), "-e", f"trace={CHANGING},fsync", *command]
    subprocess.run(tracing, check=True, capture_output=True, timeout=SECONDS)
    longest = max((path.read_text() for path in traces.iterdir()), key=len)
    names = [match[1] for line in longest.splitlines() if (match := _LINE.match(line))]
    return {name: names.count(name) for name in dict.fromkeys(names)}
