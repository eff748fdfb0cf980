"""Asking an engine, and waiting for one that runs and does not answer: it may be starting, and is not gone."""

from __future__ import annotations

import os

from toolkit_installer import log
from toolkit_installer.engines.api import Engine, EngineSilentError, Live
from toolkit_installer.engines.common.serving import process_of
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import clock, processes, signals
from toolkit_installer.node.disk.root import NodeError, Root
from toolkit_installer.node.node import Node
from toolkit_installer.node.sockets import StrangerError, home_of, refuse_strangers

_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
SILENCE = "it did not answer in time"


class NoAnswerError(InstallerError):
    """An engine did not answer. The text is its own, or the connection's."""


def words(error: BaseException, *timeouts: type[BaseException]) -> str:
    """Return in words what became of a question: libraries wrap an error, and show the one within as Python writes it.

    `timeouts`: what a library says in place of TimeoutError.
    """
    within: BaseException | None = error
    while within is not None:
        error = within
        if isinstance(error, (TimeoutError, *timeouts)):
            return SILENCE  # for how long differs each time, and what is told twice is to read the same
        within = next((each for each in error.args if isinstance(each, BaseException)), None)
    said = error.strerror if isinstance(error, OSError) else None
    return said or str(error) or type(error).__name__


def place_of_socket(root: Root, path: str) -> str:
    """Return where the node's socket is that may be asked. Raises NoAnswerError."""
    home, inner = home_of(root, path)
    try:
        place = home.outside(home.canonical(inner))
        if os.path.lexists(place):
            refuse_strangers(root, path)
            return place
    except (NodeError, StrangerError) as error:
        raise NoAnswerError(error.reason, path=path, hint=error.hint) from error
    raise NoAnswerError("there is no such socket", path=path)


class EngineBrokenError(EngineSilentError):
    """The engine's process serves, but not what is asked of it, and will not without another start."""


def heard(engine: Engine, node: Node, socket: str, seconds: float) -> tuple[Live | None, str]:
    """Return what the engine says once it has had that long to answer, else None and what was heard. Raises Stopped."""
    try:
        return wait(engine, node, socket, seconds), ""
    except EngineSilentError as error:
        return None, error.reason


def wait(engine: Engine, node: Node, socket: str, seconds: float) -> Live:
    """Ask the engine; while a process runs that should answer there, ask again for `seconds`.

    Raises EngineSilentError, and Stopped when a signal is pending that asks the installer to stop: it stays pending.
    """
    deadline = clock.monotonic() + seconds
    told = False
    while True:
        remaining = deadline - clock.monotonic()
        try:
            return engine.ask(node, socket, max(1.0, min(_ASK_SECONDS, remaining)))
        except EngineSilentError as error:
            processes.look_again()  # it may have been started since
            starting = None if isinstance(error, EngineBrokenError) else process_of(node, engine.name, socket)
            if starting is None or clock.monotonic() >= deadline:
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
        signals.rest(_PAUSE_SECONDS)
