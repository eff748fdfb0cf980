"""Waiting for the driver: logs what is missing, and shows it in a status line on a terminal. Changes nothing."""

from __future__ import annotations

import math
import signal
import time

from toolkit_installer import log
from toolkit_installer.driver import gpus, roots
from toolkit_installer.driver.roots import Driver
from toolkit_installer.errors import DriverNotReadyError
from toolkit_installer.node import signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import Stopped
from toolkit_installer.node.terminal import StatusLine
from toolkit_installer.settings import Settings, WithoutGpu

_PROBE_SECONDS = 3.0
_TICK_SECONDS = 1.0
_LOG_SECONDS = 60.0
"""How often an unchanged state is logged again."""


def wait_for_driver(node: Node, settings: Settings, seconds: float | None) -> Driver | None:
    """Return the driver once it is usable, within `seconds` (None: without a limit).

    With `--without-gpu idle`, return None once the node has no GPU. SIGHUP makes it probe the driver at once. Raises
    DriverNotReadyError after `seconds`, and Stopped on another signal.
    """
    progress = StatusLine(on=settings.log_format is None)
    try:
        return _wait(node, settings, seconds, progress)
    finally:
        progress.clear()


def _wait(node: Node, settings: Settings, seconds: float | None, progress: StatusLine) -> Driver | None:
    began = time.monotonic()
    said: tuple[str, ...] | None = None
    said_at = began
    while True:
        left = math.inf if seconds is None else began + seconds - time.monotonic()
        seen = roots.find_driver(node, settings.toolkit, min(roots.PROOF_SECONDS, max(_TICK_SECONDS, left)))
        now = time.monotonic()
        if seen.driver is not None:
            return seen.driver
        if settings.without_gpu is WithoutGpu.IDLE and gpus.find_gpus(node).absent:
            return None
        if seen.missing != said or now - said_at >= _LOG_SECONDS:
            progress.clear()
            log.get().info(
                "Waiting for the driver",
                key="waiting-for-driver",
                elapsed=_duration(now - began),
                missing="; ".join(seen.missing),
            )
            said, said_at = seen.missing, now
        if seconds is not None and now - began >= seconds:
            raise DriverNotReadyError(
                f"the driver did not become ready within {seconds:g} s: {'; '.join(seen.missing)}",
                hint="look at the driver container's log, or install the driver on the node; --timeout gives it longer",
            )
        end = now + _PROBE_SECONDS if seconds is None else min(now + _PROBE_SECONDS, began + seconds)
        _sleep(end, began, progress, seen.missing)


def _sleep(end: float, began: float, progress: StatusLine, missing: tuple[str, ...]) -> None:
    """Sleep until `end` or a SIGHUP. Raises Stopped on another signal."""
    while (now := time.monotonic()) < end:
        progress.show(f"Waiting for the driver, {_duration(now - began)}: {'; '.join(missing)}")
        number = signals.take_signal(min(_TICK_SECONDS, end - now))
        if number == signal.SIGHUP:
            return
        if number is not None:
            raise Stopped(number)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
