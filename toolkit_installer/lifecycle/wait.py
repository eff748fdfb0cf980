"""Becoming the idle process, and coming back from it with the locks that were held."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeGuard

import msgspec

from toolkit_installer import log
from toolkit_installer.lifecycle import idling, waiting_state
from toolkit_installer.lifecycle.waiting_state import Remembered
from toolkit_installer.node import coprocess, interpreter
from toolkit_installer.node import signals as node_signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.settings import Program

_LOOK_SECONDS = 30.0
_LATER_SECONDS = 30.0
_LATEST_SECONDS = 600.0
_SOON_SECONDS = 2.0
_LATEST_SOON_SECONDS = 120.0
"""Where a node is not configured before the API server says that it may be: a pod waits for it, and its users."""
_CLOCK_SECONDS = 600.0
"""How long at most until a time of the node's clock is looked at again: somebody may set it meanwhile."""
_DOUBLINGS = 10
"""More than it takes to get there; nobody counts on for months."""

_LONGEST_NUMBER = 9
"""Digits of a descriptor, far more than it has."""
_SHOWN = 100
_CHANGES = fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_MODIFY | fcntl.DN_ATTRIB | fcntl.DN_MULTISHOT
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""The state names the program that this process becomes next: no process of this user can change it from here on."""
_PARTS = 3
"""Of what the state says of another PID file."""

_WAITER = os.path.join(os.path.dirname(os.path.realpath(idling.__file__)), "idle_process.py")
_MAIN = os.path.join(os.path.dirname(os.path.dirname(_WAITER)), "__main__.py")
"""Both are looked at when the program starts, as `interpreter` does."""


def _entry() -> str | None:
    """Return the function that this program was started with, None if it was a program of somebody else's."""
    started = sys.argv[0]
    if "/" in started:
        started = os.path.realpath(started)
    if started == _MAIN:
        return "toolkit_installer"
    name = os.path.basename(started)
    return name.replace("-", "_") if name in set(Program) else None


_ENTRY = _entry()


class Resumed(msgspec.Struct, frozen=True):
    """What the installer was woken for (a signal's name, or events of `idling`), and the locks that it held.

    `pid_fd` and `lock_fd` are None where the state does not say, or says what cannot be; `held` finds them all the
    same.
    """

    events: frozenset[str]
    pid_fd: int | None
    pid_path: str
    pid_folders: tuple[str, ...]
    lock_fd: int | None
    remembered: Remembered = Remembered()
    others: tuple[tuple[int, str, tuple[str, ...]], ...] = ()
    """The other installers' PID files that are held as well: descriptor, path, folders that were made for it."""


def wait(
    pid_file: PidFile,
    lock_fd: int | None,
    watched: Sequence[tuple[str, str, str]],
    remembered: Remembered,
    *,
    later: bool,
    within: float | None = None,
    folders: Sequence[str] = (),
) -> None:
    """Replace this program by the idle one, same PID, locks kept, signals still blocked. Does not return.

    `watched` are events, paths in the installer's mount namespace, and the paths' identities as `idling` has
    them: they are compared every 30 s, and within seconds of any change in `folders`. With `later` the installer is
    woken in any case, first after 30 s, then after longer and longer pauses of up to 10 min; a run that may not change
    the node yet after 2 s, and 2 min at most. It is woken `within` so many seconds as well, 10 min at most.
    """
    first = list(remembered.command) or [sys.executable, *sys.orig_argv[1:]]
    memory = {
        "version": waiting_state.VERSION,
        "pid_fd": pid_file.fd,
        "pid_path": pid_file.path,
        "pid_folders": list(pid_file.created_folders),
        "lock_fd": lock_fd,
        # unknown to the packages before: they keep these open until they end
        "others": [[other.fd, other.path, list(other.created_folders)] for other in pid_file.others],
        "folders": _notified(folders),
        "remembered": msgspec.structs.replace(remembered, command=tuple(first)),
    }
    if folders and any(idling.identity(path) != known for _, path, known in watched if not path.endswith(idling.ASKED)):
        # changed before the kernel reported changes: the idle process is to look as soon as after one that is reported
        os.kill(os.getpid(), signal.SIGIO)
    command, other = first, []
    if _ENTRY is not None:
        name = _ENTRY.replace("_", "-")
        command = interpreter.calling(f"toolkit_installer.__main__:{_ENTRY}", name, *sys.argv[1:])
        other = [interpreter.needed(first), *first]
    held = remembered.standing.held
    first_pause, longest = (_SOON_SECONDS, _LATEST_SOON_SECONDS) if held else (_LATER_SECONDS, _LATEST_SECONDS)
    pause = min(longest, first_pause * 2 ** min(remembered.tries, _DOUBLINGS))
    latest = [pause] if later else []
    latest += [min(within, _CLOCK_SECONDS)] if within is not None else []
    seconds = str(min(latest)) if latest else ""
    text = json.dumps(memory, default=msgspec.structs.asdict)
    fields = [text, str(_LOOK_SECONDS), seconds, str(len(command)), *command]
    for each in watched:
        fields += each
    fields += ["", interpreter.needed(command), *other]
    fd = os.memfd_create(waiting_state.STATE, os.MFD_ALLOW_SEALING)  # without MFD_CLOEXEC: the idle process reads it
    os.write(fd, "\0".join(fields).encode("utf-8", "surrogateescape"))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    for kept in (pid_file.fd, lock_fd, *(other.fd for other in pid_file.others)):
        if kept is not None:
            os.set_inheritable(kept, True)  # noqa: FBT003  # its only form
    coprocess.end_all()
    sys.stdout.flush()
    sys.stderr.flush()
    idle = interpreter.isolated(interpreter.compiled(_WAITER), str(fd))
    os.execv(idle[0], idle)  # noqa: S606  # no shell


