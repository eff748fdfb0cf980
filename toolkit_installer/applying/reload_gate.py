"""Limit reloads: how often engines may be reloaded for installing, and when (`--reload-when`).

The budget keeps a crash-looping pod from taking the engine down with it. The times of reloads are in a small file on
the node beside the PID file. It survives cleanup, which a crash loop runs each time, and expires by itself: with the
boot, and with the budget's time span.

An installation that was served and then reverted on purpose (by `uninstall`, or because the DaemonSet is gone) is not
part of such a loop: its reloads are forgiven, so that an administrator who experiments is not stopped. Forgiven reloads
are recorded too, as a label that comes and goes also loops: together with the counted ones there may be four times as
many. A cleanup for any other reason, such as a TERM, forgives nothing: the reload may have caused it. The reloads of a
run that a person starts in a shell are recorded as forgiven.

The gate is checked before a change writes anything: while a reload is pending, the node stays as it was, so that
neither a kill nor an engine that another program restarts meets a half-made change. Cleanup and rollback pass no gate.
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
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node import idling, machine, terminal
from toolkit_installer.node.files import Files
from toolkit_installer.node.node import Node
from toolkit_installer.node.writing import own_metadata
from toolkit_installer.planning import plan as plan_of

if TYPE_CHECKING:
    from toolkit_installer.applying.gpu_containers import BusyReasons, PathIdentities
    from toolkit_installer.planning.prepare import Prepared


FILE = "toolkit-installer.reloads"
_MODE = 0o644
_COUNTING, _FORGIVEN = "reloads", "taken_back"
"""The keys of the file. Releases that know only the first drop the second when they write the file."""
_WITH_FORGIVEN = 4
"""How many times the budget the sum of counted and forgiven reloads may be."""


class ReloadTimes(msgspec.Struct, frozen=True):
    """The times of reloads for installing, in seconds since the boot: those that count, and the forgiven ones."""

    counting: tuple[float, ...] = ()
    forgiven: tuple[float, ...] = ()


def parse_reloads(content: bytes, boot: str, now: float, seconds: float) -> ReloadTimes:
    """Parse the reload times; drop expired ones and those of other boots. Unreadable content has none. Pure."""
    return ReloadTimes(*(parse_times(content, boot, now, seconds, key) for key in (_COUNTING, _FORGIVEN)))


def parse_times(content: bytes, boot: str, now: float, seconds: float, key: str = _COUNTING) -> tuple[float, ...]:
    """Parse one of the two lists of times. Pure."""
    try:
        body = json.loads(content)
        if body["boot"] != boot:
            return ()
        return tuple(float(time) for time in body[key] if now - seconds < time <= now)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()


def find_refusal(times: Sequence[float], now: float, budget: tuple[int, float], why: str = "") -> str | None:
    """Return why another reload is refused, None if it is allowed. Pure."""
    count, seconds = budget
    if len(times) < count:
        return None
    wait = sorted(times)[-count] + seconds - now
    return (
        f"the engine was reloaded {len(times)} times for installing within {seconds:g} s{why}, which is the limit: "
        f"the next one is possible in {wait:.0f} s"
    )


def find_any_refusal(reloads: ReloadTimes, now: float, budget: tuple[int, float]) -> str | None:
    """Return why another reload is refused by the limit for counted ones or for all, None if it is allowed. Pure."""
    count, seconds = budget
    every = (*reloads.counting, *reloads.forgiven)
    why = ", and what was installed was taken back each time"
    return find_refusal(reloads.counting, now, budget) or find_refusal(
        every, now, (count * _WITH_FORGIVEN, seconds), why
    )


class ReloadBudget:
    """The reload budget of one node."""

    def __init__(self, files: Files, pid_path: str, budget: tuple[int, float]) -> None:
        self.files = files
        self.path = os.path.join(os.path.dirname(files.in_folder(pid_path)), FILE)
        self.budget = budget

    def tidy(self) -> None:
        """Remove temporary files of killed runs beside the file. Raises NodeError."""
        self.files.sweep(self.path)

    def require_reload(self) -> None:
        """Raise ConfigurationError if the budget is used up."""
        reason = find_any_refusal(self._read_reloads(), machine.boot_seconds(), self.budget)
        if reason is not None:
            raise ConfigurationError(
                reason,
                path=self.path,
                hint="something makes the installer start over and over: look at why it ends; nothing was changed; "
                "--reload-budget N/SECONDS sets another limit, removing the file forgets the past",
            )

    def spend(self) -> None:
        """Record a reload that is about to be made. Raises NodeError."""
        reloads, now = self._read_reloads(), machine.boot_seconds()
        if terminal.is_started_by_person():
            self._write(ReloadTimes(reloads.counting, (*reloads.forgiven, now)))
        else:
            self._write(ReloadTimes((*reloads.counting, now), reloads.forgiven))

    def reset(self) -> None:
        """Stop counting the reloads of a change that was served and reverted on purpose. Raises NodeError."""
        # written even if nothing changes: the node's changes must not depend on how long ago the reloads were
        if self.files.read_file(self.path) is not None:
            reloads = self._read_reloads()
            self._write(ReloadTimes((), (*reloads.forgiven, *reloads.counting)))

    def _write(self, reloads: ReloadTimes) -> None:
        times = {_COUNTING: reloads.counting, _FORGIVEN: reloads.forgiven}
        body = {"boot": machine.boot_id()} | {
            key: list(each) for key, each in times.items() if each or key == _COUNTING
        }
        self.files.overwrite(self.path, json.dumps(body).encode() + b"\n", own_metadata(_MODE))

    def _read_reloads(self) -> ReloadTimes:
        content = self.files.content(self.path)
        return parse_reloads(content or b"", machine.boot_id(), machine.boot_seconds(), self.budget[1])


class ReloadPendingError(ConfigurationError):
    """A reload is due and not allowed yet; no file of an engine was changed."""


class ReloadGate:
    """Decides for one run whether the engines may be reloaded now, and keeps the pending reload if not."""

    def __init__(self, when: str, node: Node) -> None:
        """`when`: the value of `--reload-when`."""
        self._when = when
        self._node = node
        self.pending: Pending | None = None
        """The pending reload, as of the last check."""
        self.watched: PathIdentities = ()
        """Paths that change when the wait may be over, with their identities at the last check."""

    def require(self, seen: Prepared) -> None:
        """Raise ReloadPendingError if a reload is due and not allowed now; log that once.

        Raises ConfigurationError, NodeError if the time zone cannot be read; Stopped.
        """
        waited, self.watched = self.pending, ()
        pending = self.find_pending(seen)
        if pending is None:
            if waited is not None and find_due_engines(seen):
                log.get().info(
                    "The reload is allowed now",
                    key="reload-allowed",
                    engine=_join_engines(waited),
                    since=_format_time(waited.since),
                )
            self.pending = None
            return
        self._defer(pending)
        raise ReloadPendingError(
            f"the reload of {_join_engines(pending)} is not allowed yet: {pending.reason}",
            hint="nothing was changed; start it again then, or with --reload-when now",
        )

    def _defer(self, pending: Pending) -> None:
        """Record the pending reload; log it the first time, and when the reason changes."""
        waited, self.pending = self.pending, pending
        if waited is None:
            publish(
                EventKind.RELOAD_PENDING,
                "A reload is pending: nothing of this change is made before it is allowed (--reload-when)",
                level="warning",
                engine=_join_engines(pending),
                why=pending.reason,
                since=_format_time(pending.since),
            )
        elif waited.reason != pending.reason:
            log.get().info(
                "The reload is still pending, for another reason",
                key="reload-still-pending",
                engine=_join_engines(pending),
                why=pending.reason,
                since=_format_time(pending.since),
            )

    def find_pending(self, seen: Prepared) -> Pending | None:
        """Return the reload that a change has to wait for, None if it may be made now. Raises as `require` does."""
        engines = find_due_engines(seen)
        if not engines or self._when == NOW:
            return None
        since = self.pending.since if self.pending is not None else machine.now()
        served = _serves_target(seen)
        if self._when != IDLE:
            closed = self._find_closed_reason()
            return Pending(engines, closed[0], since, closed[1], served) if closed is not None else None
        found = self._find_busy_reasons(seen)
        self.watched = found.watched
        return Pending(engines, f"the node is not idle: {found.words}", since, None, served) if found.why else None

    def may_be_allowed(self, events: Collection[str]) -> bool:
        """Return whether the wait may be over after these events of `idling`.

        An engine that another program restarted may serve its target configuration by now.
        """
        if self.pending is None or not {idling.BUSY, idling.ENGINE, idling.LATER}.intersection(events):
            return False
        if idling.ENGINE in events or self._when in (NOW, IDLE):
            return True
        try:
            closed = self._find_closed_reason()
        except InstallerError:
            return True  # the next check reports the error
        if closed is not None:  # an administrator may have set the clock, or the time zone
            reason, opens = closed
            self._defer(msgspec.structs.replace(self.pending, reason=reason, opens=opens))
        return closed is None

    def seconds_to_opening(self) -> float | None:
        """Return the seconds until the next window opens; None if no window is waited for, or one is open."""
        opens = self.pending.opens if self.pending is not None else None
        remaining = opens - machine.now() if opens is not None else 0.0
        return remaining if remaining > 0 else None

    def _find_closed_reason(self) -> tuple[str, float | None] | None:
        """Return a text that no window is open, and when the next opens; None if one is open."""
        from toolkit_installer.applying import reload_windows  # noqa: PLC0415  # few runs wait for a window

        name, of_node = machine.read_time_zone(self._node)
        windows, now = reload_windows.parse_windows(self._when), machine.now()
        if reload_windows.is_open(windows, now, of_node):
            return None
        opens = reload_windows.find_next_opening(windows, now, of_node)
        when = f"the next window opens at {_format_time(opens)}" if opens is not None else "it never opens"
        return f"it is outside of {self._when} ({name}, the node's time zone): {when}", opens

    def _find_busy_reasons(self, seen: Prepared) -> BusyReasons:
        from toolkit_installer.applying import gpu_containers  # noqa: PLC0415  # few runs wait for an idle node

        invisible = [
            work.name
            for work in seen.plan.engines
            if work.inspection.live is not None and work.inspection.live.process is None
        ]
        if invisible:
            why = f"the containers of {', '.join(invisible)} cannot be seen from here (hostPID: true)"
            return gpu_containers.BusyReasons((why,))
        recorded = seen.receipt.engines if seen.receipt is not None else ()
        by_default = any(record.default in dict(record.handlers) for record in recorded)
        return gpu_containers.find_busy_reasons(self._node, seen.plan.toolkit.folder, by_default=by_default)


def find_due_engines(seen: Prepared) -> tuple[str, ...]:
    """Return the engines that a change would reload, including those that it reverts. Pure."""
    recorded = seen.receipt.engines if seen.receipt is not None else ()
    names = [str(work.name) for work in seen.plan.engines if work.reload_why]
    reverted = [str(record.name) for record in plan_of.find_superseded(recorded, seen.plan)]
    moved = plan_of.find_moved_engine(recorded, seen.plan.engines)
    return tuple(dict.fromkeys([*names, *reverted, *([str(moved.name)] if moved is not None else [])]))


def _serves_target(seen: Prepared) -> bool:
    """Return whether all engines serve their target configuration already. Pure."""
    answers = [(work, work.inspection.live) for work in seen.plan.engines]
    return all(live is not None and not plan_of.find_differences(live, work.desired) for work, live in answers)


def _join_engines(pending: Pending) -> str:
    return ", ".join(pending.engines)


def _format_time(seconds: float) -> str:
    return machine.text(seconds)
