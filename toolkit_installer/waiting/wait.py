"""Become the idle process, and come back from it with the locks that were held, and the saved state.

The state is in a memory file that the idle process holds open.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from toolkit_installer import log
from toolkit_installer.node import idling, interpreter, processes, programs
from toolkit_installer.node import signals as node_signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.settings import Program

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
STATE = "toolkit-installer-state"
STATE_LINK = f"/memfd:{STATE} (deleted)"
"""The kernel's name of the open state file (memfd_create(2), NOTES)."""


class Locks(msgspec.Struct, frozen=True):
    """The locks that a run holds while it waits. Every release writes and reads these fields of a state."""

    pid_fd: int
    pid_path: str
    pid_folders: tuple[str, ...]
    """Folders that were created for the PID file."""
    lock_fd: int | None


class Descriptors(msgspec.Struct, frozen=True):
    """Other descriptors that a run keeps open while it waits."""

    others: tuple[tuple[int, str, tuple[str, ...]], ...] = ()
    """The PID files of other installers that are held as well: descriptor, path, folders that were created for it."""
    folders: tuple[int, ...] = ()
    """Folders in which the kernel reports every change."""


def read_saved(pid: int) -> dict[str, Any] | None:
    """Return what the run saved that waits as the process `pid`; None if that run is at work, or gone.

    `command` is the command line of its first start, `state` its state (reporting/saved_state.py).
    """
    content = processes.read_open_file(pid, STATE_LINK, idling.LIMIT)
    return _parse(content) if content else None  # empty: it is being written


def _parse(content: bytes) -> dict[str, Any]:
    """Return the first field of a state file; {} if it is no JSON object."""
    try:
        parsed = json.loads(content.split(b"\0")[0])
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    log.get().warning(
        "What the idle process was to remember cannot be read: looking at everything again", key="state-unreadable"
    )
    return {}


_LOOK_SECONDS = 30.0
_LATER_SECONDS = 30.0
_LATEST_SECONDS = 600.0
_SOON_SECONDS = 2.0
_LATEST_SOON_SECONDS = 120.0
"""For a node that is configured only once the API server allows it: its users and a pod wait for that."""
_CLOCK_SECONDS = 600.0
"""The longest time until a time of the node's clock is checked again: the clock may be set meanwhile."""
_DOUBLINGS = 10
"""More than it takes to reach the limit, so that the number stays small."""

_LONGEST_NUMBER = 9
"""The most digits of a descriptor, far more than any has."""
_SHOWN = 100
_CHANGES = fcntl.DN_CREATE | fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_MODIFY | fcntl.DN_ATTRIB | fcntl.DN_MULTISHOT
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""The state names the program that this process becomes next: no process of this user can change it from here on."""

_WAITER = os.path.join(os.path.dirname(os.path.realpath(idling.__file__)), "idle_process.py")
_MAIN = os.path.join(os.path.dirname(os.path.dirname(_WAITER)), "__main__.py")
"""Both paths are resolved when the program starts, as in `interpreter`."""


def _entry() -> str | None:
    """Return the entry point that this program was started by, None if it was another program's."""
    started = sys.argv[0]
    if "/" in started:
        started = os.path.realpath(started)
    if started == _MAIN:
        return "toolkit_installer"
    name = os.path.basename(started)
    return name.replace("-", "_") if name in set(Program) else None


_ENTRY = _entry()


class WakeUp(msgspec.Struct, frozen=True):
    """Why the run was woken, and what it held while it waited.

    `pid_fd` and `lock_fd` are None if the state does not name an open file of the right kind; `find_inherited` finds
    them by their paths.
    """

    events: frozenset[str]
    """A signal's name, or events of `idling`."""
    pid_fd: int | None
    pid_path: str
    pid_folders: tuple[str, ...]
    lock_fd: int | None
    others: tuple[tuple[int, str, tuple[str, ...]], ...]
    """As in `Descriptors`."""
    state: Any
    """The saved state, as values that JSON has; None if there is none."""


def list_own_words() -> list[str]:
    """Return the command line that this program was started with."""
    return [sys.executable, *sys.orig_argv[1:]]


def wait(
    pid_file: PidFile,
    lock_fd: int | None,
    watched: Sequence[tuple[str, str, str]],
    command: Sequence[str],
    state: Any,
    *,
    seconds: float | None = None,
    folders: Sequence[str] = (),
) -> None:
    """Replace this program by the idle process: same PID, locks kept, signals still blocked. Does not return.

    `watched` are events, paths in the installer's mount namespace, and the paths' identities as `idling` has
    them: the idle process compares them every 30 s, and within seconds of any change in `folders`. It wakes the run
    after `seconds` in any case. `command` is the command line of the first start, `state` is the saved state as values
    that JSON has.
    """
    first = list(command)
    locks = Locks(
        pid_file.fd,
        pid_file.path,
        tuple(pid_file.created_folders),
        lock_fd,
    )
    kept_open = Descriptors(
        tuple((other.fd, other.path, tuple(other.created_folders)) for other in pid_file.others),
        tuple(_watch_folders(folders)),
    )
    if folders and any(
        idling.identity(path) != known for _, path, known in watched if not path.endswith(idling.PROBE_SUFFIX)
    ):
        # changed before the kernel reported changes: the idle process is to look as soon as after one that is reported
        os.kill(os.getpid(), signal.SIGIO)
    following, other = first, []
    if _ENTRY is not None:
        name = _ENTRY.replace("_", "-")
        following = interpreter.calling(f"toolkit_installer.__main__:{_ENTRY}", name, *sys.argv[1:])
        other = [interpreter.find_script(first), *first]
    saved = msgspec.to_builtins(locks) | msgspec.to_builtins(kept_open) | {"command": first, "state": state}
    text = json.dumps(saved)
    longest = str(seconds) if seconds is not None else ""
    fields = [text, str(_LOOK_SECONDS), longest, str(len(following)), *following]
    for each in watched:
        fields += each
    fields += ["", interpreter.find_script(following), *other]
    fd = os.memfd_create(STATE, os.MFD_ALLOW_SEALING)  # without MFD_CLOEXEC: the idle process reads it
    os.write(fd, "\0".join(fields).encode("utf-8", "surrogateescape"))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    for kept in (pid_file.fd, lock_fd, *(each.fd for each in pid_file.others)):
        if kept is not None:
            os.set_inheritable(kept, True)  # noqa: FBT003  # its only form
    programs.end_coprocesses()
    sys.stdout.flush()
    sys.stderr.flush()
    idle = interpreter.build_isolated_command(interpreter.find_bytecode(_WAITER), str(fd))
    os.execv(idle[0], idle)  # noqa: S606  # no shell


