"""A child process of the run, which outlives the run's sleeps: start, receive, send, end, and restore.

The two share a channel of packets (SOCK_SEQPACKET). Once no process holds the run's end, the child ends: so no child
outlives the run, however the run ends. The child blocks all signals that stop the run.
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


class ChildProcess:
    """A child process: its PID, and the channel to it; neither while there is none.

    `mark` is a word of the child's command line that no other child of a run has. `room` is the limit, in bytes, of the
    packets that the run sends; 0: it sends none.
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
        """Start the process, and return its first packet; if none comes within `seconds`, end it and return b"".

        `command` returns the command line for the descriptor of the child's end of the channel; `inherited` are further
        descriptors that the child inherits. Raises OSError, Stopped: then there is no process.
        """
        try:
            self._spawn(command, inherited)
            packet = self.receive(seconds)
        except (OSError, signals.Stopped):
            self.close()  # also ends the process
            raise
        if not packet:
            self.close()
            self.end_left_over()
        return packet

    def _spawn(self, command: Callable[[int], list[str]], inherited: Sequence[int]) -> None:
        """Start the process. Raises OSError."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if self._room:
                self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._room)
            for fd in (*inherited, theirs.fileno()):
                os.set_inheritable(fd, True)  # noqa: FBT003  # its only form
            words = command(theirs.fileno())
            inherited_fds = {*inherited, theirs.fileno()}
            actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
            actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in _list_inheritable() if fd not in inherited_fds]
            # In its own process group, without other members: when the run dies, the kernel continues a process
            # that is stopped there (setpgid(2), "orphaned process group"), so that it sees EOF, and ends.
            self.pid = os.posix_spawn(words[0], words, {}, file_actions=actions, setpgroup=0, setsigmask=idling.SIGNALS)

    def send(self, packet: bytes) -> bool:
        """Send a packet; return whether there is a process that received it."""
        if self._channel is None:
            return False
        self._channel.setblocking(False)  # noqa: FBT003  # its only form
        try:
            self._channel.send(packet)
        except OSError:
            self.close()
            return False
        return True

    def receive(self, seconds: float) -> bytes:
        """Return the next packet within `seconds`; empty if none came, or the process ended. Raises Stopped."""
        if self._channel is None:
            return b""
        self._channel.settimeout(seconds)
        try:
            with signals.interruptible():
                return self._channel.recv(_MAX_PACKET)
        except OSError:
            return b""  # ended, or timed out: the caller starts another process, or reports that

    def receive_pending(self) -> bytes:
        """Return the next packet that has already arrived; empty if there is none, or the process ended."""
        if self._channel is None:
            return b""
        self._channel.setblocking(False)  # noqa: FBT003  # its only form
        try:
            return self._channel.recv(_MAX_PACKET)
        except OSError:
            return b""  # nothing has arrived; `lost` tells whether the process ended

    def close(self) -> None:
        """Close the channel, which ends the process."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def keep(self) -> None:
        """Keep the channel open over the exec of the next program."""
        if self._channel is not None:
            self._channel.set_inheritable(True)

    def watched(self) -> list[tuple[str, str, str]]:
        """Return the path that changes when the process ends, and keep its channel open as `keep` does.

        A zombie keeps its PID but loses its cwd link.
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
        """Kill processes of this kind that this PID started, perhaps as an earlier program; reap ended children.

        Only children are inspected, as a process's own words are no evidence: any process can claim them. Raises
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
        """Return whether a child of this process is of this kind; False for a zombie, whose command line is empty."""
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        return os.fsencode(self._mark) in words


_MAX_PACKET = 1 << 16
"""The longest packet from a child process, in bytes."""


def _list_inheritable() -> list[int]:
    """Return the non-standard descriptors that a child inherits, including those of the program's caller."""
    found = []
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            if fd > _LAST_STANDARD and os.get_inheritable(fd):
                found.append(fd)
    return found


_LAST_STANDARD = 2


def _has_ended(pid: int) -> bool:
    """Return whether a child of this process has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
