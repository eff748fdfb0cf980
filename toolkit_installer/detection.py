"""Which engine the node runs, by what is seen there. Ambiguity is an error that lists the evidence."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from toolkit_installer import log
from toolkit_installer.engines import answering
from toolkit_installer.engines.base import EngineSilentError
from toolkit_installer.engines.rooms import ROOMS
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName, Settings

_ENDPOINT_FLAG = "--container-runtime-endpoint"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What speaks for an engine. `words` is for people."""

    engine: EngineName
    words: str


@dataclasses.dataclass(frozen=True)
class Seen:
    """All evidence of a node, the strongest kind first."""

    kubelet: tuple[Evidence, ...] = ()
    live: tuple[Evidence, ...] = ()
    files: tuple[Evidence, ...] = ()


def choose(seen: Seen) -> Evidence:
    """Return the evidence that decides: the kubelet's choice, else the one live engine, else the one with files.

    Pure. Raises ConfigurationError, listing the evidence, where it decides nothing.
    """
    for kind in (seen.kubelet, seen.live, seen.files):
        engines = {evidence.engine for evidence in kind}
        if len(engines) == 1:
            return kind[0]
        if engines:
            found = "; ".join(evidence.words for evidence in kind)
            raise ConfigurationError(f"more than one engine was found: {found}", hint=_HINT)
    raise ConfigurationError("no engine was found: none answers on its socket, and none has a file", hint=_HINT)


_HINT = "say which one with --runtime docker or --runtime containerd"


def detect(node: Node, settings: Settings) -> EngineName:
    """Return the node's engine, and log why. Raises ConfigurationError."""
    decided = choose(look(node, settings))
    log.get().info("Recognised the engine", engine=decided.engine, why=decided.words)
    return decided.engine


def look(node: Node, settings: Settings) -> Seen:
    """Return the evidence on the node."""
    live = []
    files = []
    # one deadline for all: an engine that hangs must not make the others wait for it each time
    deadline = time.monotonic() + settings.reload_timeout
    for name, room in ROOMS.items():
        own = settings.for_engine(name).engine
        socket = own.socket or room.socket
        try:
            # one that is starting counts as well: what the node is must not depend on who was up first
            version = answering.wait(room, node, socket, deadline - time.monotonic()).version
            live.append(Evidence(name, f"{name} {version} answers on {socket}"))
        except EngineSilentError as error:
            log.get().debug("The engine does not answer", engine=name, reason=str(error))
        config = own.config or room.config
        if node.files.is_file(config):
            files.append(Evidence(name, f"{name} has {config}"))
    kubelet = (
        () if node.root.folder != "/" and not live else _kubelet({name: room.socket for name, room in ROOMS.items()})
    )
    return Seen(kubelet, tuple(live), tuple(files))


def _kubelet(sockets: Mapping[EngineName, str]) -> tuple[Evidence, ...]:
    """Return what a running kubelet was told to use."""
    found = []
    for process in processes.named(frozenset({"kubelet"})):
        endpoint = endpoint_of(process.arguments)
        for name, socket in sockets.items():
            if endpoint is not None and endpoint.removeprefix("unix://").endswith(socket.rpartition("/")[2]):
                found.append(Evidence(name, f"the kubelet (PID {process.pid}) uses {endpoint}"))
    return tuple(found)


def endpoint_of(arguments: Sequence[str]) -> str | None:
    """Return the kubelet's --container-runtime-endpoint, None if it was given none. Pure."""
    return processes.flag_value(arguments, _ENDPOINT_FLAG)
