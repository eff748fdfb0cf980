"""Detect which engine the node runs, and which distribution installed it. Changes nothing.

The kubelet's own choice outweighs everything else, then the files of a distribution that does not run; then come
engines that respond on their sockets, then units, programs and files. Evidence that is ambiguous, or contradicts the
settings, is an error that lists it.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Collection, Iterator, Sequence

import msgspec

from toolkit_installer import log
from toolkit_installer.engines.api import EngineSilentError, get_adapter
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.detect import kubelet
from toolkit_installer.engines.detect.unit_files import (
    TABLE,
    UNIT_FOLDERS,
    find_engine_by_socket,
    find_marked_row,
    find_socket_rows,
)
from toolkit_installer.engines.registry import Distribution, find_usual_distribution, names, normalize_socket
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import machine, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.settings import EngineName, EngineSettings, Settings

_QUERY_SECONDS = 5.0


class EvidenceKind(enum.StrEnum):
    """The kinds of evidence, the strongest first."""

    KUBELET = "kubelet"
    OPTIONS = "options"
    LIVE = "live"
    UNIT = "unit"
    BINARY = "binary"
    FILE = "file"


class Evidence(msgspec.Struct, frozen=True):
    """Evidence for a row of the table (None: for an engine of no row). `words` is for people."""

    kind: EvidenceKind
    row: Distribution | None
    words: str
    socket: str | None = None
    """Where the engine was found, or will serve."""
    process: Process | None = None
    """The process behind that socket."""
    lesser: bool = False
    """It does not count next to docker, whose packages include this containerd."""


def find_kubelet_evidence(node: Node) -> tuple[Evidence, ...]:
    """Return the engines that the node's running kubelets use."""
    found = []
    for each in kubelet.find_running_kubelets(node):
        if each.socket is None:
            tell = log.get().warning if each.process.hidden else log.get().debug
            tell("A kubelet does not say what it uses", pid=each.process.pid, reason=each.told_by)
            continue
        words = f"the kubelet in {_shown(each.process)} uses {each.socket}: {each.told_by}"
        found.append(Evidence(EvidenceKind.KUBELET, find_row(node, each.socket, each.process), words, each.socket))
    return tuple(found)


def find_option_evidence(node: Node) -> tuple[Evidence, ...]:
    """Return the engines that distributions' files name for their kubelets instead of the distribution's own."""
    return tuple(
        Evidence(
            EvidenceKind.OPTIONS,
            find_row(node, each.socket, None),
            f"{each.distribution} is configured to use {each.socket}: {each.told_by}",
            each.socket,
        )
        for each in kubelet.find_configured_kubelets(node)
    )


def find_socket_evidence(
    node: Node, settings: Settings, engines: Sequence[EngineName], *, starting: bool = True
) -> tuple[Evidence, ...]:
    """Return which of these engines respond on their sockets.

    With `starting`, wait for an engine that is starting, so that the result does not depend on which engine was up
    first.
    """
    # one deadline for all, so that hanging engines do not add up
    deadline = machine.monotonic() + (settings.reload_timeout if starting else _QUERY_SECONDS)
    found = []
    for engine in engines:
        own = settings.settings_of(engine)
        for socket in _list_sockets(node, engine, own):
            # a running process may not have created its socket yet
            if not _is_there(node, socket) and not (starting and serving.find_process(node, engine, socket)):
                continue
            evidence = _probe_socket(node, engine, socket, deadline)
            if evidence is not None:
                found.append(evidence)
    return tuple(found)


def find_installation_evidence(node: Node, settings: Settings, engines: Sequence[EngineName]) -> tuple[Evidence, ...]:
    """Return the units, programs and files of these engines on the node."""
    asked = EngineName.CONTAINERD in engines
    lesser = asked and _disables_cri(node, settings.settings_of(EngineName.CONTAINERD))
    found = []
    for row in TABLE:
        if row.engine not in engines:
            continue
        own = settings.settings_of(row.engine) if row is find_usual_distribution(row.engine) else EngineSettings()
        units = [posixpath.join(folder, unit) for folder in UNIT_FOLDERS for unit in row.units]
        files = [own.config or row.config, *row.files]
        for kind, words, paths in (
            (EvidenceKind.UNIT, "has the unit", units),
            (EvidenceKind.BINARY, "has the program", row.binaries),
            (EvidenceKind.FILE, "has the file", files),
        ):
            path = next((path for pattern in paths for path in _expand_pattern(node, pattern)), None)
            if path is not None:
                beside = lesser and row is find_usual_distribution(EngineName.CONTAINERD)
                found.append(Evidence(kind, row, f"{row.name} {words} {path}", lesser=beside))
    return tuple(found)


