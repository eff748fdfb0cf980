"""Tells how the node stands to whoever reads metrics, wherever somebody asked for them.

Starts the process that answers over HTTP (metrics_server.py), tells it how the node stands, and starts it again.

Keeps a file of metrics for node-exporter's textfile collector.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.kubernetes.node_state import Reason
from toolkit_installer.node import interpreter, machine
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.owners import refuse_if_others_write
from toolkit_installer.node.root import Root, attempt
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.receipt import memory
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.reporting import metrics_server, metrics_text
from toolkit_installer.reporting.metrics_text import Counted, Metrics
from toolkit_installer.settings import Address, OnDrift, Settings
from toolkit_installer.waiting.child_process import Beside
from toolkit_installer.waiting.readiness import Readiness

if TYPE_CHECKING:
    pass


class MetricsReport:
    """Counts what the run does, and writes all of it to the places that the settings name."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self._node = node
        self._looks_for_drift = settings.on_drift is not OnDrift.IGNORE
        path = settings.metrics_textfile
        self._textfile = Textfile(path, node.calls) if path is not None else None
        address = settings.metrics_address
        self._endpoint: Endpoint | None = None
        if address is not None:
            self._endpoint = Endpoint(address)
        self._counted = Counted()
        log.overhear(self._overheard)

    @property
    def owes(self) -> bool:
        """Whether nobody answers at the address, which is to be tried again."""
        return self._endpoint is not None and self._endpoint.lost

    def prepare(self) -> None:
        """Refuse a place that cannot be used, before anything is written.

        Raises ConfigurationError, NodeError, Stopped.
        """
        # a counter that is not seen at 0 is not seen to grow; and what a run that was killed left is not true any more
        content = metrics_text.text(self._so_far())
        if self._textfile is not None:
            self._textfile.prepare()
            self._textfile.write(content)
        if self._endpoint is not None:
            self._endpoint.prepare()
            self._endpoint.tell(ready=False, why="nothing is known of the node yet", metrics=content)

    def begin(self, receipt: Receipt | None) -> None:
        """Say that a node is not ready while it is set up, whatever it was while nothing was to be done there.

        Raises Stopped.
        """
        if receipt is None:
            why = f"{Reason.INSTALLING}: the node is set up"
            self._say(ready=False, why=why, content=metrics_text.text(self._so_far()))

    def tell(self, readiness: Readiness, receipt: Receipt | None) -> None:
        """Tell how the node stands; a failure is said, and nothing else follows from it. Raises Stopped."""
        try:
            content = metrics_text.text(self._metrics(readiness, receipt))
        except InstallerError as error:
            log.get().warning(
                "The metrics stay as they are, and are out of date", key="metrics-unknown", reason=str(error)
            )
            return
        state = readiness.state
        self._say(ready=state.ready, why=f"{state.reason}: {state.message}", content=content)

    def _say(self, *, ready: bool, why: str, content: str) -> None:
        if self._textfile is not None:
            self._textfile.write(content)
        if self._endpoint is not None:
            self._endpoint.tell(ready=ready, why=why, metrics=content)

    def _so_far(self) -> Metrics:
        """Return what was counted, of a node that is not ready, and of which nothing else is known."""
        return Metrics(
            ready=False,
            reloads={(name, why): count for name, why, count in self._counted.reloads},
            away=dict(self._counted.away),
            rollbacks=self._counted.rollbacks,
            result=self._counted.result,
            converged_at=float(int(self._counted.converged_at)),
        )

    def _metrics(self, readiness: Readiness, receipt: Receipt | None) -> Metrics:
        engines = [str(each.name) for each in receipt.asked()] if receipt is not None else []
        so_far = self._so_far()
        return msgspec.structs.replace(
            so_far,
            ready=readiness.state.ready,
            served={name: name not in readiness.unserved for name in engines},
            # as in `prepare`: the first reload of a waiting run would not be seen otherwise
            reloads={(name, why): 0 for name in engines for why in metrics_text.REASONS} | dict(so_far.reloads),
            drifted=tuple(memory.drifted(self._node, receipt)) if self._looks_for_drift else (),
            payload=(receipt.release or "") if receipt is not None else "",
            driver_usable=not readiness.driver_away,
            reload_pending=readiness.pending is not None,
            damaged=readiness.damaged,
            nri_connected=readiness.plugin.connected if readiness.plugin is not None else None,
        )

    def failed(self, code: str) -> None:
        """Note with which exit code's name a look failed."""
        self._counted = metrics_text.ended(self._counted, code)

    def converged(self, *, whole: bool) -> None:
        """Note that a look ended well; `whole`: the node is where it should be, and waits for nothing."""
        self._counted = metrics_text.ended(self._counted, ExitCode.DONE.event, machine.now() if whole else None)

    def leave(self) -> None:
        """Say that nobody keeps the metrics up to date from here on."""
        if self._textfile is not None:
            self._textfile.remove()
        if self._endpoint is not None:
            self._endpoint.leave("the run was told to stop")

    def watched(self) -> list[tuple[str, str, str]]:
        """Return what else the idle process is to watch; to be asked when the run becomes that."""
        return self._endpoint.process.watched() if self._endpoint is not None else []

    @property
    def counted(self) -> Counted:
        """What this run has done so far."""
        return self._counted

    @property
    def process(self) -> tuple[int, int] | None:
        """PID of the metrics server and the descriptor of its channel, None where there is no such process."""
        return self._endpoint.process.saved if self._endpoint is not None else None

    def restore(self, counted: Counted | None, process: tuple[int, int] | None) -> None:
        """Go on counting from there, with the same metrics server."""
        self._counted = counted or Counted()
        if self._endpoint is not None and process is not None:
            self._endpoint.process.restore(process)

    def _overheard(self, line: Mapping[str, Any]) -> None:
        self._counted = metrics_text.heard(self._counted, line, time.monotonic())


