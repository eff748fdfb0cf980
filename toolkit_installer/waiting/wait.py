"""Becoming the idle process, and coming back from it with the locks that were held.

What the installer remembers while it waits as the idle process, in a memory file that the process holds.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from toolkit_installer import log
from toolkit_installer.applying import reload_windows
from toolkit_installer.kubernetes.verdicts import Standing
from toolkit_installer.node import coprocess, descriptors, idling, interpreter
from toolkit_installer.node import signals as node_signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.settings import Program

VERSION = 5
"""Of what is remembered. The packages before wrote none: what they remembered is told by its keys (`understood`).

What the locks are has stayed the same since the first: `pid_fd`, `pid_path`, `pid_folders`, `lock_fd`, in the first
field of the state. It must stay so, whatever else a state says: the package that reads it may be newer, or older."""
STATE = "toolkit-installer-state"
SEEN_AS = f"/memfd:{STATE} (deleted)"
"""As the kernel names the open state (memfd_create(2), NOTES)."""


class Remembered(msgspec.Struct, frozen=True):
    """What the installer has to know again once it is woken."""

    answered: tuple[str, ...] = ()
    """What the Kubernetes API server has answered for: what the packages before version 5 went by."""
    driver: tuple[tuple[str, str], ...] = ()
    """Paths that change with the driver, with their identities (idling.identity) from before the last look."""
    driver_away: bool = False
    """Whether no driver was usable then."""
    tries: int = 0
    """How often in a row the installer was woken to find out what is not known yet."""
    without_gpu: bool = False
    """Whether the node shows no GPU, so that nothing is installed and nothing is to be."""
    command: tuple[str, ...] = ()
    """What the program was started with at first; empty: what it was started with now."""
    standing: Standing = Standing()
    """What is known of the DaemonSet, and of what this run may change and has installed."""
    engine_stopped: bool = False
    """Whether an engine was not running then."""
    looked_at: float = 0.0
    """When the node was last brought to where it should be, or that was tried: seconds since 1970, 0 for not yet."""
    failure: str = ""
    """Why that failed; empty: it did not."""
    said: tuple[str, ...] = ()
    """What the log said then (`log.said`): looking again after a while says only what is new."""
    differences: tuple[tuple[str, str], ...] = ()
    """Files that somebody changed, and what a run would change in each then: a diff in which secrets are masked."""
    telling: Mapping[str, Any] = {}
    """What was told of the node, and what is still to be (`telling.Telling`)."""
    pending: Mapping[str, Any] = {}
    """The reload that was not allowed then (`reload_when.pending`)."""
    driver_seen: str = ""
    """What was seen so far of a driver in a root that was named (`driver_watch.Seen`)."""
    plugin: Mapping[str, Any] = {}
    """How the NRI plugin stood then, and its process (`plugin.watch`)."""
    look: Mapping[str, Any] = {}
    """What the last look came to (`look_outcome`)."""
    known: bool = True
    """Whether all of the state was understood; if not, the installer inspects the node anew."""


def of_instance(pid: int) -> Remembered | None:
    """Return what the instance remembers that waits as the process `pid`; None where it is at work, or gone."""
    content = descriptors.content(pid, SEEN_AS, idling.LIMIT)
    return understood(saved_state(content)) if content else None  # empty: it is being written


def saved_state(content: bytes) -> dict[str, Any]:
    """Return the state's first field, {} where it is no JSON object."""
    try:
        memory = json.loads(content.split(b"\0")[0])
    except (ValueError, RecursionError):
        memory = None
    if isinstance(memory, dict):
        return memory
    log.get().warning(
        "What the idle process was to remember cannot be read: looking at everything again", key="state-unreadable"
    )
    return {}


def understood(memory: dict[str, Any]) -> Remembered:
    """Return what is understood of the remembered values.

    The first packages remembered nothing, the next ones what the API server had answered, as `answered`.
    """
    said = memory.get("remembered", {"answered": memory.get("answered", [])})
    version = memory.get("version", VERSION)
    if type(version) is not int or version > VERSION or not isinstance(said, dict):
        return Remembered(known=False)
    answered, driver, command = said.get("answered"), said.get("driver"), said.get("command", [])
    away, tries = said.get("driver_away"), said.get("tries")
    standing = _standing(said.get("standing"))
    looked_at, failure, lines = said.get("looked_at"), said.get("failure"), said.get("said")
    telling, seen, plugin = said.get("telling"), said.get("driver_seen"), said.get("plugin")
    look = said.get("look")
    pairs, differences = _pairs(driver), _pairs(said.get("differences"))
    return Remembered(
        answered=tuple(answered) if _is_texts(answered) else (),
        driver=pairs or (),
        driver_away=away is True,
        tries=tries if type(tries) is int and tries > 0 else 0,
        without_gpu=said.get("without_gpu") is True,  # the packages before know nothing of it
        command=tuple(command) if _is_texts(command) else (),
        standing=standing or Standing(),
        engine_stopped=said.get("engine_stopped") is True,
        looked_at=looked_at if type(looked_at) is float else 0.0,  # nor of these
        failure=failure if isinstance(failure, str) else "",
        said=tuple(lines) if _is_texts(lines) else (),
        differences=differences or (),
        telling=telling if isinstance(telling, dict) else {},
        pending=reload_windows.plain(reload_windows.understood(said.get("pending"))),
        driver_seen=seen if isinstance(seen, str) else "",
        plugin=plugin if isinstance(plugin, dict) else {},
        look=look if isinstance(look, dict) else {},
        known=_is_texts(answered)
        and pairs is not None
        and type(away) is bool
        and type(tries) is int
        and standing is not None,
    )


def _standing(said: Any) -> Standing | None:
    """Return the run's `Standing`, None where the state's is not understood.

    The packages before version 5 say nothing of it. To them nothing was held back; who installed the toolkit is not
    known, so it was somebody else; and the API server is asked once more.
    """
    if said is None:
        return Standing()
    if not isinstance(said, dict):
        return None
    flags = {name: said.get(name) for name in ("bare", "held", "wanted", "namespace")}
    accepted = said.get("accepted")
    if any(type(flag) is not bool for flag in flags.values()) or not _is_texts(accepted):
        return None
    return Standing(accepted=tuple(accepted), **{name: flag is True for name, flag in flags.items()})


def _pairs(value: Any) -> tuple[tuple[str, str], ...] | None:
    """Return pairs of texts, None for what is something else."""
    if not isinstance(value, list) or not all(_is_texts(each, 2) for each in value):
        return None
    return tuple((one, other) for one, other in value)


def _is_texts(value: Any, count: int | None = None) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and all(isinstance(text, str) and "\0" not in text for text in value)
        and count in (None, len(value))
    )


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
        "version": VERSION,
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
    fd = os.memfd_create(STATE, os.MFD_ALLOW_SEALING)  # without MFD_CLOEXEC: the idle process reads it
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
    memory = saved_state(os.pread(fd, idling.LIMIT, 0))
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
        understood(memory),
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
    return int(number) if seen == SEEN_AS else None


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