def seconds_to_wake_up(*, later: bool, tries: int, soon: bool, within: float | None) -> float | None:
    """Return after how many seconds the idle process wakes the run without an event, None for never. Pure.

    With `later`, something is still unknown: the run looks for it after 30 s, and less often after each of the `tries`,
    down to every 10 min; on a node that may not be changed yet (`soon`) after 2 s, down to every 2 min. `within` is
    when a time of the node's clock is due, which the run checks every 10 min.
    """
    first, longest = (_SOON_SECONDS, _LATEST_SOON_SECONDS) if soon else (_LATER_SECONDS, _LATEST_SECONDS)
    due = [min(longest, first * float(2 ** min(max(tries, 0), _DOUBLINGS)))] if later else []
    due += [min(within, _CLOCK_SECONDS)] if within is not None else []
    return min(due, default=None)


def read_wake_up() -> WakeUp | None:
    """Return why this program was woken, or None at a fresh start. Later calls return None.

    The state may be another release's, or damaged: the events are returned all the same, and the locks as far as the
    state names them.
    """
    text = os.environ.pop(idling.RESUME, "")
    if not text:
        return None
    node_signals.unblock_child_signal()
    number, _, events = text.partition(":")
    fd = _find_state_file(number)
    if fd is None:
        log.get().warning(
            "The environment says that this is a run that was woken, and there is nothing of one: it starts anew",
            key="resume-without-state",
            variable=idling.RESUME,
            value=text[:_SHOWN],
        )
        return None
    saved = _parse(os.pread(fd, idling.LIMIT, 0))
    os.close(fd)
    woken = frozenset(event for event in events.split(",") if event)
    state = saved.get("state")
    locks = _convert(saved, Locks)
    kept_open = _convert(saved, Descriptors) or Descriptors()
    _unwatch_folders(kept_open, locks)
    if locks is None:
        return WakeUp(woken, None, "", (), None, tuple(_list_other_pid_files(kept_open, None)), state)
    is_named = _is_path(locks.pid_path)
    return WakeUp(
        woken,
        _take_over(locks.pid_fd, stat.S_ISREG) if is_named else None,
        locks.pid_path if is_named else "",
        tuple(filter(_is_path, locks.pid_folders)),
        _take_over(locks.lock_fd, stat.S_ISDIR) if locks.lock_fd is not None else None,
        tuple(_list_other_pid_files(kept_open, locks.pid_fd)),
        state,
    )


def _watch_folders(folders: Sequence[str]) -> list[int]:
    """Make the kernel send SIGIO at every change in these folders; return the descriptors that keep this up.

    Set up before the idle process begins, which then needs no module for it and no wake-up of its own (fcntl(2),
    F_NOTIFY). A missing folder, or a kernel without F_NOTIFY, is left to the check every 30 s.
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


def _convert(saved: dict[str, Any], kind: type[_Struct]) -> _Struct | None:
    """Return the fields of a struct, None if one is missing or has a wrong type."""
    known = {name: saved[name] for name in kind.__struct_fields__ if name in saved}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError:
        return None


def _unwatch_folders(kept_open: Descriptors, locks: Locks | None) -> None:
    """Stop the kernel's reports of changes in folders. SIGIO stays blocked: it would end the program."""
    for fd in kept_open.folders:
        if (locks is None or fd != locks.lock_fd) and _take_over(fd, stat.S_ISDIR) is not None:
            os.close(fd)
    while signal.SIGIO in signal.sigpending():
        signal.sigwaitinfo([signal.SIGIO])


def _list_other_pid_files(kept_open: Descriptors, pid_fd: int | None) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the other PID files that are still open."""
    for fd, path, folders in kept_open.others:
        if fd != pid_fd and _is_path(path) and (kept := _take_over(fd, stat.S_ISREG)) is not None:
            yield kept, path, tuple(filter(_is_path, folders))


def find_inherited(path: str) -> int | None:
    """Return the inherited descriptor of a file or folder, None if there is none.

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


def _find_state_file(number: str) -> int | None:
    """Return the state file's descriptor, None if the text names none."""
    if not (number.isascii() and number.isdigit() and len(number) <= _LONGEST_NUMBER):
        return None
    try:
        seen = os.readlink(f"/proc/self/fd/{int(number)}")
    except OSError:
        return None
    return int(number) if seen == STATE_LINK else None


def _take_over(fd: int, is_kind: Callable[[int], bool]) -> int | None:
    """Return an inherited descriptor, no longer inheritable; None if no file of that kind is open as it."""
    if fd < 0:
        return None
    try:
        if not is_kind(os.fstat(fd).st_mode):
            return None
        os.set_inheritable(fd, False)  # noqa: FBT003  # its only form
    except (OSError, OverflowError):
        return None
    return fd


def _is_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text
