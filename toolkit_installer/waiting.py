"""Becoming the idle process, and coming back from it with the locks that were held."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence

from toolkit_installer import waiter
from toolkit_installer.node.locks import PidFile

_LOOK_SECONDS = 30.0
_LATER_SECONDS = 30.0
_LATEST_SECONDS = 600.0
_DOUBLINGS = 10
"""More than it takes to get there; nobody counts on for months."""


@dataclasses.dataclass(frozen=True)
class Remembered:
    """What the installer has to know again once it is woken."""

    answered: tuple[str, ...] = ()
    """What the Kubernetes API server has answered for."""
    driver: tuple[tuple[str, str], ...] = ()
    """Where a driver shows, with the identities (waiter.identity) from before it was last looked for."""
    driver_away: bool = False
    """Whether none was usable then."""
    tries: int = 0
    """How often it was woken, one time after the other, for what is not known yet."""


@dataclasses.dataclass(frozen=True)
class Resumed:
    """What the installer was woken for (a signal's name, or events of waiter), and what it held when it fell asleep."""

    events: frozenset[str]
    pid_fd: int
    pid_path: str
    pid_folders: tuple[str, ...]
    lock_fd: int | None
    remembered: Remembered = Remembered()


def wait(
    pid_file: PidFile,
    lock_fd: int | None,
    watched: Sequence[tuple[str, str, str]],
    remembered: Remembered,
    *,
    later: bool,
) -> None:
    """Replace this program by the idle one, same PID, locks kept, signals still blocked. Does not return.

    `watched` are events (of waiter), paths in the installer's mount namespace, and their identities (waiter.identity)
    as far as they are known: they are looked at every 30 s. With `later` it is woken in any case, the first time after
    30 s, then after longer and longer, up to 10 min.
    """
    memory = {
        "pid_fd": pid_file.fd,
        "pid_path": pid_file.path,
        "pid_folders": list(pid_file.created_folders),
        "lock_fd": lock_fd,
        "remembered": dataclasses.asdict(remembered),
    }
    command = [sys.executable, *sys.orig_argv[1:]]
    pause = min(_LATEST_SECONDS, _LATER_SECONDS * 2 ** min(remembered.tries, _DOUBLINGS))
    seconds = str(pause) if later else ""
    fields = [json.dumps(memory), str(_LOOK_SECONDS), seconds, str(len(command)), *command]
    for each in watched:
        fields += each
    fd = os.memfd_create("toolkit-installer-state", 0)  # without MFD_CLOEXEC: the idle process reads it
    os.write(fd, "\0".join(fields).encode("utf-8", "surrogateescape"))
    for kept in (pid_file.fd, lock_fd):
        if kept is not None:
            os.set_inheritable(kept, True)  # noqa: FBT003  # its only form
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-I", "-S", waiter.__file__, str(fd)])  # noqa: S606  # no shell


def resumed() -> Resumed | None:
    """Return what this program was woken for, or None at a fresh start. Later calls return None."""
    text = os.environ.pop(waiter.RESUME, "")
    if not text:
        return None
    number, _, events = text.partition(":")
    fd = int(number)
    memory = json.loads(os.pread(fd, waiter.LIMIT, 0).split(b"\0")[0])
    os.close(fd)
    for kept in (memory["pid_fd"], memory["lock_fd"]):
        if kept is not None:
            os.set_inheritable(kept, False)  # noqa: FBT003  # its only form
    said = memory["remembered"]
    remembered = Remembered(
        tuple(said["answered"]),
        tuple((path, known) for path, known in said["driver"]),
        said["driver_away"],
        said["tries"],
    )
    return Resumed(
        frozenset(events.split(",")),
        memory["pid_fd"],
        memory["pid_path"],
        tuple(memory["pid_folders"]),
        memory["lock_fd"],
        remembered,
    )
