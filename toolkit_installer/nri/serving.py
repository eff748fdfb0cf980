"""The plugin alone in a loop of its own: for who has nothing else to wait for."""

from __future__ import annotations

import selectors
from typing import Protocol

from toolkit_installer.nri.connection import Lost, Plugin
from toolkit_installer.nri.session import Event


class Listener(Protocol):
    """Receives what happens. Its methods do not wait."""

    def hear(self, event: Event | Lost) -> None:
        """Take what happened."""

    def patience(self) -> float | None:
        """Return after how many seconds `due` is to be called at the latest; None: not before the next event."""

    def due(self) -> None:
        """Do what the time has come for."""


def serve(plugin: Plugin, listener: Listener, stop: int) -> None:
    """Run the plugin until the descriptor `stop` can be read."""
    try:
        while True:
            stopping, ready = _wait(plugin, listener, stop)
            if stopping:
                return
            for event in [*(plugin.ready() if ready else ()), *plugin.due()]:
                listener.hear(event)
            listener.due()
    finally:
        plugin.close()


def _wait(plugin: Plugin, listener: Listener, stop: int) -> tuple[bool, bool]:
    """Wait until there is something to do; return whether to stop, and whether the engine's connection is ready."""
    connection = plugin.fileno()
    pauses = [pause for pause in (plugin.patience(), listener.patience()) if pause is not None]
    with selectors.PollSelector() as selector:
        selector.register(stop, selectors.EVENT_READ)
        if connection is not None:
            selector.register(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if plugin.writing else 0))
        found = {key.fd for key, _ in selector.select(min(pauses, default=None))}
    return stop in found, connection in found
