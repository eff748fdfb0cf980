"""Whether the node of a waiting instance is ready: the engines serve the handlers, and the toolkit is whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import msgspec

from toolkit_installer import log
from toolkit_installer.engines.adapters import adapter_of
from toolkit_installer.engines.common import answering
from toolkit_installer.lifecycle import drift_report, idle_process, ready_file
from toolkit_installer.lifecycle.plan import mismatches
from toolkit_installer.lifecycle.ready_file import Marker
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.settings import EngineName, OnDrift, Settings

Watched = tuple[tuple[str, str], ...]
"""Paths in the installer's mount namespace, with their identities (idle_process.identity)."""


class Readiness:
    """Keeps the ready file as the node is, and knows what to watch, as that changes with an engine."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self.marker = Marker(settings.ready_file, node.calls)
        self.engine_changed = False
        """An engine was started or stopped while nobody looked."""
        self._settings = settings
        self._node = node
        self._asked: Watched | None = None
        """What changes with the engines, from before they were asked; None: they were not."""

    @property
    def due(self) -> bool:
        """Whether anybody wants to know: a ready file is kept, or an engine changed."""
        return self._settings.ready_file is not None or self.engine_changed

    def mark(self, receipt: Receipt | None) -> None:
        """Ask the engines, and write or remove the ready file. Raises Stopped, NodeError."""
        seen = ask_engines(self._node, receipt, self._settings.reload_timeout)
        self._asked = seen.watched
        damage = self._damage(receipt)
        if seen.wrong or receipt is None or receipt.state is not State.INSTALLED:
            log.get().warning("Not ready: the engines do not serve the handlers", why="; ".join(seen.wrong))
        if damage:
            log.get().warning("Not ready: the toolkit is damaged", why="; ".join(damage))
        if seen.wrong or damage or receipt is None or receipt.state is not State.INSTALLED:
            self.marker.clear()
            return
        if self.engine_changed:
            log.get().info("An engine was started: it serves the handlers")
        self.marker.write(ready_file.described(receipt))

    def _damage(self, receipt: Receipt | None) -> list[str]:
        """Return in words which of the toolkit's files would not work, where they are looked after."""
        if self._settings.on_drift is OnDrift.IGNORE:
            return []
        damage = drift_report.damage(self._settings, self._node, receipt)
        return [f"{each.name}: {each.what}" for each in damage if each.certain]

    def watched(
        self, receipt: Receipt | None, processes: Mapping[EngineName, Process | None]
    ) -> Iterable[tuple[str, str]]:
        """Return what changes with the engines: as they were asked, else as converging saw their `processes`."""
        if self._asked is not None or receipt is None:
            return self._asked or ()
        seen = [each for engine in receipt.engines for each in _process_of(processes.get(engine.name))]
        alive = [(place, identity) for place, identity in seen if identity]  # the others were restarted by us
        return [*alive, *(each for engine in receipt.engines for each in _socket_of(self._node, engine))]


class Answers(msgspec.Struct, frozen=True):
    """Whether all engines serve the handlers: what is `wrong`, and what to watch, as it changes with an engine.

    `watched` are paths in the installer's mount namespace with their identities: the sockets and the processes.
    """

    wrong: tuple[str, ...] = ()
    watched: tuple[tuple[str, str], ...] = ()


def ask_engines(node: Node, receipt: Receipt | None, seconds: float) -> Answers:
    """Ask the engines what they serve; one that is starting gets `seconds`. Raises Stopped on a pending signal."""
    wrong: list[str] = []
    watched: list[tuple[str, str]] = []
    for engine in receipt.engines if receipt is not None else ():
        # taken before the engine is asked: a restart from here on is seen
        watched += _socket_of(node, engine)
        live, heard = answering.heard(adapter_of(engine.name), node, engine.socket, seconds)
        missing = [heard] if live is None else mismatches(live, dict(engine.handlers), engine.default)
        wrong += [f"{engine.name}: {each}" for each in missing]
        watched += _process_of(live.process if live is not None else None)
    return Answers(tuple(wrong), tuple(watched))


def _socket_of(node: Node, engine: EngineRecord) -> list[tuple[str, str]]:
    """Return an engine's socket as it is seen from here, with its identity. Raises NodeError."""
    socket = node.root.outside(node.files.canonical(engine.socket))
    return [(socket, idle_process.identity(socket))]


def _process_of(process: Process | None) -> list[tuple[str, str]]:
    """Return the folder that the kernel shows of an engine's process, with its identity; nothing of none.

    The identity is empty, which nothing ever has, where the process is gone already.
    """
    if process is None:
        return []
    place = f"/proc/{process.pid}"
    return [(place, idle_process.identity(place) if os.path.exists(place) else "")]
