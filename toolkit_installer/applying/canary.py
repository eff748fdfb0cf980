"""After a reload, start one short container through each handler to check that pods would start.

That an engine lists a handler does not prove that it works: a program that does not fit the node's C library, a failing
hook, or a list of handlers that the engine does not act on, show only when a container is created.
"""

from __future__ import annotations

from toolkit_installer import foreign_words, log
from toolkit_installer.applying.reload import NotServedError
from toolkit_installer.driver import roots
from toolkit_installer.engines.adapters import get_adapter
from toolkit_installer.engines.api import EngineSilentError, LiveState
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.node.node import Node
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.settings import Settings

_USUAL_HANDLERS = ("runc", "crun")
_CONTROL_DEVICE = "/dev/nvidiactl"
"""Exists once the driver's kernel module is loaded."""


def verify(node: Node, work: EngineWork, settings: Settings, folder: str) -> None:
    """Start a short container through each handler that the engine serves, and check that it runs.

    `folder` is the toolkit's. If no container can be tried at all, log a warning and return. Raises NotServedError if a
    handler does not work, Stopped.
    """
    engine = get_adapter(work.name)
    seconds = settings.reload_timeout
    try:
        live = engine.ask(node, work.inspection.socket, seconds)
        control = _find_control_handler(live, work, folder)
        shown = _should_show_gpus(node, settings)
        ours = {name: shown and name == settings.asked_of(work.name).runtime_name for name in work.desired.served}
        trials = engine.try_handlers(node, work.inspection.socket, seconds, {control: False, **ours})
    except EngineSilentError as error:
        raise NotServedError(f"no container could be tried: {error.reason}", answers=False) from error
    unknown = trials.unknown
    if control in trials.faults:  # if no container can be started at all, no handler is to blame
        unknown = f"none starts through {control or 'the default handler'} either: {trials.faults[control]}"
    if unknown:
        log.get().warning(
            "No container could be tried: whether the handlers work is not known",
            key="canary-impossible",
            engine=work.name,
            reason=foreign_words.mask_program_text(unknown),
        )
        return
    if trials.faults:
        faults = "; ".join(
            f"through {name}: {foreign_words.mask_program_text(fault)}" for name, fault in trials.faults.items()
        )
        raise NotServedError(f"a container does not start {faults}", answers=True)
    log.get().info(
        "A container was started through each handler, and removed again",
        key="canary",
        engine=work.name,
        handlers=",".join(ours),
        gpus=any(ours.values()),
    )


def _find_control_handler(live: LiveState, work: EngineWork, folder: str) -> str:
    """Return a handler that is not ours, preferring the usual ones; empty: use the engine's default."""
    others = {
        name
        for name, path in live.handlers.items()
        if name not in work.desired.served and name not in live.own and not is_beneath(path, folder)
    }
    return next((name for name in (*_USUAL_HANDLERS, *sorted(others)) if name in others), "")


def _should_show_gpus(node: Node, settings: Settings) -> bool:
    """Return whether a container that requests all GPUs through its environment should see them."""
    asked = settings.toolkit
    if not asked.accept_envvar_when_unprivileged or node.files.status(_CONTROL_DEVICE) is None:
        return False
    return roots.find_driver(node, asked).driver is not None
