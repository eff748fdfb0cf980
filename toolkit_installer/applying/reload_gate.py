"""Decides whether the engines may be reloaded now, and keeps what is waited for if not.

Asked before anything of a change is written: while it waits, a node stays as it was, so that neither a kill nor an
engine that somebody else restarts meets a change that is half made. Cleanup and rollback are never asked about.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer import log
from toolkit_installer.applying.reload_windows import IDLE, NOW, Pending
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import idling, machine
from toolkit_installer.node.node import Node
from toolkit_installer.planning import plan as plan_of
from toolkit_installer.settings import Settings

if TYPE_CHECKING:
    from toolkit_installer.applying.gpu_containers import Busy, Watched
    from toolkit_installer.planning.prepare import Prepared


class ReloadPendingError(ConfigurationError):
    """A reload is due and not allowed yet; nothing of the engines was changed."""


class ReloadGate:
    """Of one run."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self._when = settings.reload_when
        self._node = node
        self.pending: Pending | None = None
        """What is waited for, as far as the last look went."""
        self.watched: Watched = ()
        """Paths that change when it may be over, with their identities from that look."""

    def require(self, seen: Prepared) -> None:
        """Raise ReloadPendingError where a reload is due and not allowed now; say so, unless that was said.

        Raises ConfigurationError, NodeError for a time zone that cannot be read; Stopped.
        """
        waited, self.watched = self.pending, ()
        pending = self.looked_at(seen)
        if pending is None:
            if waited is not None and due(seen):
                log.get().info(
                    "The reload is allowed now", key="reload-allowed", engine=_named(waited), since=_text(waited.since)
                )
            self.pending = None
            return
        self._wait_for(pending)
        raise ReloadPendingError(
            f"the reload of {_named(pending)} is not allowed yet: {pending.reason}",
            hint="nothing was changed; start it again then, or with --reload-when now",
        )

    def _wait_for(self, pending: Pending) -> None:
        """Note what is waited for, and say it once, and when the reason is another one."""
        waited, self.pending = self.pending, pending
        if waited is None:
            log.get().warning(
                "A reload is pending: nothing of this change is made before it is allowed (--reload-when)",
                key="reload-pending",
                engine=_named(pending),
                why=pending.reason,
                since=_text(pending.since),
            )
        elif waited.reason != pending.reason:
            log.get().info(
                "The reload is still pending, for another reason",
                key="reload-still-pending",
                engine=_named(pending),
                why=pending.reason,
                since=_text(pending.since),
            )

    def looked_at(self, seen: Prepared) -> Pending | None:
        """Return what a change would have to wait for, None where it may be made now. Raises likewise."""
        engines = due(seen)
        if not engines or self._when == NOW:
            return None
        since = self.pending.since if self.pending is not None else machine.now()
        served = _served(seen)
        if self._when != IDLE:
            closed = self._closed()
            return Pending(engines, closed[0], since, closed[1], served) if closed is not None else None
        found = self._busy(seen)
        self.watched = found.watched
        return Pending(engines, f"the node is not idle: {found.words}", since, None, served) if found.why else None

    def is_worth_a_look(self, events: Collection[str]) -> bool:
        """Tell whether what is waited for may be over, after these events of `idling`.

        An engine that somebody restarted may serve what it is to serve by now.
        """
        if self.pending is None or not {idling.BUSY, idling.ENGINE, idling.LATER}.intersection(events):
            return False
        if idling.ENGINE in events or self._when in (NOW, IDLE):
            return True
        try:
            closed = self._closed()
        except InstallerError:
            return True  # a look says what is wrong
        if closed is not None:  # somebody may have set the clock, or the time zone
            reason, opens = closed
            self._wait_for(msgspec.structs.replace(self.pending, reason=reason, opens=opens))
        return closed is None

    def seconds(self) -> float | None:
        """Return in how many seconds the next window opens, None where none is waited for, or one is open already."""
        opens = self.pending.opens if self.pending is not None else None
        remaining = opens - machine.now() if opens is not None else 0.0
        return remaining if remaining > 0 else None

    def _closed(self) -> tuple[str, float | None] | None:
        """Return in words that no window is open, and when the next one is; None where one is open."""
        from toolkit_installer.applying import reload_windows  # noqa: PLC0415  # few runs wait for one
        from toolkit_installer.node import machine  # noqa: PLC0415  # likewise

        name, of_node = machine.of_node(self._node)
        asked, now = reload_windows.parsed(self._when), machine.now()
        if reload_windows.is_open(asked, now, of_node):
            return None
        opens = reload_windows.opens(asked, now, of_node)
        when = f"the next window opens at {_text(opens)}" if opens is not None else "it never opens"
        return f"it is outside of {self._when} ({name}, the node's time zone): {when}", opens

    def _busy(self, seen: Prepared) -> Busy:
        from toolkit_installer.applying import gpu_containers  # noqa: PLC0415  # few runs wait for that

        unseen = [
            work.name
            for work in seen.plan.engines
            if work.inspection.live is not None and work.inspection.live.process is None
        ]
        if unseen:
            why = f"the containers of {', '.join(unseen)} cannot be seen from here (hostPID: true)"
            return gpu_containers.Busy((why,))
        recorded = seen.receipt.engines if seen.receipt is not None else ()
        by_default = any(record.default in dict(record.handlers) for record in recorded)
        return gpu_containers.look(self._node, seen.plan.toolkit.folder, by_default=by_default)


def due(seen: Prepared) -> tuple[str, ...]:
    """Return the engines that a change would reload, those that are given back with it too. Pure."""
    recorded = seen.receipt.engines if seen.receipt is not None else ()
    names = [str(work.name) for work in seen.plan.engines if work.reload_why]
    given_back = [str(record.name) for record in plan_of.superseded(recorded, seen.plan)]
    moved = plan_of.moved(recorded, seen.plan.engines)
    return tuple(dict.fromkeys([*names, *given_back, *([str(moved.name)] if moved is not None else [])]))


def _served(seen: Prepared) -> bool:
    """Tell whether all engines serve already what they are to serve. Pure."""
    answers = [(work, work.inspection.live) for work in seen.plan.engines]
    return all(live is not None and not plan_of.differences(live, work.desired) for work, live in answers)


def _named(pending: Pending) -> str:
    return ", ".join(pending.engines)


def _text(seconds: float) -> str:
    return machine.text(seconds)
