"""What on the node speaks for which engine and distribution. Looks, and changes nothing."""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterator, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import EngineSilentError
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.detect import kubelet
from toolkit_installer.engines.detect.unit_files import TABLE, UNIT_FOLDERS, engine_of_socket, with_marks, with_socket
from toolkit_installer.engines.registry import Distribution, usual_row
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import machine, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings, Settings

_ASK_SECONDS = 5.0


class Kind(enum.StrEnum):
    """The kinds of evidence, the strongest first."""

    KUBELET = "kubelet"
    OPTIONS = "options"
    LIVE = "live"
    UNIT = "unit"
    BINARY = "binary"
    FILE = "file"


class Evidence(msgspec.Struct, frozen=True):
    """What speaks for a row of the table (None: for an engine that no row knows). `words` is for people."""

    kind: Kind
    row: Distribution | None
    words: str
    socket: str | None = None
    """Where the engine was met, or is to be met."""
    process: Process | None = None
    """The process behind that socket."""
    lesser: bool = False
    """It says nothing beside docker, which brings this along."""


def of_kubelets(node: Node) -> tuple[Evidence, ...]:
    """Return what the running kubelets of the node use."""
    found = []
    for each in kubelet.running(node):
        if each.socket is None:
            tell = log.get().warning if each.process.hidden else log.get().debug
            tell("A kubelet does not say what it uses", pid=each.process.pid, reason=each.told_by)
            continue
        words = f"the kubelet in {_shown(each.process)} uses {each.socket}: {each.told_by}"
        found.append(Evidence(Kind.KUBELET, row_of(node, each.socket, each.process), words, each.socket))
    return tuple(found)


def of_options(node: Node) -> tuple[Evidence, ...]:
    """Return what the distributions' kubelets are to use in place of the distribution's own engine, by their files."""
    return tuple(
        Evidence(
            Kind.OPTIONS,
            row_of(node, each.socket, None),
            f"{each.distribution} is configured to use {each.socket}: {each.told_by}",
            each.socket,
        )
        for each in kubelet.configured(node)
    )


def of_sockets(
    node: Node, settings: Settings, engines: Sequence[EngineName], *, starting: bool = True
) -> tuple[Evidence, ...]:
    """Return which of these engines answer on their sockets.

    With `starting`, one that is starting counts as well: what the node is must not depend on who was up first.
    """
    # one deadline for all: an engine that hangs must not make the others wait for it each time
    deadline = machine.monotonic() + (settings.reload_timeout if starting else _ASK_SECONDS)
    found = []
    for engine in engines:
        own = settings.asked_of(engine)
        for socket in _sockets(node, engine, own):
            # where there is no socket yet, a process may run that will serve it once it is up
            if not _is_there(node, socket) and not (starting and serving.process_of(node, engine, socket)):
                continue
            evidence = _answer(node, engine, socket, deadline)
            if evidence is not None:
                found.append(evidence)
    return tuple(found)


def of_installations(node: Node, settings: Settings, engines: Sequence[EngineName]) -> tuple[Evidence, ...]:
    """Return what of these engines lies on the node: units, programs, files."""
    asked = EngineName.CONTAINERD in engines
    lesser = asked and _leaves_kubernetes_out(node, settings.asked_of(EngineName.CONTAINERD))
    found = []
    for row in TABLE:
        if row.engine not in engines:
            continue
        own = settings.asked_of(row.engine) if row is usual_row(row.engine) else EngineSettings()
        units = [posixpath.join(folder, unit) for folder in UNIT_FOLDERS for unit in row.units]
        files = [own.config or row.config, *row.files]
        for kind, words, paths in (
            (Kind.UNIT, "has the unit", units),
            (Kind.BINARY, "has the program", row.binaries),
            (Kind.FILE, "has the file", files),
        ):
            path = next((path for pattern in paths for path in _matching(node, pattern)), None)
            if path is not None:
                beside = lesser and row is usual_row(EngineName.CONTAINERD)
                found.append(Evidence(kind, row, f"{row.name} {words} {path}", lesser=beside))
    return tuple(found)


def _sockets(node: Node, engine: EngineName, own: EngineSettings) -> Iterator[str]:
    """Yield where an engine may serve, each place once: the one that was asked for alone, if one was."""
    if own.socket is not None:
        yield own.socket
        return
    seen = set()
    for row in (usual_row(engine), *TABLE):
        if row.engine is engine and row.socket not in seen:
            seen.add(row.socket)
            yield from _matching(node, row.socket) if "*" in row.socket else (row.socket,)


def _answer(node: Node, engine: EngineName, socket: str, deadline: float) -> Evidence | None:
    """Return what was heard on a socket, None where nobody answers and nobody is about to."""
    rows = with_socket(socket)
    if rows and all(row.refused for row in rows):
        if not sockets.listens(node.root, socket):
            return None
        return Evidence(Kind.LIVE, rows[0], f"{rows[0].name} listens on {socket}", socket)
    try:
        live = serving.wait(adapter_of(engine), node, socket, deadline - machine.monotonic())
    except EngineSilentError as error:
        log.get().debug("The engine does not answer", engine=engine, socket=socket, reason=str(error))
        return None
    row = row_of(node, socket, live.process, engine) or usual_row(engine)
    behind = f", from {_shown(live.process)}" if live.process is not None else ""
    return Evidence(Kind.LIVE, row, f"{row.name} {live.version} answers on {socket}{behind}", socket, live.process)


def row_of(node: Node, socket: str, process: Process | None, engine: EngineName | None = None) -> Distribution | None:
    """Return whose socket this is: told by the process, else by its place, else by its name."""
    rows = with_socket(socket)
    engine = engine or (rows[0].engine if rows else engine_of_socket(socket))
    if engine is None:
        return None
    words = " ".join((process.executable, *process.arguments)) if process is not None else ""
    marked = with_marks(words, engine)
    if marked is not None:
        return marked
    own = [row for row in rows if row.engine is engine]
    within = [row for row in own if process is not None and process.unit in row.units]
    # two distributions may share a socket: the one whose folder is there has it
    present = [row for row in own if _is_there(node, posixpath.dirname(row.config))]
    return next(iter([*within, *present, *own]), usual_row(engine))


def _leaves_kubernetes_out(node: Node, own: EngineSettings) -> bool:
    """Tell whether the packaged containerd has no configuration of its own that lets Kubernetes in.

    docker's packages bring containerd along, without a file, or with one that switches its CRI off.
    """
    from toolkit_installer.documents import toml_document  # noqa: PLC0415  # a node without containerd has none

    try:
        content = node.files.content(own.config or usual_row(EngineName.CONTAINERD).config)
        disabled = toml_document.parse(content).get("disabled_plugins") if content is not None else ["cri"]
    except ConfigurationError:
        return False  # whatever it says, somebody wrote it
    return isinstance(disabled, list) and any("cri" in str(plugin).split(".") for plugin in disabled)


def _shown(process: Process) -> str:
    wiped = ", which has wiped its command line" if process.hidden else ""
    return f"{process.executable or process.name} (PID {process.pid}{wiped})"


def _is_there(node: Node, path: str) -> bool:
    try:
        return node.files.status(path) is not None
    except ConfigurationError:
        return False


def _matching(node: Node, pattern: str) -> Sequence[str]:
    """Return the paths on the node that a pattern matches, sorted; what cannot be looked at is not there."""
    try:
        return node.files.matching(pattern)
    except ConfigurationError:
        return []
