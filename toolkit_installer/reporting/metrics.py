"""Metrics of a run: an HTTP endpoint in a child process (metrics_server.py), and a file for node-exporter.

The run sends the node's status to the child process, and starts the process again after it ended. The file is for
node-exporter's textfile collector. Both are only made if the settings ask for them.
"""

from __future__ import annotations

import os
import socket
import stat
import time

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import ConfigurationError, ExitCode, InstallerError
from toolkit_installer.events import Event, subscribe
from toolkit_installer.kubernetes.node_state import ConditionReason
from toolkit_installer.node import interpreter, machine
from toolkit_installer.node.calls import SystemCalls
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import Root, attempt, refuse_if_others_write
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.reporting import metrics_server, metrics_text
from toolkit_installer.reporting.metrics_text import Counts, Metrics
from toolkit_installer.settings import Address
from toolkit_installer.waiting.child_process import ChildProcess
from toolkit_installer.waiting.readiness import Readiness


class MetricsReport:
    """A counter of the run's work, which writes the metrics to the places that the settings name."""

    def __init__(self, node: Node, textfile: str | None, address: Address | None, *, checks_drift: bool) -> None:
        self._node = node
        self._textfile = Textfile(textfile, node.calls) if textfile is not None else None
        self._endpoint = MetricsEndpoint(address) if address is not None else None
        self._checks_drift = checks_drift
        self._counts = Counts()
        subscribe(self._count)

    @property
    def needs_restart(self) -> bool:
        """Whether no process serves the address, so that a restart is due."""
        return self._endpoint is not None and self._endpoint.lost

    def prepare(self) -> None:
        """Refuse a file or address that cannot be used, before any change of the node.

        Raises ConfigurationError, NodeError, Stopped.
        """
        # Prometheus sees no growth without a sample at 0; and the values of a killed run are stale
        content = metrics_text.format_text(self._counts_only())
        if self._textfile is not None:
            self._textfile.prepare()
            self._textfile.write(content)
        if self._endpoint is not None:
            self._endpoint.prepare()
            self._endpoint.send(ready=False, why="nothing is known of the node yet", metrics=content)

    def begin(self, receipt: Receipt | None) -> None:
        """Report a node as not ready while it is set up, even if it was ready without an installation.

        Raises Stopped.
        """
        if receipt is None:
            why = f"{ConditionReason.INSTALLING}: the node is set up"
            self._write(ready=False, why=why, content=metrics_text.format_text(self._counts_only()))

    def report_status(self, readiness: Readiness, receipt: Receipt | None) -> None:
        """Write the metrics and the node's status; a failure is only logged. Raises Stopped."""
        try:
            content = metrics_text.format_text(self._metrics(readiness, receipt))
        except InstallerError as error:
            log.get().warning(
                "The metrics stay as they are, and are out of date", key="metrics-unknown", reason=str(error)
            )
            return
        state = readiness.state
        self._write(ready=state.ready, why=f"{state.reason}: {state.message}", content=content)

    def _write(self, *, ready: bool, why: str, content: str) -> None:
        if self._textfile is not None:
            self._textfile.write(content)
        if self._endpoint is not None:
            self._endpoint.send(ready=ready, why=why, metrics=content)

    def _counts_only(self) -> Metrics:
        """Return the counts, with a node that is not ready, and of which nothing else is known."""
        return Metrics(
            ready=False,
            reloads={(name, why): count for name, why, count in self._counts.reloads},
            reload_seconds=dict(self._counts.reload_seconds),
            rollbacks=self._counts.rollbacks,
            result=self._counts.result,
            converged_at=float(int(self._counts.converged_at)),
        )

    def _metrics(self, readiness: Readiness, receipt: Receipt | None) -> Metrics:
        engines = [str(each.name) for each in receipt.served_engines()] if receipt is not None else []
        counts = self._counts_only()
        return msgspec.structs.replace(
            counts,
            ready=readiness.state.ready,
            served={name: name not in readiness.unserved for name in engines},
            # as in `prepare`: without a 0, Prometheus would miss the first reload of a waiting run
            reloads={(name, why): 0 for name in engines for why in metrics_text.REASONS} | dict(counts.reloads),
            drifted=tuple(file_records.list_drifted(self._node, receipt)) if self._checks_drift else (),
            payload=(receipt.release or "") if receipt is not None else "",
            driver_usable=not readiness.driver_missing,
            reload_pending=readiness.pending is not None,
            damaged=readiness.damaged,
            nri_connected=readiness.plugin.connected if readiness.plugin is not None else None,
        )

    def record_failure(self, code: str) -> None:
        """Record a failed inspection by its exit code's name."""
        self._counts = metrics_text.count_outcome(self._counts, code)

    def record_success(self, *, complete: bool) -> None:
        """Record a successful inspection; `complete`: the node is complete, and waits for nothing."""
        self._counts = metrics_text.count_outcome(
            self._counts, ExitCode.DONE.event, machine.now() if complete else None
        )

    def prepare_shutdown(self) -> None:
        """Report that the metrics are no longer updated."""
        if self._textfile is not None:
            self._textfile.remove()
        if self._endpoint is not None:
            self._endpoint.send_shutdown("the run was told to stop")

    def watched(self) -> list[tuple[str, str, str]]:
        """Return further paths for the idle process to watch; to be called when the run becomes idle."""
        return self._endpoint.process.watched() if self._endpoint is not None else []

    @property
    def counts(self) -> Counts:
        """What this run has done so far."""
        return self._counts

    @property
    def server_process(self) -> tuple[int, int] | None:
        """PID of the metrics server and the descriptor of its channel, None where there is no such process."""
        return self._endpoint.process.saved if self._endpoint is not None else None

    def restore(self, counts: Counts | None, process: tuple[int, int] | None) -> None:
        """Go on counting from there, with the same metrics server."""
        self._counts = counts or Counts()
        if self._endpoint is not None and process is not None:
            self._endpoint.process.restore(process)

    def _count(self, event: Event) -> None:
        self._counts = metrics_text.count_event(self._counts, event, time.monotonic())


