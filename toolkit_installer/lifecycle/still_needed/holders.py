"""What on the node still needs the toolkit's binaries: containers, what engines offer, and CDI specifications."""

from __future__ import annotations

import errno
from collections.abc import Container, Mapping, Sequence

from toolkit_installer import log
from toolkit_installer.documents import digests
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import EngineSilentError, Live
from toolkit_installer.engines.common import serving
from toolkit_installer.engines.common.answering import EngineBrokenError
from toolkit_installer.engines.detect.table import TABLE
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.lifecycle.still_needed import containers, engine_paths, named_in_files
from toolkit_installer.node import sockets
from toolkit_installer.node.disk.root import NodeError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import EngineRecord
from toolkit_installer.settings import EngineName

_ASK_SECONDS = 5.0


def held(node: Node, folder: str, engines: Sequence[EngineRecord]) -> bool:
    """Tell whether something still needs the toolkit in `folder`, and log what. Raises NodeError.

    A specification of our own is to be gone before.

    `engines`: those that had handlers, which may offer them still, whatever their files say by now. All others that
    the node has are asked as well: somebody else may have registered the toolkit with them.
    """
    others, closed = _others(node, engines)
    live = [words for record in (*engines, *others) for words in _engine(node, folder, record)]
    found = [*live, *closed, *_unseen(node, folder), *holders(node, folder)]
    for holder in found:
        log.get().warning(
            "The toolkit is still needed; `uninstall` removes it later", key="toolkit-needed", folder=folder, why=holder
        )
    return bool(found)


def holders(node: Node, folder: str, ours: Mapping[str, Container[str]] | None = None) -> list[str]:
    """Return in words which containers and specifications refer to the toolkit in `folder`. Raises NodeError.

    `ours`: specifications that count for nothing, by path, as long as they have one of these SHA-256.
    """
    return [*containers.found(node, folder), *_specifications(node, folder, ours or {})]


def _others(node: Node, known: Sequence[EngineRecord]) -> tuple[list[EngineRecord], list[str]]:
    """Return engines on usual sockets without a record, and in words the sockets hidden from us. Raises NodeError."""
    seen = {node.files.canonical(record.socket) for record in known}
    found, unseen = [], []
    usual = [(row.engine, row.socket) for row in TABLE if row.refused is None]
    for engine, socket in dict.fromkeys((*usual, *serving.served(node))):
        try:
            place = node.files.canonical(socket)
        except NodeError as error:
            if error.number != errno.EACCES:
                raise
            # a user's own docker, and root's containerd beside it
            unseen.append(f"{engine} may listen on {socket} (this user may not look there, root may) and offer it")
            continue
        if place not in seen and sockets.listens(node.root, socket):
            found.append(EngineRecord(engine, socket, None, (), None, ()))
        seen.add(place)
    return found, unseen


def _unseen(node: Node, folder: str) -> list[str]:
    """Return what the engines offer whose command line is wiped and whose socket has no usual name.

    All of their sockets are asked: an engine has several, and answers on one of them.
    """
    found = []
    for engine, process, bound in serving.unnamed(node):
        for socket in bound:
            try:
                live = adapter_of(engine).ask(node, socket, _ASK_SECONDS)
            except EngineBrokenError:
                break  # it runs without its CRI, and offers no handler
            except EngineSilentError:
                continue
            found += _offered(engine, live, folder, {})
            break
        else:
            # one that has none yet reads its files when it starts
            words = "has wiped its command line and answers on none of its sockets: it may still offer the handlers"
            found += [f"{process.name} (PID {process.pid}) {words}"] if bound else []
    return found


def _engine(node: Node, folder: str, record: EngineRecord) -> list[str]:
    """Return the handlers in the folder that a live engine offers, or why that cannot be known."""
    try:
        live = adapter_of(record.name).ask(node, record.socket, _ASK_SECONDS)
    except EngineBrokenError:
        return []  # it runs without its CRI, and offers no handler; its containers are looked for by themselves
    except EngineSilentError:
        if not sockets.listens(node.root, record.socket):
            return []  # it reads its files when it starts
        return [f"{record.name} listens on {record.socket} and does not answer: it may still offer the handlers"]
    return _offered(record.name, live, folder, dict(record.handlers))


def _offered(engine: EngineName, live: Live, folder: str, ours: Mapping[str, str]) -> list[str]:
    """Return the handlers in the folder that an engine's answer has, or that its containers cannot be seen."""
    if live.process is None:
        return [f"the containers of {engine} cannot be seen from here (hostPID: true), and may run with it"]
    return [
        f"{engine} still offers the handler {name}: restart it"
        for name, path in live.handlers.items()
        if beneath(path or ours.get(name), folder) and name not in live.own
    ]


def _specifications(node: Node, folder: str, ours: Mapping[str, Container[str]]) -> list[str]:
    """Return the CDI specifications that name something in the folder, as a hook or a mount."""
    found: dict[str, str] = {}
    for files in node.readers():
        for place in engine_paths.CDI_FOLDERS:
            for path in (f"{place}/{name}" for name in files.list(place) if name.endswith((".json", ".yaml"))):
                if not files.is_file(path):
                    continue
                try:
                    specification = files.read_file(path)
                except ConfigurationError as error:
                    found[path] = f"the CDI specification {path} cannot be read, and may name it: {error}"
                    continue
                if specification is None or not named_in_files.names(files, folder, specification.content):
                    continue
                digest = digests.sha256(specification.content)
                if digest not in ours.get(specification.path, ()):
                    found[path] = f"the CDI specification {path} names it"
    return list(found.values())