def _list_sockets(node: Node, engine: EngineName, own: EngineSettings) -> Iterator[str]:
    """Yield the sockets that an engine may serve, each once: only the requested socket, if there is one."""
    if own.socket is not None:
        yield own.socket
        return
    seen = set()
    for row in (find_usual_distribution(engine), *TABLE):
        if row.engine is engine and row.socket not in seen:
            seen.add(row.socket)
            yield from _expand_pattern(node, row.socket) if "*" in row.socket else (row.socket,)


def _probe_socket(node: Node, engine: EngineName, socket: str, deadline: float) -> Evidence | None:
    """Return the evidence from querying a socket, None if no engine responds in time."""
    rows = find_socket_rows(socket)
    if rows and all(row.refused for row in rows):
        if not sockets.is_listening(node.root, socket):
            return None
        return Evidence(EvidenceKind.LIVE, rows[0], f"{rows[0].name} listens on {socket}", socket)
    try:
        live = serving.wait_for_engine(get_adapter(engine), node, socket, deadline - machine.monotonic())
    except EngineSilentError as error:
        log.get().debug("The engine does not answer", engine=engine, socket=socket, reason=str(error))
        return None
    row = find_row(node, socket, live.process, engine) or find_usual_distribution(engine)
    behind = f", from {_shown(live.process)}" if live.process is not None else ""
    return Evidence(
        EvidenceKind.LIVE, row, f"{row.name} {live.version} answers on {socket}{behind}", socket, live.process
    )


def find_row(node: Node, socket: str, process: Process | None, engine: EngineName | None = None) -> Distribution | None:
    """Return the row that a socket belongs to: by the process, else by the socket's path, else by its name."""
    rows = find_socket_rows(socket)
    engine = engine or (rows[0].engine if rows else find_engine_by_socket(socket))
    if engine is None:
        return None
    words = " ".join((process.executable, *process.arguments)) if process is not None else ""
    marked = find_marked_row(words, engine)
    if marked is not None:
        return marked
    own = [row for row in rows if row.engine is engine]
    within = [row for row in own if process is not None and process.unit in row.units]
    # two distributions may share a socket: prefer the one whose folder exists
    present = [row for row in own if _is_there(node, posixpath.dirname(row.config))]
    return next(iter([*within, *present, *own]), find_usual_distribution(engine))


def _disables_cri(node: Node, own: EngineSettings) -> bool:
    """Tell whether the packaged containerd has no configuration, or one that disables its CRI.

    The containerd in docker's packages is like that.
    """
    from toolkit_installer.documents import toml_document  # noqa: PLC0415  # only for nodes with containerd

    try:
        content = node.files.content(own.config or find_usual_distribution(EngineName.CONTAINERD).config)
        disabled = toml_document.parse(content).get("disabled_plugins") if content is not None else ["cri"]
    except ConfigurationError:
        return False  # somebody wrote it, so it is used
    return isinstance(disabled, list) and any("cri" in str(plugin).split(".") for plugin in disabled)


def _shown(process: Process) -> str:
    wiped = ", which has wiped its command line" if process.hidden else ""
    return f"{process.executable or process.name} (PID {process.pid}{wiped})"


def _is_there(node: Node, path: str) -> bool:
    try:
        return node.files.status(path) is not None
    except ConfigurationError:
        return False


def _expand_pattern(node: Node, pattern: str) -> Sequence[str]:
    """Return the paths on the node that match a pattern, sorted; unreadable ones are omitted."""
    try:
        return node.files.matching(pattern)
    except ConfigurationError:
        return []


_HINT = "say which one with --runtime docker, containerd or crio; --socket and --config name one of several"
_OF_KUBELETS = (EvidenceKind.KUBELET, EvidenceKind.OPTIONS)
_AT_WORK = (*_OF_KUBELETS, EvidenceKind.LIVE)


