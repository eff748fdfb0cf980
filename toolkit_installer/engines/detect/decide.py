"""Which engine the node runs, and which distribution brought it, by what is seen there.

The kubelet's own choice outweighs all else, then what a distribution's files name for one that does not run; then comes
what answers on its socket, then units, programs and files.
What stays ambiguous, or contradicts what was asked for, is an error that lists the evidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from toolkit_installer import log
from toolkit_installer.engines.detect import evidence
from toolkit_installer.engines.detect.evidence import Evidence, Kind
from toolkit_installer.engines.detect.unit_files import with_socket
from toolkit_installer.engines.registry import Distribution, names, plain, usual_row
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName, Settings

_HINT = "say which one with --runtime docker, containerd or crio; --socket and --config name one of several"
_OF_KUBELETS = (Kind.KUBELET, Kind.OPTIONS)
_AT_WORK = (*_OF_KUBELETS, Kind.LIVE)


def choose(seen: Sequence[Evidence], hint: str = _HINT, recorded: Collection[EngineName] = ()) -> Evidence:
    """Return the evidence that decides: that of the strongest kind, if all of its kind speak for the same row.

    What is refused counts only where nothing else of its kind is there (of an engine that does not run: where nothing
    else is there at all), and docker's own containerd not beside docker. Of several engines, it is the one that is
    `recorded`: the toolkit is installed for it, and it may be down just now.
    Pure. Raises ConfigurationError, listing the evidence, where it decides nothing, or for a row that is refused.
    """
    supported = any(each.row is not None and each.row.refused is None for each in seen)
    for kind in Kind:
        found = _weighed([each for each in seen if each.kind is kind])
        if kind not in _AT_WORK and supported:
            found = [each for each in found if each.row is not None and each.row.refused is None]
        if not found:
            continue
        if len(_rows(found)) > 1:
            known = [each for each in found if each.row is not None and each.row.engine in recorded]
            if len(_rows(known)) == 1:
                return known[0]
            raise ConfigurationError(f"more than one engine was found: {listed(found)}", hint=hint)
        if found[0].row is None:
            raise ConfigurationError(f"the kubelet uses an engine that is not known: {listed(found)}", hint=hint)
        if found[0].row.refused is not None:
            raise ConfigurationError(
                f"{found[0].row.name} is not supported: {listed(found)}", hint=found[0].row.refused
            )
        return found[0]
    raise ConfigurationError("no engine was found: none answers on its socket, and none is installed", hint=hint)


def _rows(found: Sequence[Evidence]) -> set[str | None]:
    return {each.row.name if each.row is not None else None for each in found}


def listed(seen: Sequence[Evidence]) -> str:
    """Return the evidence in words, each once."""
    return "; ".join(dict.fromkeys(each.words for each in seen))


def _weighed(found: Sequence[Evidence]) -> list[Evidence]:
    supported = [each for each in found if each.row is None or each.row.refused is None] or list(found)
    docker = any(each.row is not None and each.row.engine is EngineName.DOCKER for each in supported)
    return [each for each in supported if not (docker and each.lesser)]


def gather_evidence(node: Node, settings: Settings) -> tuple[Evidence, ...]:
    """Return all evidence on the node, the strongest kind first, each kind in the table's order."""
    return (
        *evidence.of_kubelets(node),
        *evidence.of_options(node),
        *evidence.of_sockets(node, settings, names()),
        *evidence.of_installations(node, settings, names()),
    )


def detect(
    node: Node,
    settings: Settings,
    seen: tuple[Evidence, ...] | None = None,
    recorded: Collection[EngineName] = (),
) -> tuple[EngineTarget, ...]:
    """Return what is to be configured: the engines that were named, else the one that the node has. Log why.

    `seen`: what `gather_evidence` returned, if that was asked already. `recorded`: as in `choose`. Raises
    ConfigurationError.
    """
    if settings.runtimes:
        return locate(node, settings, settings.runtimes)
    seen = gather_evidence(node, settings) if seen is None else seen
    return (_logged(_target(settings, choose(seen, recorded=recorded), seen)),)


def locate(node: Node, settings: Settings, engines: Sequence[EngineName]) -> tuple[EngineTarget, ...]:
    """Return where the node has these engines, which are taken as named. Log what is not as usual.

    Raises ConfigurationError for one that contradicts what is on the node.
    """
    kubelets = evidence.of_kubelets(node) or evidence.of_options(node)
    return tuple(_logged(_named(node, settings, engine, kubelets, engines)) for engine in engines)


