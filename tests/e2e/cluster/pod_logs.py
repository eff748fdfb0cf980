"""What the installer's pods on a node said, those that are gone too: a container's log goes with its pod.

Each log is opened once it is there, and read later. Who holds an open file reads it whatever becomes of its name, and
no program has to be started in the node for it, once a second and on each node of each cluster.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.hosts.host import Host

_PODS = "/var/log/pods"
_POLL = 0.2
_READ_BYTES = 1 << 16


_LINE = re.compile(r"T(?P<time>[\d:]+)\S* \w+ \w+ .*? level=(?P<level>\w+) msg=.*? event=(?P<event>\S+)(?P<rest>.*)")
_WHY = re.compile(r' why=("(?:[^"\\]|\\.)*"|\S+)')


def brief(said: str) -> str:
    """Return what a pod said in as few words as tell a reader why a test failed: much of a long page is not read.

    A line of information keeps its time, its event and the reason; every other line stays whole.
    """
    return "\n".join(map(_brief_line, said.splitlines()))


def _brief_line(line: str) -> str:
    found = _LINE.search(line)
    if found is None or found["level"] != "info":
        return line
    why = _WHY.search(found["rest"])
    return f"{found['time']} {found['event']}{f': {why[1]}' if why else ''}"


class PodLogs:
    """Holds the logs of the pods on a machine whose names begin with `prefix`, from `start` to `stop`."""

    def __init__(self, host: Host, prefix: str) -> None:
        self._host, self._prefix = host, prefix
        self._open: dict[tuple[int, int], int] = {}
        """The descriptors, by the device and the inode of their files."""
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"logs of {host.name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.forget()

    def text(self) -> str:
        """Return all that they said since it was forgotten."""
        self._look()
        with self._lock:
            return "".join(_content(each).decode(errors="replace") for each in self._open.values())

    def forget(self) -> None:
        """Forget what they said until now. A pod that is still there is heard again, from its beginning."""
        with self._lock:
            for each in self._open.values():
                os.close(each)
            self._open.clear()

    def _watch(self) -> None:
        while not self._ends.wait(_POLL):
            self._look()

    def _look(self) -> None:
        """Open the logs that are new."""
        with self._lock:
            for path in self._found():
                with contextlib.suppress(OSError):  # it went with its pod just now, or the machine with all of them
                    about = path.stat()
                    if (about.st_dev, about.st_ino) not in self._open:
                        self._open[about.st_dev, about.st_ino] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _found(self) -> Iterator[Path]:
        """Yield the files of the logs. docker's are somewhere else, and what is found here are links to them."""
        try:
            folders = [path for path in self._host.path(_PODS).iterdir() if path.name.startswith(self._prefix)]
        except OSError:
            return
        for folder in folders:
            try:
                paths = list(folder.glob("*/*.log"))
                # a link's target is absolute: by itself it would lead to the machine that the tests run on
                yield from [self._host.path(path.readlink()) if path.is_symlink() else path for path in paths]
            except OSError:
                continue


def _content(descriptor: int) -> bytes:
    parts, place = [], 0
    while part := os.pread(descriptor, _READ_BYTES, place):
        parts.append(part)
        place += len(part)
    return b"".join(parts)
