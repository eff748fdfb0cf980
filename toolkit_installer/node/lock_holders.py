"""Who holds a flock on an open file: whoever could open it for reading can, so not every holder counts.

The kernel's list (proc_locks(5)) names who took a lock. That process may have ended and left it to another, and its PID
may be somebody else's by now: so a holder is who has the file open, with the lock on it (proc_pid_fdinfo(5)).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from toolkit_installer.node import trust
from toolkit_installer.node.disk.root import attempt
from toolkit_installer.node.trust import Standing

_LOCKS = "/proc/locks"
_LOCKED = "FLOCK"


def believed(fd: int, said: int | None) -> int | None:
    """Return the PID of a process that we believe and that holds a flock on the open file; None if there is none.

    `said`: the PID that the file names. That process needs a lock on any file of this inode number, as some file
    systems (overlayfs, btrfs) show another device to stat(2) than in the list. Raises NodeError.
    """
    takers = _takers(fd)
    places = {pid for pid, exact in takers.items() if exact}
    candidates = [said] if said in takers else sorted(places)
    for pid in candidates:
        standing = trust.standing(pid)
        if standing is Standing.UNSEEN or (standing is Standing.BELIEVED and any(_descriptors(pid, fd))):
            return pid
    if not places:
        return None
    return next((pid for pid in _with_lock(fd) if trust.standing(pid) is Standing.BELIEVED), None)


def stranger(fd: int) -> str | None:
    """Return in words which stranger, who is no instance, holds a flock on the open file; None if none is seen to.

    Raises NodeError.
    """
    if not any(_takers(fd).values()):
        return None  # taken in another PID namespace: nothing is known of who did
    strangers = (pid for pid in _with_lock(fd) if trust.standing(pid) is Standing.STRANGER)
    return next((f"PID {pid} of user {tuple(sorted(trust.users_of(pid)))}" for pid in strangers), None)


def is_ending(fd: int) -> bool:
    """Tell whether a flock on the open file is that of a process which ends, and nobody else's.

    The kernel takes the memory from such a process first, then all descriptors, and lets go of their locks after that;
    on a busy node it may be put aside at any of these. Raises NodeError.
    """
    takers = [pid for pid, exact in _takers(fd).items() if exact]
    return any(_is_at_its_end(pid) for pid in takers) and all(trust.is_ending(pid) for pid in _with_lock(fd))


def _is_at_its_end(pid: int) -> bool:
    if trust.is_ending(pid):
        return True
    try:
        return not os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False  # it is gone, and its lock as well; or it may not be looked at


def _takers(fd: int) -> dict[int, bool]:
    """Return who took a flock on a file of this number, and whether it is said to be on this very device."""
    status = os.fstat(fd)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with attempt("read it", _LOCKS), open(_LOCKS, encoding="ascii", newline="\n") as lines:
        held = [words for words in map(str.split, lines) if "->" not in words and words[1] == _LOCKED]
    return {int(words[4]): words[5] == place for words in held if words[5].endswith(f":{status.st_ino}")}


def _with_lock(fd: int) -> Iterator[int]:
    """Yield the processes that have the file open with a flock on it, as far as they can be looked at."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        for number in _descriptors(int(name), fd):
            try:
                place = f"/proc/{name}/fdinfo/{number}"
                with open(place, encoding="ascii", errors="replace", newline="\n") as lines:
                    held = any(line.startswith("lock:") and _LOCKED in line for line in lines)
            except OSError:
                continue  # it was closed, or its process ended
            if held:
                yield int(name)
                break


def _descriptors(pid: int, fd: int) -> Iterator[str]:
    """Yield the numbers under which a process has the file open."""
    ours = os.fstat(fd)
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), ours):
                    yield number
