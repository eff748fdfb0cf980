"""Query an engine, wait for one that is starting, and find the process that serves an engine's socket.

A process is also found while it does not respond: a running engine that is silent may be starting, and is not gone.
"""

from __future__ import annotations

import os
import posixpath
import signal
from collections.abc import Iterator

from toolkit_installer import log
from toolkit_installer.engines.api import Engine, EngineSilentError, LiveState
from toolkit_installer.engines.common import command_line
from toolkit_installer.engines.registry import ENGINES, find_usual_distribution
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import machine, processes, signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import (
    Process,
    find_by_name,
    list_bound_sockets,
    parent_of,
    read_as,
    root_of,
    send_signal,
)
from toolkit_installer.node.queries import Query
from toolkit_installer.node.root import NodeError, Root
from toolkit_installer.node.sockets import UntrustedProcessError, find_root_of, refuse_untrusted
from toolkit_installer.settings import EngineName

_QUERY_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
SILENCE = "it did not answer in time"


class NoAnswerError(InstallerError):
    """An engine did not respond. The text is the engine's own, or the connection's."""


def describe_error(error: BaseException, *timeouts: type[BaseException]) -> str:
    """Return the innermost error of a failed request in words: libraries wrap errors, and show the cause's Python repr.

    `timeouts`: a library's own classes for TimeoutError.
    """
    within: BaseException | None = error
    while within is not None:
        error = within
        if isinstance(error, (TimeoutError, *timeouts)):
            return SILENCE  # the seconds would differ each time, but repeated messages must be equal
        within = next((each for each in error.args if isinstance(each, BaseException)), None)
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__


def resolve_socket(root: Root, path: str) -> str:
    """Return the path at which the node's socket can be connected to. Raises NoAnswerError."""
    home, inner = find_root_of(root, path)
    try:
        place = home.outside(home.canonical(inner))
        if os.path.lexists(place):
            refuse_untrusted(root, path)
            return place
    except (NodeError, UntrustedProcessError) as error:
        raise NoAnswerError(error.reason, path=path, hint=error.hint) from error
    raise NoAnswerError("there is no such socket", path=path)


class EngineBrokenError(EngineSilentError):
    """The engine's process serves, but not the requested service, and needs a restart to do so."""


def query_engine(engine: Engine, node: Node, socket: str, seconds: float) -> tuple[LiveState | None, str]:
    """Return the engine's state once it responds within `seconds`, else None and the error's text. Raises Stopped."""
    try:
        return wait_for_engine(engine, node, socket, seconds), ""
    except EngineSilentError as error:
        return None, error.reason


@Query(recorded=False)
def fetch_state(engine: Engine, node: Node, socket: str, seconds: float) -> LiveState:
    """Return the state that the live engine reports, of which captures have the parts. Raises EngineSilentError."""
    return engine.ask(node, socket, seconds)


def wait_for_engine(engine: Engine, node: Node, socket: str, seconds: float) -> LiveState:
    """Query the engine; while a process runs that should serve the socket, retry for `seconds`.

    Raises EngineSilentError, and Stopped if a signal to stop the installer is pending: it stays pending.
    """
    deadline = machine.monotonic() + seconds
    told = False
    while True:
        remaining = deadline - machine.monotonic()
        try:
            return fetch_state(engine, node, socket, max(1.0, min(_QUERY_SECONDS, remaining)))
        except EngineSilentError as error:
            processes.clear_cached_names()  # the engine may have started since
            starting = None if isinstance(error, EngineBrokenError) else find_process(node, engine.name, socket)
            if starting is None or machine.monotonic() >= deadline:
                raise
            if not told:
                log.get().info(
                    "Waiting for the engine, which runs and does not answer",
                    key="waiting-for-engine",
                    engine=engine.name,
                    pid=starting.pid,
                    reason=error.reason,
                )
                told = True
        signals.sleep(_PAUSE_SECONDS)


PROCESS_NAMES = {row.name: row.processes for row in ENGINES}
"""The names of the engines' processes, as /proc/PID/comm shows them."""
_ROWS = {row.name: row for row in ENGINES}
_UNIX = "unix://"


def find_process(node: Node, engine: EngineName, socket: str) -> Process | None:
    """Return a running process of the node that serves `socket`, or will once it is up; None if there is none.

    A process whose command line and configuration do not name its socket also matches.
    """
    for process in find_by_name(PROCESS_NAMES[engine]):
        if not node.is_home_of(process):
            continue  # an engine inside a container, or of another node
        addresses = _addresses(engine, process)
        if addresses is None or any(
            is_same_socket(root_of(process), address, node.root, socket) for address in addresses
        ):
            return process
    return None


def is_socket_activated(node: Node, engine: EngineName, socket: str) -> bool:
    """Tell whether systemd holds the engine's socket while the engine does not run (systemd.socket(5)).

    Any connection would start it, and an administrator may have stopped it on purpose. False if PID 1 is not the
    node's, or cannot be inspected. Raises NodeError.
    """
    held = list_bound_sockets(1) or []
    return node.files.canonical(socket) in held and find_process(node, engine, socket) is None


