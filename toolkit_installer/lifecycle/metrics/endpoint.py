"""Starts the process that answers over HTTP (answering.py), tells it how the node stands, and starts it again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
from collections.abc import Mapping
from typing import Any

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle import idling
from toolkit_installer.lifecycle.metrics import answering
from toolkit_installer.node import interpreter, signals
from toolkit_installer.settings import Address

_PROGRAM = os.path.join(os.path.dirname(os.path.realpath(answering.__file__)), "endpoint_process.py")
"""Looked at when the program starts, as `interpreter` does."""
_BEGIN_SECONDS = 30.0
"""More than a process takes to begin on a node that is busy with all that a boot starts."""
_HEARD_SECONDS = 10.0
"""The same of one that runs: it only has to wake up."""
_WAITING = 128
"""Connections that the kernel keeps until they are accepted."""


class Endpoint:
    """What is known of that process: its PID, and the channel to it; neither while there is none."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pid = 0
        self._channel: socket.socket | None = None

    @property
    def lost(self) -> bool:
        """Whether nobody answers: the process ended, or could not be started. Telling it something tries again."""
        return self._channel is None or _has_ended(self._pid)

    def prepare(self) -> None:
        """Start the process; refuse an address that cannot be had. Raises ConfigurationError, Stopped."""
        try:
            self._start()
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on {self._address}: {error.strerror or error}",
                hint="choose another --metrics-address, or end whoever listens there: `ss -ltnp` names it",
            ) from error

    def tell(self, *, ready: bool, why: str, metrics: str) -> None:
        """Tell how the node stands, and the metrics (empty: they stay); a failure is said, and nothing else follows.

        A process that is gone, or does not say that it heard, is replaced. Raises Stopped.
        """
        packet = _packet(ready=ready, why=why, metrics=metrics)
        if not (self._send(packet) and self._is_heard(_HEARD_SECONDS)):
            self._restart(packet)

    def leave(self, why: str) -> None:
        """Tell that the node is not ready any more, for the last time: whoever is gone stays so, and nothing waits."""
        self._send(_packet(ready=False, why=why, metrics=""))

    def _restart(self, packet: bytes) -> None:
        self._close()
        try:
            self._start()
        except OSError as error:
            log.get().warning(
                "Metrics are served no more",
                key="metrics-unserved",
                address=str(self._address),
                reason=error.strerror or str(error),
            )
            return
        log.get().warning("Metrics are served again, by a new process", key="metrics-served-again", pid=self._pid)
        if not (self._send(packet) and self._is_heard(_BEGIN_SECONDS)):
            self._close()  # so it is `lost`, and the next look tries again

    def _start(self) -> None:
        """Start the process, and wait until it has given up its privileges. Raises OSError, Stopped."""
        _end_left_over()
        try:
            self._spawn()
            begun = self._is_heard(_BEGIN_SECONDS)
        except (OSError, signals.Stopped):
            self._close()  # which ends the process, too
            raise
        if not begun:
            self._close()
            _end_left_over()
            raise OSError("the process that is to answer did not begin; where it ended, its reason stands above")

    def _spawn(self) -> None:
        """Start the process. Raises OSError."""
        with _listening(self._address) as listener:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, answering.TOLD)
                for each in (listener, theirs):
                    each.set_inheritable(True)
                command = interpreter.isolated(_PROGRAM, str(listener.fileno()), str(theirs.fileno()))
                silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
                self._pid = os.posix_spawn(command[0], command, {}, file_actions=silent, setsigmask=idling.SIGNALS)

    def _send(self, packet: bytes) -> bool:
        """Send a packet; return whether there is a process that it went to."""
        if self._channel is None:
            return False
        self._channel.setblocking(False)  # noqa: FBT003  # its only form
        try:
            self._channel.send(packet)
        except OSError:
            self._close()
            return False
        return True

    def _is_heard(self, seconds: float) -> bool:
        """Tell whether the process says within that time that it is there, and heard. Raises Stopped."""
        if self._channel is None:
            return False
        self._channel.settimeout(seconds)
        try:
            with signals.interruptible():
                return self._channel.recv(len(answering.READY)) == answering.READY
        except OSError:
            return False  # it ended, or the time is over: whoever asked starts another one, or says so

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def watched(self) -> list[tuple[str, str, str]]:
        """Return what changes when the process ends; from here on, the idle process keeps the channel open.

        Of one that has ended and that nobody has waited for, the kernel shows the PID, and no folder that it is in.
        """
        if self._channel is None:
            return []
        self._channel.set_inheritable(True)
        place = f"/proc/{self._pid}/cwd/"
        return [(idling.LATER, place, idling.identity(place))]

    def remembered(self) -> dict[str, int]:
        """Return what is to be known after a sleep."""
        return {"pid": self._pid, "fd": self._channel.fileno()} if self._channel is not None else {}

    def recall(self, said: Any) -> None:
        """Know it again, as far as it can be."""
        fd, pid = (said.get("fd"), said.get("pid")) if isinstance(said, Mapping) else (None, None)
        if type(fd) is not int or type(pid) is not int:
            return
        with contextlib.suppress(OSError, OverflowError):  # then it is started again
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                self._channel, self._pid = socket.socket(fileno=fd), pid
                self._channel.set_inheritable(False)


def _listening(address: Address) -> socket.socket:
    """Return a socket that listens there, on all addresses of both kinds where none is given. Raises OSError."""
    both = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
    host = "::" if both else address.host
    return socket.create_server((host, address.port), family=family, backlog=_WAITING, dualstack_ipv6=both)


def _end_left_over() -> None:
    """End the processes of this kind that this PID started, perhaps as an earlier program; wait for those that ended.

    Only children are looked at, as what a process says of itself is no evidence: everybody can say it.
    """
    with contextlib.suppress(FileNotFoundError, ChildProcessError):  # a kernel without CONFIG_PROC_CHILDREN
        with open("/proc/thread-self/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
        for pid in children:
            if _is_ours(pid):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            else:
                os.waitpid(pid, os.WNOHANG)


def _is_ours(pid: int) -> bool:
    """Tell whether a child of this process is one that answers; of one that has ended the kernel tells no words."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return os.fsencode(_PROGRAM) in words


def _has_ended(pid: int) -> bool:
    """Tell whether a child of this process has ended; it stays to be waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _packet(*, ready: bool, why: str, metrics: str) -> bytes:
    """Return what the process is told, as answering.py has it."""
    return b"\0".join((b"1" if ready else b"0", _plain(why), _plain(metrics)))


def _plain(text: str) -> bytes:
    return text.replace("\0", "").encode(errors="backslashreplace")