def all_installed(settings: Settings, seen: tuple[Evidence, ...]) -> Iterator[EngineTarget]:
    """Yield a target for each engine and distribution that the evidence speaks for, where none of them is at work."""
    found = {each.row.name: each for each in _weighed(seen) if each.row is not None and each.row.refused is None}
    for each in found.values():
        yield _target(settings, each, seen)


def refuse_without_nri(node: Node) -> None:
    """Raise ConfigurationError where a kubelet of the node uses docker, which asks no NRI plugin.

    docker's own containerd may take a plugin all the same, and asks it about none of docker's containers.
    """
    kubelets = evidence.of_kubelets(node) or evidence.of_options(node)
    found = [each for each in kubelets if each.row is not None]
    if any(each.row is not None and each.row.engine is EngineName.DOCKER for each in found):
        raise ConfigurationError(
            f"docker asks no NRI plugin about its containers, and it is this node's engine: {listed(found)}",
            hint="nothing was changed; leave --enable-nri-plugin out on such nodes: they need the handlers",
        )


def _logged(target: EngineTarget) -> EngineTarget:
    row = target.distribution
    if row is not None and (target.recognised or row is not usual_row(target.name)):
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
    """Return one of `engines`, which were asked for by name. Raises ConfigurationError for a contradiction.

    What --config or --socket say is the user's own word, and contradicts nothing.
    """
    asked = settings.asked_of(engine)
    if asked.config is not None:
        why = f"--runtime {engine} with a file of its own"
        return EngineTarget(engine, asked, distribution=usual_row(engine), why=why)
    if asked.socket is not None:
        row = evidence.row_of(node, asked.socket, None) if with_socket(asked.socket) else None
        if row is None or row.engine is not engine:
            row = usual_row(engine)
        met = Evidence(Kind.LIVE, row, f"--runtime {engine} on {asked.socket}", asked.socket)
        return _target(settings, met, (met,), named=True)
    if kubelets and not any(each.row is not None and each.row.engine in engines for each in kubelets):
        raise _contradiction(engine, kubelets)
    seen = (*kubelets, *evidence.of_installations(node, settings, (engine,)))
    seen = tuple(each for each in seen if each.row is not None and each.row.engine is engine)
    rows = {each.row.name for each in _weighed(seen) if each.row is not None}
    if not rows or (len(rows) > 1 and not any(each.kind in _OF_KUBELETS for each in seen)):
        # where nothing speaks for it, only who is there already can contradict
        live = evidence.of_sockets(node, settings, (engine,) if rows else names(), starting=bool(rows))
        seen = (*seen, *live)
    mine = [each for each in seen if each.row is not None and each.row.engine is engine]
    if not mine and seen:
        raise _contradiction(engine, seen)
    if not mine:
        return EngineTarget(engine, asked, distribution=usual_row(engine), why=f"--runtime {engine}")
    hint = f"name the one that is meant with --socket or --config: more than one {engine} is on this node"
    return _target(settings, choose(mine, hint), seen, named=True)


def _contradiction(engine: EngineName, seen: Sequence[Evidence]) -> ConfigurationError:
    return ConfigurationError(
        f"--runtime {engine} contradicts what is on the node: {listed(seen)}",
        hint=f"use --runtime auto; if {engine} is meant all the same, name its --socket or --config",
    )


def _target(settings: Settings, found: Evidence, seen: tuple[Evidence, ...], *, named: bool = False) -> EngineTarget:
    """Return the engine that the evidence speaks for, with its row's own places where its process does not tell them.

    `named`: it was asked for by name.
    """
    row = found.row
    assert row is not None  # noqa: S101  # choose() refuses evidence without one
    usual = row is usual_row(row.engine)
    socket = None if usual else row.socket
    if row.engine is not EngineName.DOCKER and found.socket is not None:
        # a kubelet may name another socket than the usual one
        socket = None if usual and plain(found.socket) == plain(row.socket) else found.socket
    config = None if usual or _told(seen, row) else row.config
    asked = settings.asked_of(row.engine)
    return EngineTarget(row.engine, asked, config, socket, not named, row, found.words)


def _told(seen: Sequence[Evidence], row: Distribution) -> bool:
    """Tell whether a process of this row names its own file: its data may lie elsewhere than usual."""
    processes = [each.process for each in seen if each.row is row and each.process is not None]
    if not processes:
        return False
    from toolkit_installer.engines.containerd import files  # noqa: PLC0415  # a node without one needs none of it

    return any(files.config_of(process, "") for process in processes)
