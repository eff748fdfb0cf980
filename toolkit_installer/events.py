"""Events of a run, published where they happen: the log writes each as a line, and subscribers count or report it.

A subscriber receives an event whether or not its line is written: the log suppresses lines that repeat.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from toolkit_installer import log


class EventKind(enum.StrEnum):
    """The kinds of events; each value is the `event=` of its log line (docs/logs.md)."""

    CONFIGURED = "configured"
    RELOADING = "reloading"
    ENGINE_SERVES = "engine-serves"
    ENGINE_STARTED = "engine-started"
    ENGINE_NOT_SERVING = "not-ready-engine"
    RELOAD_PENDING = "reload-pending"
    ROLLBACK = "rollback"
    DRIFT = "drift"
    TOOLKIT_DAMAGED = "toolkit-damaged"
    DRIFT_REPAIR = "drift-repair"
    DRIVER_MISSING = "driver-missing"
    DRIVER_GONE = "driver-gone"


_LASTING = frozenset(
    {
        EventKind.ENGINE_NOT_SERVING,
        EventKind.DRIFT,
        EventKind.TOOLKIT_DAMAGED,
        EventKind.DRIVER_MISSING,
        EventKind.DRIVER_GONE,
    }
)
"""Faults that last: each inspection finds them again until they are gone."""


class Event(msgspec.Struct, frozen=True):
    """One event, with the message and the fields of its log line."""

    kind: EventKind
    message: str
    engine: str = ""
    fields: Mapping[str, Any] = {}

    @property
    def digest(self) -> str:
        """A short digest that two equal events share, also in two processes."""
        return hashlib.sha256(repr(self).encode(errors="backslashreplace")).hexdigest()[:16]


class _Published:
    """The subscribers, the digests of this process's lasting faults, and those of known ones."""

    subscribers: ClassVar[list[Callable[[Event], None]]] = []
    faults: ClassVar[dict[str, None]] = {}
    known_faults: frozenset[str] = frozenset()


def subscribe(subscriber: Callable[[Event], None]) -> None:
    """Call `subscriber` with each event that is published from now on."""
    _Published.subscribers.append(subscriber)


def publish(
    kind: EventKind,
    message: str,
    *,
    level: Literal["info", "warning", "error"] = "info",
    engine: str = "",
    **fields: Any,
) -> None:
    """Pass an event to the subscribers, unless it is a known fault, and log it; fields that are None are left out."""
    event = Event(kind, message, str(engine), {name: value for name, value in fields.items() if value is not None})
    if kind in _LASTING:
        _Published.faults[event.digest] = None
    if event.digest not in _Published.known_faults:
        for subscriber in _Published.subscribers:
            subscriber(event)
    getattr(log.get(), level)(message, key=kind.value, engine=event.engine or None, **event.fields)


def ignore_known_faults(known: Iterable[str]) -> None:
    """Pass no fault to the subscribers whose digest an earlier process returned from `get_fault_digests`.

    A poll that finds a fault again makes no new event of it.
    """
    _Published.known_faults = frozenset(known)


def get_fault_digests() -> tuple[str, ...]:
    """Return the digests of the lasting faults that this process has found."""
    return tuple(_Published.faults)
