"""How often the engine may be reloaded for installing: a crash-looping pod must not take it down with it.

The times are kept in a small file of the node beside the PID file. It survives cleanup, which is what a crash loop
does each time, and it expires by itself: with the boot, and with the time that the budget speaks of.

An install that was done and served, and was then taken back on purpose (by `uninstall`, or because the DaemonSet is
gone), was no part of such a loop: its reloads count no more, so that whoever tries something out is not stopped. They
are remembered all the same, as a label that comes and goes makes a loop of such installs, too: of them there may be
four times as many. A cleanup for any other reason, such as a TERM, forgives nothing: it may be the reload that caused
it.

A run that a person starts in a shell is no part of a loop either: its reloads are remembered with these.

Decides whether the engines may be reloaded now, and keeps what is waited for if not.

Asked before anything of a change is written: while it waits, a node stays as it was, so that neither a kill nor an
engine that somebody else restarts meets a change that is half made. Cleanup and rollback are never asked about.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer import log
from toolkit_installer.applying.reload_windows import IDLE, NOW, Pending
from toolkit_installer.errors import ConfigurationError, InstallerError
from toolkit_installer.node import idling, machine, terminal
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.planning import plan as plan_of
from toolkit_installer.settings import Settings

if TYPE_CHECKING:
    from toolkit_installer.applying.gpu_containers import Busy, Watched
    from toolkit_installer.planning.prepare import Prepared


FILE = "toolkit-installer.reloads"
_MODE = 0o644
_COUNTING, _FORGIVEN = "reloads", "taken_back"
"""The keys of the file. Packages that know the first alone forget the others when they write it."""
_WITH_FORGIVEN = 4
"""How many times the budget the sum of counted and forgiven reloads may be."""


class Reloads(msgspec.Struct, frozen=True):
    """Seconds since the boot at which reloads for installing were made: those that count, and the others."""

    counting: tuple[float, ...] = ()
    forgiven: tuple[float, ...] = ()


def remembered(content: bytes, boot: str, now: float, seconds: float) -> Reloads:
    """Return the times of this boot that are not over. What cannot be read is nothing. Pure."""
    return Reloads(*(recent(content, boot, now, seconds, key) for key in (_COUNTING, _FORGIVEN)))


def recent(content: bytes, boot: str, now: float, seconds: float, key: str = _COUNTING) -> tuple[float, ...]:
    """Return one list of times, as `remembered` does. Pure."""
    try:
        body = json.loads(content)
        if body["boot"] != boot:
            return ()
        return tuple(float(time) for time in body[key] if now - seconds < time <= now)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def refusal(times: Sequence[float], now: float, budget: tuple[int, float], why: str = "") -> str | None:
    """Return why another reload is refused, None if it is not. Pure."""
    count, seconds = budget
    if len(times) < count:
        return None
    wait = sorted(times)[-count] + seconds - now
    return (
        f"the engine was reloaded {len(times)} times for installing within {seconds:g} s{why}, which is the limit: "
        f"the next one is possible in {wait:.0f} s"
    )


def refusal_of_any(reloads: Reloads, now: float, budget: tuple[int, float]) -> str | None:
    """Return why another reload is refused, be it for those that count or for all, None if it is not. Pure."""
    count, seconds = budget
    every = (*reloads.counting, *reloads.forgiven)
    why = ", and what was installed was taken back each time"
    return refusal(reloads.counting, now, budget) or refusal(every, now, (count * _WITH_FORGIVEN, seconds), why)


class ReloadBudget:
    """The budget of one node."""

    def __init__(self, files: Files, pid_path: str, budget: tuple[int, float]) -> None:
        self.files = files
        self.path = os.path.join(os.path.dirname(files.in_folder(pid_path)), FILE)
        self.budget = budget

    def tidy(self) -> None:
        """Remove what a killed run left half written beside the file. Raises NodeError."""
        self.files.sweep(self.path)

    def require_reload(self) -> None:
        """Raise ConfigurationError if the budget is used up."""
        reason = refusal_of_any(self._reloads(), machine.boot_seconds(), self.budget)
        if reason is not None:
            raise ConfigurationError(
                reason,
                path=self.path,
                hint="something makes the installer start over and over: look at why it ends; nothing was changed; "
                "--reload-budget N/SECONDS sets another limit, removing the file forgets the past",
            )

    def spend(self) -> None:
        """Record a reload that is about to be made. Raises NodeError."""
        reloads, now = self._reloads(), machine.boot_seconds()
        if terminal.is_a_persons():
            self._write(Reloads(reloads.counting, (*reloads.forgiven, now)))
        else:
            self._write(Reloads((*reloads.counting, now), reloads.forgiven))

    def forgive(self) -> None:
        """Stop counting the reloads of a change that was served, and has been reverted on purpose. Raises NodeError."""
        # it is written whatever it says: what is done to the node must not depend on how long ago the reloads were
        if self.files.read_file(self.path) is not None:
            reloads = self._reloads()
            self._write(Reloads((), (*reloads.forgiven, *reloads.counting)))

    def _write(self, reloads: Reloads) -> None:
        times = {_COUNTING: reloads.counting, _FORGIVEN: reloads.forgiven}
        body = {"boot": machine.boot_id()} | {
            key: list(each) for key, each in times.items() if each or key == _COUNTING
        }
        self.files.overwrite(self.path, json.dumps(body).encode() + b"\n", own_metadata(_MODE))

    def _reloads(self) -> Reloads:
        content = self.files.content(self.path)
        return remembered(content or b"", machine.boot_id(), machine.boot_seconds(), self.budget[1])


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
