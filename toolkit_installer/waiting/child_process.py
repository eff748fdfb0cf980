"""A process of our own beside the run, which outlives its sleeps: started, heard, told, ended, and known again.

The two share a channel of packets (SOCK_SEQPACKET). Once nobody holds the run's end of it, the other process ends: so
none outlives the run, however that ends. Signals to stop are the run's alone: the process has all of them blocked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from typing import Any

from toolkit_installer.node import idling, signals


class Beside:
    """What is known of the process: its PID, and the channel to it; neither while there is none.

    `mark` is a word of its command line that no other child of a run has. `room` is how many bytes a packet may have
    that the run sends; 0: it sends none.
    """

    def __init__(self, mark: str, room: int = 0) -> None:
        self.pid = 0
        self._mark = mark
        self._room = room
        self._channel: socket.socket | None = None

    @property
    def lost(self) -> bool:
        """Whether there is no such process: it ended, or could not be started."""
        return self._channel is None or _has_ended(self.pid)

    def start(self, command: Callable[[int], list[str]], inherited: Sequence[int], seconds: float) -> bytes:
        """Start the process, and return the first that it says; empty: nothing within `seconds`, and it was ended.

        `command` are its words, by the descriptor of its end of the channel; `inherited` is what it holds beside that.
        Raises OSError, Stopped: then there is no process.
        """
        try:
            self._spawn(command, inherited)
            said = self.hear(seconds)
        except (OSError, signals.Stopped):
            self.close()  # which ends the process, too
            raise
        if not said:
            self.close()
            self.end_left_over()
        return said

    def _spawn(self, command: Callable[[int], list[str]], inherited: Sequence[int]) -> None:
        """Start the process. Raises OSError."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if self._room:
                self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._room)
            for fd in (*inherited, theirs.fileno()):
                os.set_inheritable(fd, True)  # noqa: FBT003  # its only form
            words = command(theirs.fileno())
            kept = {*inherited, theirs.fileno()}
            actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
            actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable() if fd not in kept]
            # In a process group of its own, which has no other member: when the run dies, the kernel continues what is
            # stopped there (setpgid(2), "orphaned process group"), so that it reads the end of its channel, and ends.
            self.pid = os.posix_spawn(words[0], words, {}, file_actions=actions, setpgroup=0, setsigmask=idling.SIGNALS)

    def send(self, packet: bytes) -> bool:
        """Send a packet; return whether there is a process that it went to."""
        if self._channel is None:
            return False
        self._channel.setblocking(False)  # noqa: FBT003  # its only form
        try:
            self._channel.send(packet)
        except OSError:
            self.close()
            return False
        return True

    def hear(self, seconds: float) -> bytes:
        """Return the next packet that comes within that time; empty: none did, or the process ended. Raises Stopped."""
        if self._channel is None:
            return b""
        self._channel.settimeout(seconds)
        try:
            with signals.interruptible():
                return self._channel.recv(_LONGEST)
        except OSError:
            return b""  # it ended, or the time is over: whoever asked starts another one, or says so

    def heard(self) -> bytes:
        """Return the next packet that has come already; empty: none, or the process ended."""
        if self._channel is None:
            return b""
        self._channel.setblocking(False)  # noqa: FBT003  # its only form
        try:
            return self._channel.recv(_LONGEST)
        except OSError:
            return b""  # nothing has come; of one that ended, `lost` tells

    def close(self) -> None:
        """Give the channel up, which ends the process."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def keep(self) -> None:
        """Have the program that this one becomes keep the channel open."""
        if self._channel is not None:
            self._channel.set_inheritable(True)

    def watched(self) -> list[tuple[str, str, str]]:
        """Return what changes when the process ends, and keep its channel open as `keep` does.

        Of one that has ended and that nobody has waited for, the kernel shows the PID, and no folder that it is in.
        """
        if self._channel is None:
            return []
        self.keep()
        place = f"/proc/{self.pid}/cwd/"
        return [(idling.LATER, place, idling.identity(place))]

    @property
    def saved(self) -> tuple[int, int] | None:
        """PID and the descriptor of the channel, for `restore`; None where there is no process."""
        return (self.pid, self._channel.fileno()) if self._channel is not None else None

    def restore(self, saved: tuple[int, int]) -> None:
        """Take up the process again, if its channel is still open."""
        pid, fd = saved
        with contextlib.suppress(OSError, OverflowError):  # then it is started again
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                self._channel, self.pid = socket.socket(fileno=fd), pid
                self._channel.set_inheritable(False)

    def end_left_over(self) -> None:
        """End the processes of this kind that this PID started, perhaps as an earlier program; wait for what ended.

        Only children are looked at, as what a process says of itself is no evidence: everybody can say it. Raises
        OSError.
        """
        with contextlib.suppress(FileNotFoundError, ChildProcessError):  # a kernel without CONFIG_PROC_CHILDREN
            with open("/proc/thread-self/children", encoding="ascii", newline="\n") as file:
                children = [int(word) for word in file.read().split()]
            for pid in children:
                if self._is_ours(pid):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                else:
                    os.waitpid(pid, os.WNOHANG)

    def _is_ours(self, pid: int) -> bool:
        """Tell whether a child of this process is one of the kind; of one that has ended the kernel tells no words."""
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        return os.fsencode(self._mark) in words


_LONGEST = 1 << 16
"""Bytes in a packet that such a process sends."""


def _inheritable() -> list[int]:
    """Return the descriptors that a child inherits beside the standard ones: those of the program's caller as well."""
    found = []
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):  # that of the listing itself
            if fd > _LAST_STANDARD and os.get_inheritable(fd):
                found.append(fd)
    return found


_LAST_STANDARD = 2


def _has_ended(pid: int) -> bool:
    """Tell whether a child of this process has ended; it stays to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
