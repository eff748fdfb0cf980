"""Restarting an engine's unit, without waiting for an engine that waits for this process in turn."""

from __future__ import annotations

import time
from collections.abc import Callable

from toolkit_installer.node import processes
from toolkit_installer.node.processes import Process
from toolkit_installer.node.services import Services
from toolkit_installer.node.signals import Attention, Stopped

_END_SECONDS = 5.0
"""What an engine gets to end, once this process is asked to stop, before it is taken to wait for that."""


def runs(process: Process) -> bool:
    """Tell whether this very process still runs."""
    return processes.inspect_process(process.pid) == process


def restart(  # what a restart depends on
    services: Services,
    unit: str,
    seconds: float,
    attention: Attention,
    calls: Process | None,
    tick: Callable[[], None],
) -> None:
    """Have systemd restart the unit within `seconds`, and wait for it; `tick` is called now and then.

    `calls` is the engine's process where it ends only once it has answered every call: whoever asks this process to
    stop by way of such an engine waits for its answer, the engine for that call, and the call for this process.
    Raises Stopped then, as far as it can be told; systemd restarts the unit all the same, as soon as it can. Raises
    ProgramError.
    """
    if calls is None:
        services.restart(unit, seconds=seconds)
        return
    if attention.awaited_by == calls and attention.stop is not None and runs(calls):
        raise Stopped(attention.stop)  # systemd is asked already, and reads what is in place by the time it starts it
    until: float | None = None

    def leave_it_if_it_waits() -> None:
        nonlocal until
        tick()
        attention.take_pending()
        if attention.stop is None or not runs(calls):
            return
        now = time.monotonic()
        until = now + _END_SECONDS if until is None else until
        if now >= until:
            attention.awaited_by = calls
            raise Stopped(attention.stop)

    services.restart(unit, seconds=seconds, meanwhile=leave_it_if_it_waits)
