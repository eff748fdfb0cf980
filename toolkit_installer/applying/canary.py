"""The canary: once an engine was reloaded, one short container through each handler shows whether a pod's would start.

An engine that serves a handler has not run it yet: a program that does not fit the node's C library, a hook that fails,
or a list of handlers that the engine does not act by, show when a container is created, and no sooner.
"""

from __future__ import annotations

from toolkit_installer import foreign_words, log
from toolkit_installer.applying.reload import NotServedError
from toolkit_installer.driver import roots
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.api import EngineSilentError, Live
from toolkit_installer.engines.ownership import beneath
from toolkit_installer.node.node import Node
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.settings import Settings

_USUAL = ("runc", "crun")
_CONTROL_DEVICE = "/dev/nvidiactl"
"""Is there once the driver's kernel module is loaded."""


def verify(node: Node, work: EngineWork, settings: Settings, folder: str) -> None:
    """Start a short container through each handler of an engine that serves them, and see it run.

    `folder` is the toolkit's. What cannot be tried at all is logged as a warning, and no failure. Raises NotServedError
    for a handler that does not work, Stopped.
    """
    engine = adapter_of(work.name)
    seconds = settings.reload_timeout
    try:
        live = engine.ask(node, work.inspection.socket, seconds)
        control = _control(live, work, folder)
        shown = _shows_gpus(node, settings)
        ours = {name: shown and name == settings.asked_of(work.name).runtime_name for name in work.desired.served}
        trials = engine.try_handlers(node, work.inspection.socket, seconds, {control: False, **ours})
    except EngineSilentError as error:
        raise NotServedError(f"no container could be tried: {error.reason}", answers=False) from error
    unknown = trials.unknown
    if control in trials.faults:  # where a container cannot be started at all, no handler is to blame
        unknown = f"none starts through {control or 'the default handler'} either: {trials.faults[control]}"
    if unknown:
        log.get().warning(
            "No container could be tried: whether the handlers work is not known",
            key="canary-impossible",
            engine=work.name,
            reason=foreign_words.of_program(unknown),
        )
        return
    if trials.faults:
        faults = "; ".join(
            f"through {name}: {foreign_words.of_program(fault)}" for name, fault in trials.faults.items()
        )
        raise NotServedError(f"a container does not start {faults}", answers=True)
    log.get().info(
        "A container was started through each handler, and removed again",
        key="canary",
        engine=work.name,
        handlers=",".join(ours),
        gpus=any(ours.values()),
    )


def _control(live: Live, work: EngineWork, folder: str) -> str:
    """Return a handler that is none of ours, the usual ones first; empty where the engine names none: its default."""
    others = {
        name
        for name, path in live.handlers.items()
        if name not in work.desired.served and name not in live.own and not beneath(path, folder)
    }
    return next((name for name in (*_USUAL, *sorted(others)) if name in others), "")


def _shows_gpus(node: Node, settings: Settings) -> bool:
    """Tell whether a container that asks for all GPUs by its environment is to see them."""
    asked = settings.toolkit
    if not asked.accept_envvar_when_unprivileged or node.files.status(_CONTROL_DEVICE) is None:
        return False
    return roots.find_driver(node, asked).driver is not None
