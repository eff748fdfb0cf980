"""What a process has open, as the kernel tells it: the sockets that it has bound, and its files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from toolkit_installer.node import trust
from toolkit_installer.node.processes import Process

_UNIX_FIELDS = 8
"""Of a line about a socket that has a name."""


def bound(pid: int) -> list[str] | None:
    """Return the names, in the process's own file system, of the unix sockets that it has bound; None if unknown.

    The kernel's list (proc_net_unix, in proc(5)) has the names as their owners chose them, line ends included: what is
    no line of it is passed over.
    """
    try:
        with trust.pinned(pid) as folder:
            inodes = {name[8:-1] for name in _links(folder) if name.startswith("socket:[")}
            names = []
            fd = os.open("net/unix", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            with open(fd, "rb") as lines:
                for line in lines:
                    fields = line.rstrip(b"\n").split(b" ", 7)
                    words = [field for field in fields if field]
                    if len(words) >= _UNIX_FIELDS and words[6].decode(errors="replace") in inodes:
                        names.append(os.fsdecode(line.rstrip(b"\n").partition(words[6] + b" ")[2]))
            return [name for name in names if name.startswith("/")]
    except OSError:
        return None


def opened(process: Process) -> list[str]:
    """Return the files that a process has open, as it calls them; nothing where that cannot be seen.

    The descriptors are those of a process that is still the same, and so as much to be believed as the process is.
    """
    try:
        with trust.pinned(process.pid) as folder:
            root = os.readlink("root", dir_fd=folder).rstrip("/")
            return [name.removeprefix(root) for name in _links(folder) if name.startswith(f"{root}/")]
    except OSError:
        return []


def content(pid: int, name: str, limit: int) -> bytes | None:
    """Return the first `limit` bytes of what a process has open under the name `name`, None where it has no such file.

    A process that is not to be believed has none.
    """
    try:
        with trust.pinned(pid) as folder:
            if trust.standing_of(folder, pid) is not trust.Standing.BELIEVED:
                return None
            for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
                with contextlib.suppress(OSError):  # closed meanwhile
                    if os.readlink(f"fd/{number}", dir_fd=folder) == name:
                        fd = os.open(f"fd/{number}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
                        with open(fd, "rb") as stream:
                            return stream.read(limit)
    except OSError:
        return None  # it is gone
    return None


def _links(folder: int) -> Iterator[str]:
    """Yield what the descriptors behind an open /proc/PID lead to, as proc_pid_fd(5) spells it. Raises OSError."""
    for number in os.listdir(f"/proc/self/fd/{folder}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield os.readlink(f"fd/{number}", dir_fd=folder)