_FOLDER = os.path.dirname(os.path.realpath(metrics_server.__file__))
"""Resolved when the program starts, as in `interpreter`."""
_PROGRAM = f"import sys; sys.path.insert(0, {_FOLDER!r}); import metrics_server; metrics_server.main()"
"""Imports the server, whose bytecode is used then: Python would compile a script at each start."""
_BEGIN_SECONDS = 30.0
"""More than a process takes to start on a node that is busy with a boot."""
_CONFIRM_SECONDS = 10.0
"""More than a running process takes to answer: it only has to wake up."""
_WAITING = 128
"""The limit of connections in the kernel's queue until they are accepted."""


class MetricsEndpoint:
    """The run's side of the server process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.process = ChildProcess(_PROGRAM, room=metrics_server.MAX_PACKET)

    @property
    def lost(self) -> bool:
        """Whether the process ended, or could not be started; the next `send` tries to restart it."""
        return self.process.lost

    def prepare(self) -> None:
        """Start the process; refuse an address that cannot be used. Raises ConfigurationError, Stopped."""
        try:
            self._start()
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on {self._address}: {error.strerror or error}",
                hint="choose another --metrics-address, or end whoever listens there: `ss -ltnp` names it",
            ) from error

    def send(self, *, ready: bool, why: str, metrics: str) -> None:
        """Send the node's status, and the metrics (empty: unchanged); a failure is only logged.

        A process that is gone, or does not confirm the packet, is replaced. Raises Stopped.
        """
        packet = _format_packet(ready=ready, why=why, metrics=metrics)
        if not (self.process.send(packet) and self._is_confirmed(_CONFIRM_SECONDS)):
            self._restart(packet)

    def send_shutdown(self, why: str) -> None:
        """Send for the last time that the node is not ready, without waiting for an answer or a restart."""
        self.process.send(_format_packet(ready=False, why=why, metrics=""))

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
        if not (self.process.send(packet) and self._is_confirmed(_BEGIN_SECONDS)):
            self.process.close()  # so that it is `lost`, and the next inspection tries again

    def _start(self) -> None:
        """Start the process, and wait until it has given up its privileges. Raises OSError, Stopped."""
        self.process.end_left_over()
        with _listen(self._address) as listener:

            def command(channel: int) -> list[str]:
                return interpreter.build_isolated_command("-c", _PROGRAM, str(listener.fileno()), str(channel))

            if self.process.start(command, [listener.fileno()], _BEGIN_SECONDS) != metrics_server.READY:
                raise OSError("the process that is to answer did not begin; where it ended, its reason stands above")

    def _is_confirmed(self, seconds: float) -> bool:
        """Return whether the process confirms a packet within `seconds`. Raises Stopped."""
        return self.process.receive(seconds) == metrics_server.READY


def _listen(address: Address) -> socket.socket:
    """Return a socket that listens at `address`, or on all IPv4 and IPv6 addresses without a host. Raises OSError."""
    dual_stack = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack or ":" in address.host else socket.AF_INET
    host = "::" if dual_stack else address.host
    return socket.create_server((host, address.port), family=family, backlog=_WAITING, dualstack_ipv6=dual_stack)


def _format_packet(*, ready: bool, why: str, metrics: str) -> bytes:
    """Return a packet for the process, in the format of metrics_server.py."""
    return b"\0".join((b"1" if ready else b"0", _encode(why), _encode(metrics)))


def _encode(text: str) -> bytes:
    return text.replace("\0", "").encode(errors="backslashreplace")


_MODE = 0o644
_ENDING = ".prom"
"""The suffix of files that the textfile collector reads; it ignores all others."""


class Textfile:
    """The metrics file at `path` in the installer's own mount namespace."""

    def __init__(self, path: str, calls: SystemCalls) -> None:
        self._path = path
        self._files = Files(Root("/"), calls)

    def prepare(self) -> None:
        """Refuse a path that cannot be written, before any write. Raises ConfigurationError, NodeError."""
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise ConfigurationError(
                "the folder of the metrics file does not exist", path=folder, hint="mount it, or choose another one"
            )
        if not self._path.endswith(_ENDING):
            raise ConfigurationError(
                "node-exporter reads no file of this name", path=self._path, hint=f"let it end with {_ENDING}"
            )
        path = self._canonical_path()
        # a write would refuse such a folder: report that before the first change of the node
        with attempt("look at its folder", path), self._files.root.parent(path) as (open_folder, _):
            refuse_if_others_write(open_folder, path)
        self._files.sweep(path)

    def write(self, content: str) -> None:
        """Write the metrics unless the file has them already; a failure is only logged."""
        encoded = content.encode()
        try:
            path = self._canonical_path()
            if not self._holds(path, encoded):
                self._files.overwrite(path, encoded, own_metadata(_MODE))
        except InstallerError as error:
            log.get().warning(
                "The metrics file cannot be written", key="metrics-unwritten", file=self._path, reason=str(error)
            )

    def remove(self) -> None:
        """Remove the file, as it is no longer updated. A failure is logged."""
        try:
            if self._files.own_status(self._path) is not None:
                self._files.remove(self._canonical_path())
        except InstallerError as error:
            log.get().warning(
                "The metrics file stays, and is out of date", key="metrics-left", file=self._path, reason=error.reason
            )

    def _holds(self, path: str, content: bytes) -> bool:
        """Return whether our file exists with this content. Raises NodeError, ConfigurationError."""
        status = self._files.own_status(path)
        if status is None or not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != _MODE:
            return False
        found = self._files.read_file(path)
        return found is not None and found.content == content

    def _canonical_path(self) -> str:
        return self._files.in_folder(self._path)
