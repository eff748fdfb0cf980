"""Becoming the idle process, and coming back from it with the locks that were held."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence

from toolkit_installer import waiter
from toolkit_installer.node.locks import PidFile

_LOOK_SECONDS = 30.0


@dataclasses.dataclass(frozen=True)
class Resumed:
    """What the installer was woken for (a signal's name, or waiter.DRIFT), and what it held when it fell asleep."""

    event: str
    pid_fd: int
    pid_path: str
    pid_folders: tuple[str, ...]
    lock_fd: int | None
    answered: tuple[str, ...] = ()
    """What the Kubernetes API server answered for at the start."""


def wait(
    pid_file: PidFile,
    lock_fd: int | None,
    watched: Sequence[tuple[str, str]],
    *,
    look: bool,
    answered: Iterable[str] = (),
) -> None:
    """Replace this program by the idle one, same PID, locks kept, signals still blocked. Does not return.

    `watched` are paths in the installer's mount namespace, and their identities (waiter.identity) as far as they are
    known; with `look` they are looked at every 30 s. `answered` is for `Resumed`.
    """
    memory = {
        "pid_fd": pid_file.fd,
        "pid_path": pid_file.path,
        "pid_folders": list(pid_file.created_folders),
        "lock_fd": lock_fd,
        "answered": sorted(answered),
    }
    command = [sys.executable, *sys.orig_argv[1:]]
    fields = [json.dumps(memory), str(_LOOK_SECONDS) if look else "", str(len(command)), *command]
    for path, identity in watched:
        fields += [path, identity]
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
    number, _, event = text.partition(":")
    fd = int(number)
    memory = json.loads(os.pread(fd, waiter.LIMIT, 0).split(b"\0")[0])
    os.close(fd)
    for kept in (memory["pid_fd"], memory["lock_fd"]):
        if kept is not None:
            os.set_inheritable(kept, False)  # noqa: FBT003  # its only form
    return Resumed(
        event,
        memory["pid_fd"],
        memory["pid_path"],
        tuple(memory["pid_folders"]),
        memory["lock_fd"],
        tuple(memory["answered"]),
    )