def find_unit(node: Node, engine: EngineName, socket: str) -> str | None:
    """Return the unit of the engine that serves a socket, or should; None if the node's systemd knows none."""
    process = find_process(node, engine, socket)
    if process is not None and process.unit is not None:
        return process.unit
    return next((unit for unit in list_usual_units(engine, socket) if node.services.knows(unit)), None)


def list_usual_units(engine: EngineName, socket: str) -> list[str]:
    """Return the units that may serve a socket, a distribution's before the engine's own. Pure."""
    rows = [row for row in reversed(_ROWS[engine].distributions) if row.serves(socket)]
    return list(dict.fromkeys(unit for row in rows for unit in row.units))


def find_served_sockets(node: Node) -> Iterator[tuple[EngineName, str]]:
    """Yield the sockets that the node's running engines were told to serve; they may have further ones."""
    for engine, process in _running(node):
        if process.hidden:
            told_so = _usual(engine, process)
        else:
            given = command_line.flag_values(process.arguments[1:], *_ROWS[engine].address_flags)
            told_so = [each.removeprefix(_UNIX) for each in given]
            if engine is EngineName.CONTAINERD and not told_so:
                told_so = _read_configured_sockets(process) or []
        yield from ((engine, path) for path in told_so if path.startswith("/"))


def find_unnamed_engines(node: Node) -> Iterator[tuple[EngineName, Process, list[str]]]:
    """Yield the engines with a wiped command line and no socket of a usual name, with all sockets that they bound.

    An engine binds several sockets, and serves its API on one of them.
    """
    for engine, process in _running(node):
        if process.hidden and not _usual(engine, process):
            yield engine, process, list_bound_sockets(process.pid) or []


def find_kubelet_engines(node: Node, kubelet: Process) -> Iterator[tuple[str, Process]]:
    """Yield the usual sockets, with their processes, of engines that the kubelet started or that share its unit."""
    for engine, process in _running(node):
        if parent_of(process) == kubelet.pid or (process.unit is not None and process.unit == kubelet.unit):
            yield from ((path, process) for path in _usual(engine, process))


def _running(node: Node) -> Iterator[tuple[EngineName, Process]]:
    """Yield the node's running engines, except those inside containers or of another node."""
    for engine, names in PROCESS_NAMES.items():
        yield from ((engine, process) for process in find_by_name(names) if node.is_home_of(process))


def _usual(engine: EngineName, process: Process) -> list[str]:
    """Return the process's sockets that have the engine's usual name: an engine binds others too."""
    return [
        path
        for path in list_bound_sockets(process.pid) or ()
        if posixpath.basename(path) == _ROWS[engine].socket_names[0]
    ]


def send_sighup(node: Node, engine: EngineName, process: Process) -> None:
    """Send SIGHUP to the engine's process. Raises ConfigurationError if the process is another program's."""
    if process.name not in PROCESS_NAMES[engine]:
        raise ConfigurationError(
            f"the process behind the socket is {process.name!r} (PID {process.pid}), not {engine}: not signalled",
            hint="check --socket",
        )
    send_signal(node.calls, process, signal.SIGHUP)


def _addresses(engine: EngineName, process: Process) -> list[str] | None:
    """Return the unix sockets that a process was told to serve, or serves; None if unknown."""
    if process.hidden:
        return list_bound_sockets(process.pid) or None  # a starting engine has none yet
    given = command_line.flag_values(process.arguments[1:], *_ROWS[engine].address_flags)
    if engine is EngineName.CONTAINERD and not given:
        return _read_configured_sockets(process)
    if any(address.startswith("fd:") for address in given):
        return list_bound_sockets(process.pid)  # systemd made its sockets before it started
    if engine is EngineName.DOCKER and not given:
        return [find_usual_distribution(engine).socket, *(list_bound_sockets(process.pid) or ())]
    if not given:
        return list_bound_sockets(process.pid) or None  # its files may name one; a starting engine has none yet
    return [address.removeprefix(_UNIX) for address in given]


def _read_configured_sockets(process: Process) -> list[str] | None:
    """Return the socket that a containerd's configuration names, else the usual one; None if it cannot be read."""
    # for containerd's processes only
    from toolkit_installer.documents import toml_document  # noqa: PLC0415
    from toolkit_installer.engines.containerd.config_files import find_config  # noqa: PLC0415

    try:
        path = find_config(process) or find_usual_distribution(EngineName.CONTAINERD).config
        grpc = toml_document.parse(read_as(process, path) or b"").get("grpc")
    except ConfigurationError:
        return None
    address = grpc.get("address") if isinstance(grpc, dict) else None
    return [address if isinstance(address, str) and address else find_usual_distribution(EngineName.CONTAINERD).socket]


@Query()
def is_same_socket(one: Root, path: str, other: Root, socket: str) -> bool:
    """Tell whether two paths, each in its own root, are or will be the same socket: its folder may be mounted twice."""
    try:
        first, second = one.outside(one.canonical(path)), other.outside(other.canonical(socket))
        if os.path.basename(first) != os.path.basename(second):
            return False
        return os.path.samefile(os.path.dirname(first), os.path.dirname(second))
    except (OSError, NodeError):
        return False  # a folder does not exist, or the process ended
