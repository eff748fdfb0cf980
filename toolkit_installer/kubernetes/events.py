"""Which events are created, and which counted once more: as client-go does it, so that no node floods etcd. Pure.

The same event within ten minutes is the one that is there, with a higher count; of events that differ in their message
alone, the eleventh within ten minutes stands for all that follow (client-go, tools/record/events_cache.go). Beyond that
a node writes a few a minute at most; the others wait.

What a run has told the cluster, and remembers while it is asleep. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from toolkit_installer.kubernetes.node_state import MANAGER, NodeState, shortened

NODES_NAMESPACE = "default"
"""Where events about what has no namespace are."""
MOST_A_MINUTE = 6
_MINUTE = 60.0
_SAME_SECONDS = 600.0
_MOST_ALIKE = 10
_MOST_REMEMBERED = 50
_MOST_WAITING = 20
_COMBINED = "(combined from similar events): "


class Happening(msgspec.Struct, frozen=True):
    """Something that is worth an event. `about` is the kind of the object: Node or DaemonSet."""

    about: str
    reason: str
    message: str
    warning: bool = False
    heard_at: int = 0
    """In nanoseconds since 1970. What is heard twice is the same all the same."""

    @property
    def kind(self) -> str:
        """The event's type."""
        return "Warning" if self.warning else "Normal"

    def name_of(self, involved: str) -> str:
        """Return the event's name, which begins with that of its object: the same however often it is written."""
        return f"{involved}.{self.heard_at:x}"


class Told(msgspec.Struct, frozen=True):
    """An event that the API server has."""

    happening: Happening
    name: str
    count: int
    first: float
    last: float
    """Seconds since 1970."""


class Ledger(msgspec.Struct, frozen=True):
    """What was told, and what is still to be."""

    told: tuple[Told, ...] = ()
    waiting: tuple[Happening, ...] = ()
    spent: tuple[float, ...] = ()
    """When events were written of late, in seconds since 1970."""


def heard(ledger: Ledger, happening: Happening) -> Ledger:
    """Return the ledger with something more to tell. Of what waits too long, the oldest is left out."""
    happening = msgspec.structs.replace(happening, message=shortened(happening.message))
    if any(_what(each) == _what(happening) for each in ledger.waiting):
        return ledger
    return msgspec.structs.replace(ledger, waiting=(*ledger.waiting, happening)[-_MOST_WAITING:])


def due(ledger: Ledger, now: float, refused: Collection[str] = ()) -> Told | None:
    """Return the event that is to be written next, None where there is none, or enough was written of late.

    It was told before if its count is more than one. What is about a kind that is `refused` is left waiting.
    """
    happening = _next(ledger, refused)
    if happening is None or len(_of_late(ledger.spent, now)) >= MOST_A_MINUTE:
        return None
    recent = [each for each in ledger.told if abs(now - each.last) < _SAME_SECONDS]
    alike = [each for each in recent if _kin(each.happening) == _kin(happening)]
    same = next((each for each in alike if each.happening.message == happening.message), None)
    if same is None and len(alike) >= _MOST_ALIKE:
        combined = msgspec.structs.replace(happening, message=shortened(f"{_COMBINED}{happening.message}"))
        same = next((each for each in alike if each.happening.message.startswith(_COMBINED)), None)
        if same is not None:
            same = msgspec.structs.replace(same, happening=combined)
        happening = combined
    if same is not None:
        # one that has expired meanwhile is written anew, and under a name that it had not before
        again = msgspec.structs.replace(same.happening, heard_at=happening.heard_at)
        return msgspec.structs.replace(same, happening=again, count=same.count + 1, last=now)
    return Told(happening, "", 1, now, now)


def wrote(ledger: Ledger, event: Told, now: float, refused: Collection[str] = ()) -> Ledger:
    """Return the ledger once what was `due` has been written."""
    ledger = dropped(ledger, refused)
    others = tuple(each for each in ledger.told if each.name != event.name)
    told = (*others, event)[-_MOST_REMEMBERED:]
    return msgspec.structs.replace(ledger, told=told, spent=(*_of_late(ledger.spent, now), now))


def dropped(ledger: Ledger, refused: Collection[str] = ()) -> Ledger:
    """Return the ledger without what was `due`: the API server will never take it."""
    happening = _next(ledger, refused)
    return msgspec.structs.replace(ledger, waiting=tuple(each for each in ledger.waiting if each is not happening))


def body(event: Told, involved: dict[str, str], *, node: str, now: str) -> dict[str, Any]:
    """Return the object that is created. `involved` is what it is about, `now` a time of RFC 3339."""
    namespace = involved.get("namespace", NODES_NAMESPACE)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": namespace},
        "involvedObject": involved,
        "type": event.happening.kind,
        "reason": event.happening.reason,
        "source": {"component": MANAGER, "host": node},
        "reportingComponent": MANAGER,
        "reportingInstance": node,
        "firstTimestamp": now,
        **again(event, last=now),
    }


def again(event: Told, *, last: str) -> dict[str, Any]:
    """Return the merge patch of an event that happened once more."""
    return {"message": event.happening.message, "count": event.count, "lastTimestamp": last}


def _next(ledger: Ledger, refused: Collection[str]) -> Happening | None:
    return next((each for each in ledger.waiting if each.about not in refused), None)


def _what(happening: Happening) -> tuple[str, str, str, bool]:
    """Return what has happened, whenever it was heard."""
    return happening.about, happening.reason, happening.message, happening.warning


def _kin(happening: Happening) -> tuple[str, str, bool]:
    """Return what two events have in common that may be told as one."""
    return happening.about, happening.reason, happening.warning


def _of_late(spent: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(each for each in spent if abs(now - each) < _MINUTE)


class ReportMemory(msgspec.Struct, frozen=True):
    """What the API server was told, and what is still to be."""

    condition: NodeState | None = None
    """What the node's condition says."""
    refreshed: float = 0.0
    """When the condition was last told, in seconds since 1970."""
    ready: bool | None = None
    """What the taint was last put or taken away for; None: it was not looked at."""
    begun: bool = False
    """Whether this run has said that it is at work."""
    failed: NodeState | None = None
    """Why the node could not be brought to where it should be, until it is ready."""
    labels: tuple[tuple[str, str], ...] | None = None
    ledger: Ledger = Ledger()
    failure: str = ""
    """Why something could not be told, as the log said; empty: all is told."""


def plain(memory: ReportMemory) -> dict[str, Any]:
    """Return the memory as JSON has it."""
    found: dict[str, Any] = msgspec.to_builtins(memory)
    return found


def understood(said: Any) -> ReportMemory:
    """Return what was remembered; an empty memory where it is not understood: then all is told once more."""
    try:
        return msgspec.convert(said, ReportMemory)
    except msgspec.ValidationError:
        return ReportMemory()
