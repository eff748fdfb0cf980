"""The plugin alone in a loop of its own: for who has nothing else to wait for."""

from __future__ import annotations

import selectors
from collections.abc import Callable

from toolkit_installer.nri.connection import Lost, Plugin
from toolkit_installer.nri.session import Event


def serve(plugin: Plugin, tell: Callable[[Event | Lost], None], stop: int) -> None:
    """Run the plugin until the descriptor `stop` can be read; `tell` hears what happens, and is not to wait."""
    try:
        while True:
            stopping, ready = _wait(plugin, stop)
            if stopping:
                return
            for event in [*(plugin.ready() if ready else ()), *plugin.due()]:
                tell(event)
    finally:
        plugin.close()


def _wait(plugin: Plugin, stop: int) -> tuple[bool, bool]:
    """Wait until there is something to do; return whether to stop, and whether the engine's connection is ready."""
    connection = plugin.fileno()
    with selectors.PollSelector() as selector:
        selector.register(stop, selectors.EVENT_READ)
        if connection is not None:
            selector.register(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if plugin.writing else 0))
        found = {key.fd for key, _ in selector.select(plugin.patience())}
    return stop in found, connection in found