def choose_engines(seen: Sequence[Evidence], hint: str = _HINT, recorded: Collection[EngineName] = ()) -> Evidence:
    """Return the deciding evidence: that of the strongest kind, if all of its kind name the same row.

    A refused row counts only if its kind has no other row (for an engine that does not run: if no kind has one), and
    docker's own containerd does not count next to docker. Of several engines, the `recorded` one is chosen: the toolkit
    is installed for it, and it may be down just now. Pure. Raises ConfigurationError, listing the evidence, if it
    decides nothing, or for a refused row.
    """
    supported = any(each.row is not None and each.row.refused is None for each in seen)
    for kind in EvidenceKind:
        found = _drop_lesser([each for each in seen if each.kind is kind])
        if kind not in _AT_WORK and supported:
            found = [each for each in found if each.row is not None and each.row.refused is None]
        if not found:
            continue
        if len(_rows(found)) > 1:
            known = [each for each in found if each.row is not None and each.row.engine in recorded]
            if len(_rows(known)) == 1:
                return known[0]
            raise ConfigurationError(f"more than one engine was found: {format_evidence(found)}", hint=hint)
        if found[0].row is None:
            raise ConfigurationError(
                f"the kubelet uses an engine that is not known: {format_evidence(found)}", hint=hint
            )
        if found[0].row.refused is not None:
            raise ConfigurationError(
                f"{found[0].row.name} is not supported: {format_evidence(found)}", hint=found[0].row.refused
            )
        return found[0]
    raise ConfigurationError("no engine was found: none answers on its socket, and none is installed", hint=hint)


def _rows(found: Sequence[Evidence]) -> set[str | None]:
    return {each.row.name if each.row is not None else None for each in found}


def format_evidence(seen: Sequence[Evidence]) -> str:
    """Return the distinct evidence in words."""
    return "; ".join(dict.fromkeys(each.words for each in seen))


def _drop_lesser(found: Sequence[Evidence]) -> list[Evidence]:
    supported = [each for each in found if each.row is None or each.row.refused is None] or list(found)
    docker = any(each.row is not None and each.row.engine is EngineName.DOCKER for each in supported)
    return [each for each in supported if not (docker and each.lesser)]


def gather_evidence(node: Node, settings: Settings) -> tuple[Evidence, ...]:
    """Return all evidence on the node, the strongest kind first, each kind in the table's order."""
    return (
        *find_kubelet_evidence(node),
        *find_option_evidence(node),
        *find_socket_evidence(node, settings, names()),
        *find_installation_evidence(node, settings, names()),
    )


def detect_engines(
    node: Node,
    settings: Settings,
    seen: tuple[Evidence, ...] | None = None,
    recorded: Collection[EngineName] = (),
) -> tuple[EngineTarget, ...]:
    """Return the engines to configure: those named in the settings, else the engine that the node has. Logs why.

    `seen`: the result of `gather_evidence`, if the caller has it. `recorded`: as in `choose`. Raises
    ConfigurationError.
    """
    if settings.runtimes:
        return locate_engines(node, settings, settings.runtimes)
    seen = gather_evidence(node, settings) if seen is None else seen
    return (_logged(_target(settings, choose_engines(seen, recorded=recorded), seen)),)


def locate_engines(node: Node, settings: Settings, engines: Sequence[EngineName]) -> tuple[EngineTarget, ...]:
    """Return these engines' places on the node, without questioning the choice. Logs unusual ones.

    Raises ConfigurationError for an engine that contradicts the evidence on the node.
    """
    kubelets = find_kubelet_evidence(node) or find_option_evidence(node)
    return tuple(_logged(_named(node, settings, engine, kubelets, engines)) for engine in engines)


def list_installed_engines(settings: Settings, seen: tuple[Evidence, ...]) -> Iterator[EngineTarget]:
    """Yield a target for each engine and distribution with evidence, for a node on which none of them is running."""
    found = {each.row.name: each for each in _drop_lesser(seen) if each.row is not None and each.row.refused is None}
    for each in found.values():
        yield _target(settings, each, seen)