_PROGRAM = os.path.join(os.path.dirname(os.path.realpath(metrics_server.__file__)), "metrics_process.py")
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
        self.process = Beside(_PROGRAM, room=metrics_server.TOLD)

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

            if self.process.start(command, [listener.fileno()], _BEGIN_SECONDS) != metrics_server.READY:
                raise OSError("the process that is to answer did not begin; where it ended, its reason stands above")

    def _is_heard(self, seconds: float) -> bool:
        """Tell whether the process says within that time that it is there, and heard. Raises Stopped."""
        return self.process.hear(seconds) == metrics_server.READY


def _listening(address: Address) -> socket.socket:
    """Return a socket that listens there, on all addresses of both kinds where none is given. Raises OSError."""
    both = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address.host else socket.AF_INET
    host = "::" if both else address.host
    return socket.create_server((host, address.port), family=family, backlog=_WAITING, dualstack_ipv6=both)


def _packet(*, ready: bool, why: str, metrics: str) -> bytes:
    """Return what the process is told, as metrics_server.py has it."""
    return b"\0".join((b"1" if ready else b"0", _plain(why), _plain(metrics)))


def _plain(text: str) -> bytes:
    return text.replace("\0", "").encode(errors="backslashreplace")


_MODE = 0o644
_ENDING = ".prom"
"""What the textfile collector reads; it leaves all other files alone."""


class Textfile:
    """The file at `path` in the installer's own mount namespace."""

    def __init__(self, path: str, calls: SystemCalls) -> None:
        self._path = path
        self._files = Files(Root("/"), calls)

    def prepare(self) -> None:
        """Refuse a place that could not be written to, before anything is. Raises ConfigurationError, NodeError."""
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise ConfigurationError(
                "the folder of the metrics file does not exist", path=folder, hint="mount it, or choose another one"
            )
        if not self._path.endswith(_ENDING):
            raise ConfigurationError(
                "node-exporter reads no file of this name", path=self._path, hint=f"let it end with {_ENDING}"
            )
        place = self._place()
        # what no write would do later is said before the first change of the node
        with attempt("look at its folder", place), self._files.root.parent(place) as (open_folder, _):
            refuse_if_others_write(open_folder, place)
        self._files.sweep(place)

    def write(self, content: str) -> None:
        """Write the metrics where the file says something else; a failure is said, and nothing else follows from it."""
        encoded = content.encode()
        try:
            place = self._place()
            if not self._holds(place, encoded):
                self._files.overwrite(place, encoded, own_metadata(_MODE))
        except InstallerError as error:
            log.get().warning(
                "The metrics file cannot be written", key="metrics-unwritten", file=self._path, reason=str(error)
            )

    def remove(self) -> None:
        """Remove the file: nobody keeps it up to date from here on. A failure is said."""
        try:
            if self._files.own_status(self._path) is not None:
                self._files.remove(self._place())
        except InstallerError as error:
            log.get().warning(
                "The metrics file stays, and is out of date", key="metrics-left", file=self._path, reason=error.reason
            )

    def _holds(self, place: str, content: bytes) -> bool:
        """Tell whether a file of ours with this content is there. Raises NodeError, ConfigurationError."""
        status = self._files.own_status(place)
        if status is None or not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != _MODE:
            return False
        found = self._files.read_file(place)
        return found is not None and found.content == content

    def _place(self) -> str:
        return self._files.in_folder(self._path)
