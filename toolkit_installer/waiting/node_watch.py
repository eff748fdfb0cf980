"""The driver while a run waits: what changes with it; and in a root that was named, what became of it.

With `--driver-root auto`, or where CDI specifications are made, converging again finds out what a change means. A root
that was named is used unseen instead: nothing on the node depends on what is in it. So it is only looked at, and the
node is not ready from when its driver has gone until there is one again. A driver that is yet to come is no reason for
that, nor is one whose nvidia-smi never worked here: not each can be run from here.

A run on a node that shows no GPU (`--without-gpu idle`): it changes nothing, says why, and waits for one to come.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from toolkit_installer import log
from toolkit_installer.driver import gpus, roots
from toolkit_installer.driver.roots import Look
from toolkit_installer.errors import InstallerError
from toolkit_installer.node import idling
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.settings import Settings, WithoutGpu
from toolkit_installer.waiting.wait import Remembered

_REMEDY = (
    "look at the driver container's log, or install the driver there again: the node is ready once nvidia-smi works; "
    "if the driver is elsewhere now, start `run` with another --driver-root"
)


class Seen(enum.StrEnum):
    """The most that was seen of the driver in a root that was named."""

    UNKNOWN = ""
    """Nobody has looked yet."""
    NOTHING = "nothing"
    THERE = "there"
    """nvidia-smi is there, and has not worked so far."""
    WORKING = "working"


class DriverWatch:
    """Knows what to watch of the driver, and whether that of a named root has gone."""

    def __init__(self, settings: Settings, node: Node) -> None:
        toolkit = settings.toolkit
        self.named = not roots.is_looked_for(toolkit) and not toolkit.cdi.enabled
        """The root was named, and what is installed is the same whichever driver it has."""
        self.watched: tuple[tuple[str, str], ...] = ()
        """Paths that change with the driver, with their identities (idling.identity) from before it was looked for."""
        self.away = False
        """There was a driver in the named root, and none is usable there now."""
        self._settings = settings
        self._node = node
        self._seen = Seen.UNKNOWN

    @property
    def seen(self) -> str:
        """What is to be remembered of the named root, beside `watched` and `away`."""
        return str(self._seen)

    def recall(self, remembered: Remembered) -> None:
        """Know again what the process before the idle one knew."""
        self.watched = remembered.driver
        self.away = self.named and remembered.driver_away
        words = remembered.driver_seen
        self._seen = Seen(words) if words in set(Seen) else Seen.UNKNOWN

    def renew(self) -> None:
        """Take the identities before a look at the node; a named root whose driver changed meanwhile is looked at.

        Raises NodeError, Stopped.
        """
        before = self.watched
        self.watched = identified(roots.signs(self._node, self._settings.toolkit))
        if self._seen is not Seen.UNKNOWN and (self.away or self.watched != before):
            self._look()

    def changed(self) -> None:
        """Take it that the paths changed: whatever comes of it, this change is known."""
        self.watched = identified(path for path, _ in self.watched)

    def look_first(self) -> None:
        """Look at a named root for the first time: only what was there can go. Raises NodeError, Stopped."""
        if self.named and self._seen is Seen.UNKNOWN:
            self.watched = self.watched or identified(roots.signs(self._node, self._settings.toolkit))
            self._look()

    def _look(self) -> None:
        """Find out whether the driver in the named root is usable, and say what changed. Raises Stopped."""
        try:
            found = roots.find_driver(self._node, self._settings.toolkit)
            without_gpu = found.driver is None and gpus.find_gpus(self._node).absent
        except InstallerError as error:
            found, without_gpu = Look(None, (str(error),)), False
        usable = found.driver is not None
        gone = not usable and (self._seen is Seen.WORKING or (self._seen is Seen.THERE and found.nothing_there))
        came = usable and (self.away or self._seen in (Seen.NOTHING, Seen.THERE))
        self.away = gone and not without_gpu
        if usable:
            self._seen = Seen.WORKING
        elif self._seen in (Seen.UNKNOWN, Seen.NOTHING):
            self._seen = Seen.NOTHING if found.nothing_there else Seen.THERE
        if came and found.driver is not None:
            roots.say_found(found.driver)
        elif self.away:
            roots.say_gone(self._settings.toolkit.driver_root, found.missing, hint=_REMEDY)


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