def refuse_without_nri(node: Node) -> None:
    """Raise ConfigurationError if a kubelet of the node uses docker, which calls no NRI plugin.

    docker's own containerd may accept a plugin all the same, but calls it for none of docker's containers.
    """
    kubelets = find_kubelet_evidence(node) or find_option_evidence(node)
    found = [each for each in kubelets if each.row is not None]
    if any(each.row is not None and each.row.engine is EngineName.DOCKER for each in found):
        raise ConfigurationError(
            f"docker asks no NRI plugin about its containers, and it is this node's engine: {format_evidence(found)}",
            hint="nothing was changed; leave --enable-nri-plugin out on such nodes: they need the handlers",
        )


def _logged(target: EngineTarget) -> EngineTarget:
    row = target.distribution
    if row is not None and (target.detected or row is not find_usual_distribution(target.name)):
        log.get().info(
            "Recognised the engine", key="engine-recognised", engine=target.name, distribution=row.name, why=target.why
        )
    return target


def _named(
    node: Node,
    settings: Settings,
    engine: EngineName,
    kubelets: tuple[Evidence, ...],
    engines: Sequence[EngineName],
) -> EngineTarget:
    """Return one of `engines`, which the settings name. Raises ConfigurationError for a contradiction.

    --config and --socket are the user's explicit choice, and contradict nothing.
    """
    asked = settings.settings_of(engine)
    if asked.config is not None:
        why = f"--runtime {engine} with a file of its own"
        return EngineTarget(engine, asked, distribution=find_usual_distribution(engine), why=why)
    if asked.socket is not None:
        row = find_row(node, asked.socket, None) if find_socket_rows(asked.socket) else None
        if row is None or row.engine is not engine:
            row = find_usual_distribution(engine)
        met = Evidence(EvidenceKind.LIVE, row, f"--runtime {engine} on {asked.socket}", asked.socket)
        return _target(settings, met, (met,), named=True)
    if kubelets and not any(each.row is not None and each.row.engine in engines for each in kubelets):
        raise _contradiction(engine, kubelets)
    seen = (*kubelets, *find_installation_evidence(node, settings, (engine,)))
    seen = tuple(each for each in seen if each.row is not None and each.row.engine is engine)
    rows = {each.row.name for each in _drop_lesser(seen) if each.row is not None}
    if not rows or (len(rows) > 1 and not any(each.kind in _OF_KUBELETS for each in seen)):
        # without evidence for it, only a running engine can contradict
        live = find_socket_evidence(node, settings, (engine,) if rows else names(), starting=bool(rows))
        seen = (*seen, *live)
    mine = [each for each in seen if each.row is not None and each.row.engine is engine]
    if not mine and seen:
        raise _contradiction(engine, seen)
    if not mine:
        return EngineTarget(engine, asked, distribution=find_usual_distribution(engine), why=f"--runtime {engine}")
    hint = f"name the one that is meant with --socket or --config: more than one {engine} is on this node"
    return _target(settings, choose_engines(mine, hint), seen, named=True)


def _contradiction(engine: EngineName, seen: Sequence[Evidence]) -> ConfigurationError:
    return ConfigurationError(
        f"--runtime {engine} contradicts what is on the node: {format_evidence(seen)}",
        hint=f"use --runtime auto; if {engine} is meant all the same, name its --socket or --config",
    )


def _target(settings: Settings, found: Evidence, seen: tuple[Evidence, ...], *, named: bool = False) -> EngineTarget:
    """Return the target for the evidence, with its row's own paths unless its process names others.

    `named`: the settings name it.
    """
    row = found.row
    assert row is not None  # noqa: S101  # choose() refuses evidence without one
    usual = row is find_usual_distribution(row.engine)
    socket = None if usual else row.socket
    if row.engine is not EngineName.DOCKER and found.socket is not None:
        # a kubelet may name another socket than the usual one
        socket = None if usual and normalize_socket(found.socket) == normalize_socket(row.socket) else found.socket
    config = None if usual or _names_own_file(seen, row) else row.config
    asked = settings.settings_of(row.engine)
    return EngineTarget(row.engine, asked, config, socket, not named, row, found.words)


def _names_own_file(seen: Sequence[Evidence], row: Distribution) -> bool:
    """Tell whether a process of this row names its own file: its data may not be in the usual place."""
    processes = [each.process for each in seen if each.row is row and each.process is not None]
    if not processes:
        return False
    from toolkit_installer.engines.containerd import config_files  # noqa: PLC0415  # only for nodes with containerd

    return any(config_files.find_config_or(process, "") for process in processes)
