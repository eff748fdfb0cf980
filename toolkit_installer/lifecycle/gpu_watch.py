"""A run on a node that shows no GPU (`--without-gpu idle`): it changes nothing, says why, and waits for one to come."""

from __future__ import annotations

from collections.abc import Iterable

from toolkit_installer import log
from toolkit_installer.driver import gpus
from toolkit_installer.lifecycle import idling
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.settings import Settings, WithoutGpu

READY = "no NVIDIA GPU: nothing is installed\n"
"""What the ready file says meanwhile."""


class GpuWatch:
    """Decides whether a run leaves a node without a GPU alone, and knows what to watch meanwhile."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self._settings = settings
        self._asked_for = settings.without_gpu is WithoutGpu.IDLE
        self._node = node
        self.idle = False
        """The node is left alone, and the log says so."""
        self.watched: tuple[tuple[str, str], ...] = ()
        """Paths that change when a GPU comes, with their identities (idling.identity) from before the look."""

    def leaves_alone(self, receipt: Receipt | None) -> bool:
        """Tell whether the run is to change nothing. What is installed already is looked after, with or without a GPU.

        Raises NodeError, Stopped.
        """
        self.watched = ()
        if not self._asked_for or receipt is not None:
            self.idle = False
            return False
        watched = identified(gpus.signs(self._node))
        seen = gpus.find_usable_gpus(self._node, self._settings.toolkit)
        if self.idle and not seen.absent:
            log.get().info("The node shows an NVIDIA GPU now", key="gpu-found", gpu=str(seen))
        elif seen.absent and not self.idle:
            log.get().info(
                "This node shows no NVIDIA GPU: nothing is changed here until it does (--without-gpu idle)",
                key="no-gpu",
                gpu=str(seen),
            )
        self.idle = seen.absent
        self.watched = watched if seen.absent else ()
        return seen.absent

    def waits_for_driver(self, receipt: Receipt | None) -> bool:
        """Tell whether the run goes on without a driver that it needs, asleep, until there is one.

        With `--without-gpu idle` it does for a GPU that came later, as nobody else waits for its driver then. What is
        installed stays as it is without a driver, and needs no waiting.
        """
        if not self._settings.daemon:
            return False
        bare = receipt is None or receipt.state is not State.INSTALLED
        return self._settings.wait_for_driver or (self._asked_for and bare)

    def wait_for_driver(self) -> None:
        """Return once a driver is usable: for a run that does not fall asleep. Raises Stopped."""
        from toolkit_installer.driver import waiting  # noqa: PLC0415  # few runs come here

        waiting.wait(self._node, self._settings, None)


def identified(paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the paths, each with its identity as the idle process will compare it."""
    return tuple((path, idling.identity(path)) for path in paths)