def resumed() -> Resumed | None:
    """Return what this program was woken for, or None at a fresh start. Later calls return None.

    The state may be another package's, or damaged: the events are returned all the same, and of the rest what is
    understood.
    """
    text = os.environ.pop(idling.RESUME, "")
    if not text:
        return None
    node_signals.release_child()
    number, _, events = text.partition(":")
    fd = _opened(number)
    if fd is None:
        log.get().warning(
            "The environment says that this is a run that was woken, and there is nothing of one: it starts anew",
            key="resume-without-state",
            variable=idling.RESUME,
            value=text[:_SHOWN],
        )
        return None
    memory = waiting_state.memory(os.pread(fd, idling.LIMIT, 0))
    os.close(fd)
    _forget_folders(memory.get("folders"), memory.get("lock_fd"))
    path = memory.get("pid_path")
    folders = memory.get("pid_folders")
    return Resumed(
        frozenset(event for event in events.split(",") if event),
        _kept(memory.get("pid_fd"), stat.S_ISREG) if _is_path(path) else None,
        path if _is_path(path) else "",
        tuple(filter(_is_path, folders)) if isinstance(folders, list) else (),
        _kept(memory.get("lock_fd"), stat.S_ISDIR),
        waiting_state.understood(memory),
        tuple(_others(memory.get("others"), memory.get("pid_fd"))),
    )


def _notified(folders: Sequence[str]) -> list[int]:
    """Have the kernel send SIGIO at every change in these folders; return the descriptors that keep it so.

    Set up before the idle process begins, which then needs no module for it and no wake-up of its own (fcntl(2),
    F_NOTIFY). A folder that is not there, or a kernel without it, is left to the look every 30 s.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
    watching = []
    for folder in folders:
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.fcntl(fd, fcntl.F_NOTIFY, _CHANGES)
        except OSError:
            os.close(fd)
            continue
        os.set_inheritable(fd, True)  # noqa: FBT003  # its only form
        watching.append(fd)
    return watching


def _forget_folders(said: Any, lock_fd: Any) -> None:
    """Close what kept the kernel reporting changes in folders. SIGIO stays held back: it would end the program."""
    for fd in said if isinstance(said, list) else ():
        if fd != lock_fd and _kept(fd, stat.S_ISDIR) is not None:
            os.close(fd)
    while signal.SIGIO in signal.sigpending():
        signal.sigwaitinfo([signal.SIGIO])


def _others(said: Any, pid_fd: Any) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the other PID files that the state names, as far as they are understood."""
    for each in said if isinstance(said, list) else ():
        if not (isinstance(each, list) and len(each) == _PARTS and each[0] != pid_fd):
            continue
        fd, path, folders = each
        if _is_path(path) and isinstance(folders, list) and (kept := _kept(fd, stat.S_ISREG)) is not None:
            yield kept, path, tuple(filter(_is_path, folders))


def held(path: str) -> int | None:
    """Return the descriptor of a file or folder that this program was started with, None if it has none.

    For a state that does not name the descriptor. `path` is in the installer's mount namespace.
    """
    try:
        wanted = os.lstat(path)
    except OSError:
        return None
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            status = os.fstat(number)
        except OSError:
            continue  # that of the list itself
        if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
            os.set_inheritable(number, False)  # noqa: FBT003  # its only form
            return number
    return None


def _opened(number: str) -> int | None:
    """Return the state's descriptor, None where the text names none."""
    if not (number.isascii() and number.isdigit() and len(number) <= _LONGEST_NUMBER):
        return None
    try:
        seen = os.readlink(f"/proc/self/fd/{int(number)}")
    except OSError:
        return None
    return int(number) if seen == waiting_state.SEEN_AS else None


def _kept(fd: Any, is_kind: Callable[[int], bool]) -> int | None:
    """Return a kept descriptor, closed to children from now on; None if it is not of the kind that the state says."""
    if type(fd) is not int or fd < 0:
        return None
    try:
        if not is_kind(os.fstat(fd).st_mode):
            return None
        os.set_inheritable(fd, False)  # noqa: FBT003  # its only form
    except (OSError, OverflowError):
        return None
    return fd


def _is_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and value.startswith("/") and "\0" not in value
