"""No handler is taken from an engine whose pods need it to be stopped and deleted."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit_installer.engines.api import Engine, EngineSilentError, Goal, Live
from toolkit_installer.engines.ownership import OurHandlers
from toolkit_installer.errors import ConfigurationError, EngineDownError
from toolkit_installer.node.node import Node

_SHOWN = 10


def refuse(  # all that it depends on
    node: Node, engine: Engine, socket: str, live: Live | None, goals: Sequence[Goal], ours: OurHandlers, hint: str
) -> None:
    """Raise ConfigurationError where pods of a handler of ours would be stranded once the engine's files are `goals`.

    `hint` says what to do when these pods are gone. Raises EngineDownError for an engine that does not say its pods.
    """
    try:
        pods = engine.stranded(node, socket, live, goals, ours)
    except EngineSilentError as error:
        raise EngineDownError(
            f"{error.reason}: they may need a handler that is to go", path=error.path, hint=f"look at its log; {hint}"
        ) from error
    if not pods:
        return
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    raise ConfigurationError(
        f"{engine.name} could neither stop nor delete pods that were started through a handler that is to go: "
        f"{', '.join(pods[:_SHOWN])}{more}",
        hint=f"nothing of {engine.name} was changed; delete these pods, the completed ones too, {hint}",
    )
