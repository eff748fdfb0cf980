"""Starts the process that answers over HTTP (answering.py), tells it how the node stands, and starts it again."""

from __future__ import annotations

import os
import socket

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.beside import Beside
from toolkit_installer.lifecycle.metrics import answering
from toolkit_installer.node import interpreter
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
    """What the run knows of that process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.process = Beside(_PROGRAM, room=answering.TOLD)

    @property
    def lost(self) -> bool:
        """Whether nobody answers: the process ended, or could not be started. Telling it something tries again."""
        return self.process.lost

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
        if not (self.process.send(packet) and self._is_heard(_HEARD_SECONDS)):
            self._restart(packet)

    def leave(self, why: str) -> None:
        """Tell that the node is not ready any more, for the last time: whoever is gone stays so, and nothing waits."""
        self.process.send(_packet(ready=False, why=why, metrics=""))

    def _restart(self, packet: bytes) -> None:
        self.process.close()
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
        pid = self.process.pid
        log.get().warning("Metrics are served again, by a new process", key="metrics-served-again", pid=pid)
        if not (self.process.send(packet) and self._is_heard(_BEGIN_SECONDS)):
            self.process.close()  # so it is `lost`, and the next look tries again

    def _start(self) -> None:
        """Start the process, and wait until it has given up its privileges. Raises OSError, Stopped."""
        self.process.end_left_over()
        with _listening(self._address) as listener:

            def command(channel: int) -> list[str]:
                return interpreter.isolated(_PROGRAM, str(listener.fileno()), str(channel))

            if self.process.start(command, [listener.fileno()], _BEGIN_SECONDS) != answering.READY:
                raise OSError("the process that is to answer did not begin; where it ended, its reason stands above")

    def _is_heard(self, seconds: float) -> bool:
        """Tell whether the process says within that time that it is there, and heard. Raises Stopped."""
        return self.process.hear(seconds) == answering.READY


def _listening(address: Address) -> socket.socket:
    """Return a socket that listens there, on all addresses of both kinds where none is given. Raises OSError."""
    both = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
    host = "::" if both else address.host
    return socket.create_server((host, address.port), family=family, backlog=_WAITING, dualstack_ipv6=both)


def _packet(*, ready: bool, why: str, metrics: str) -> bytes:
    """Return what the process is told, as answering.py has it."""
    return b"\0".join((b"1" if ready else b"0", _plain(why), _plain(metrics)))


def _plain(text: str) -> bytes:
    return text.replace("\0", "").encode(errors="backslashreplace")
