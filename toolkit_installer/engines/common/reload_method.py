"""How an engine is reloaded: decided before anything is written, the same way for every engine.

What the canaries of all engines have in common: how one asks for GPUs, and whether it has got any.
"""

from __future__ import annotations

from toolkit_installer import log
from toolkit_installer.engines.api import Inspection, Reload
from toolkit_installer.engines.common.serving import PROCESS_NAMES, process_of
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.node import processes
from toolkit_installer.node.disk.reading import Reader
from toolkit_installer.node.disk.root import NodeError
from toolkit_installer.node.node import Node
from toolkit_installer.settings import EngineName, ReloadMode


def decide(
    node: Node, engine: EngineName, inspection: Inspection, asked: ReloadMode | None, usual: ReloadMode
) -> Reload:
    """Return how to reload: as asked, else the engine's usual way.

    Nothing is reloaded where no such engine runs: it reads its files when it starts.
    Raises ConfigurationError where the engine should answer and does not, or cannot be reloaded as asked.
    """
    mode = asked or usual
    if mode is ReloadMode.NONE:
        return Reload(ReloadMode.NONE)
    if inspection.live is None:
        running = process_of(node, engine, inspection.socket)
        if asked is None and running is None:
            log.get().info(
                "The engine does not answer: it reads its files when it starts",
                key="engine-reads-at-start",
                engine=engine,
                socket=inspection.socket,
                reason=inspection.silence,
            )
            return Reload(ReloadMode.NONE)
        detail = f", although {engine} runs with PID {running.pid}" if running is not None else ""
        raise ConfigurationError(
            f"{engine} does not answer on its socket{detail}: {inspection.silence}",
            path=inspection.socket,
            hint=f"start {engine}, mount its socket's folder and name it with --socket, or use --restart-mode none",
        )
    process = inspection.live.process
    if process is None:
        raise ConfigurationError(
            f"the process of {engine} behind the socket cannot be seen from here",
            path=inspection.socket,
            hint="run with `hostPID: true`, or use --restart-mode none",
        )
    if mode is ReloadMode.SIGNAL:
        if process.name not in PROCESS_NAMES[engine]:
            raise ConfigurationError(
                f"the process behind the socket is {process.name!r} (PID {process.pid}), not {engine}: not signalled",
                path=inspection.socket,
                hint="check --socket, or use --restart-mode none",
            )
        return Reload(ReloadMode.SIGNAL)
    unit = process.unit
    if unit is None:
        raise ConfigurationError(
            f"the process of {engine} belongs to no systemd service, so it cannot be restarted",
            hint="use --restart-mode none and restart it yourself",
        )
    if not node.services.knows(unit):
        raise ConfigurationError(
            f"the node's systemd cannot be asked about {unit}, the unit of {engine}",
            hint="mount the node's / at --host-root, or use --restart-mode none and restart it yourself",
        )
    return Reload(ReloadMode.SYSTEMD, unit, restarts=True)


CANARY_NAME = "toolkit-installer-canary"
GPU_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
"""What a container's environment asks NVIDIA's runtime for GPUs by."""


def asking(*, shows_gpus: bool) -> str:
    """Return the variable's value for a container that is to see all GPUs, or none. Pure."""
    return "all" if shows_gpus else "void"


def without_gpus(pid: int) -> str:
    """Return in words that the container of a process shows no GPU.

    Empty where it shows one, and where it cannot be seen: this may not be among the node's processes.
    """
    process = processes.inspect_process(pid)
    if process is None:
        return ""
    try:
        shown = Reader(processes.root_of(process)).list("/dev")
    except NodeError:
        return ""
    if any(name.startswith("nvidia") for name in shown):
        return ""
    return f"a container that asks for all GPUs ({GPU_VARIABLE}=all) has no device of NVIDIA's in its /dev"
