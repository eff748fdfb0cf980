"""No handler is taken from an engine whose pods need it to be stopped and deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection

from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import EngineSilentError, Live
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.errors import ConfigurationError, EngineDownError
from toolkit_installer.lifecycle.plan import EngineWork
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import EngineRecord

_SHOWN = 10


def handlers_of_ours(
    folder: str, record: EngineRecord | None, staying: Collection[str] = ()
) -> Callable[[Live], set[str]]:
    """Return what names the handlers of ours that a live engine has, but for those in `staying`.

    They are known by their path in the toolkit's `folder`, or, where the engine tells none, by the engine's record.
    """
    recorded = dict(record.handlers) if record is not None else {}

    def ours(live: Live) -> set[str]:
        own = {name for name, path in live.handlers.items() if beneath(path, folder) and name not in live.own}
        unknown = {name for name, path in live.handlers.items() if path is None and name in recorded}
        return (own | unknown).difference(staying)

    return ours


def refuse(node: Node, work: EngineWork, is_ours: Callable[[Live], set[str]], hint: str) -> None:
    """Raise ConfigurationError where pods of a handler of ours would be stranded once the engine's files are changed.

    `hint` says what to do when these pods are gone. Raises EngineDownError for an engine that does not say its pods.
    """
    try:
        pods = adapter_of(work.name).stranded(node, work.inspection, work.desired.files, is_ours)
    except EngineSilentError as error:
        raise EngineDownError(
            f"{error.reason}: they may need a handler that is to go", path=error.path, hint=f"look at its log; {hint}"
        ) from error
    if not pods:
        return
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    raise ConfigurationError(
        f"{work.name} could neither stop nor delete pods that were started through a handler that is to go: "
        f"{', '.join(pods[:_SHOWN])}{more}",
        hint=f"nothing of {work.name} was changed; delete these pods, the completed ones too, {hint}",
    )
