"""The node's state as the API server is to show it: taint, condition, labels and events, as values and bodies. Pure.

A node's list of taints can only be replaced as a whole.

Conditions and labels are reported by server-side apply ("Server-Side Apply" in the Kubernetes documentation): a field
that a field manager leaves out of what it applies is removed, if no other manager owns it.

Events are created and counted as client-go does it, so that no node floods etcd. A repetition within ten minutes raises
the count of the existing event; of events that differ in their message alone, the eleventh within ten minutes combines
all that follow (client-go, tools/record/events_cache.go). Beyond that a node writes a few a minute at most; the others
wait.

The state of the reports is saved while the run is asleep.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.settings import Taint

READY_IN = "toolkit-installer/ready-in-boot"
"""The node's annotation with the boot in which it was ready: a taint that appears later is not ours."""

Object = Mapping[str, Any]


def has_taint(node: Object, taint: Taint) -> bool:
    """Return whether the node has the taint; the taint's value does not count."""
    return any(_is_taint(each, taint) for each in _taints_of(node))


def read_ready_boot(node: Object) -> str | None:
    """Return the boot in which the node was reported ready, None if it was not."""
    annotations = node.get("metadata", {}).get("annotations") or {}
    boot = annotations.get(READY_IN)
    return boot if isinstance(boot, str) else None


def build_taint_patch(node: Object, taint: Taint, *, there: bool, boot: str | None) -> dict[str, Any] | None:
    """Return the merge patch (RFC 7386) that adds or removes the taint, and sets `boot` as the node's annotation.

    None: nothing has to change. The patch names the node's resource version that it was computed from, so that the API
    server refuses it if another client has changed the node since, and no other taint is lost.
    """
    metadata: dict[str, Any] = {}
    body: dict[str, Any] = {"metadata": metadata}
    if has_taint(node, taint) is not there:
        others = [each for each in _taints_of(node) if not _is_taint(each, taint)]
        body["spec"] = {"taints": [*others, *([_body(taint)] if there else [])] or None}
    if read_ready_boot(node) != boot:
        metadata["annotations"] = {READY_IN: boot}
    if not metadata and "spec" not in body:
        return None
    metadata["resourceVersion"] = node.get("metadata", {}).get("resourceVersion")
    return body


def _taints_of(node: Object) -> list[Object]:
    return list(node.get("spec", {}).get("taints") or ())


def _is_taint(found: Object, taint: Taint) -> bool:
    return (found.get("key"), found.get("effect")) == (taint.key, taint.effect)


def _body(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}


MANAGER = "toolkit-installer"
"""The field manager that owns our fields."""
LABELS = "toolkit-installer/"
"""Prefix of the names of our labels."""
_LONGEST_MESSAGE = 1024
_LONGEST_LABEL = 63


class ConditionReason(enum.StrEnum):
    """All reasons of the condition; those of a ready node come first."""

    SERVING = "Serving"
    NO_GPU = "NoGpu"
    INSTALLING = "Installing"
    RELOAD_PENDING = "ReloadPending"
    ENGINE_REJECTED = "EngineRejected"
    ENGINE_DOWN = "EngineDown"
    PLUGIN_DOWN = "PluginDown"
    DRIVER_NOT_READY = "DriverNotReady"
    DRIFT = "Drift"
    ROLLED_BACK = "RolledBack"
    REFUSED = "Refused"


class NodeState(msgspec.Struct, frozen=True):
    """Whether the node is ready for GPU pods, and why."""

    reason: ConditionReason
    message: str = ""

    @property
    def ready(self) -> bool:
        """Whether pods that request the handlers can be started."""
        return self.reason in {ConditionReason.SERVING, ConditionReason.NO_GPU}


_OF_EXIT_CODES: Mapping[ExitCode, ConditionReason] = {
    ExitCode.ENGINE_REJECTED: ConditionReason.ENGINE_REJECTED,
    ExitCode.ENGINE_DOWN: ConditionReason.ENGINE_DOWN,
    ExitCode.DRIVER_NOT_READY: ConditionReason.DRIVER_NOT_READY,
}


def build_error_state(error: InstallerError, *, rolled_back: bool) -> NodeState:
    """Return the state of a node after a failed change; `rolled_back`: it was begun, and rolled back."""
    otherwise = ConditionReason.ROLLED_BACK if rolled_back else ConditionReason.REFUSED
    return NodeState(_OF_EXIT_CODES.get(error.exit_code, otherwise), str(error))


def shorten(text: str) -> str:
    """Return a message cut to the limit of conditions and events, 1,024 bytes (core/v1, events)."""
    content = text.encode(errors="replace")
    return (
        content.decode()
        if len(content) <= _LONGEST_MESSAGE
        else f"{content[: _LONGEST_MESSAGE - 3].decode(errors='ignore')}..."
    )


def build_condition(kind: str, state: NodeState, *, now: str, since: str) -> dict[str, str]:
    """Return the condition of this type. `now` and `since`, when its status changed, are times of RFC 3339."""
    return {
        "type": kind,
        "status": _status(state),
        "reason": str(state.reason),
        "message": shorten(state.message),
        "lastHeartbeatTime": now,
        "lastTransitionTime": since,
    }


def find_transition_time(found: Mapping[str, Any] | None, state: NodeState, *, now: str) -> str:
    """Return when a node's condition got the status of `state`: `now` if its status differs, or it is new."""
    if found is None or found.get("status") != _status(state):
        return now
    return str(found.get("lastTransitionTime") or now)


def find_condition(node: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the node's condition of this type, None if it has none."""
    conditions = node.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def matches_state(found: Mapping[str, Any] | None, state: NodeState) -> bool:
    """Return whether a node's condition matches the state already."""
    wanted = (_status(state), str(state.reason), shorten(state.message))
    return found is not None and tuple(found.get(key, "") for key in ("status", "reason", "message")) == wanted


def build_conditions_body(node: str, *conditions: Mapping[str, str]) -> dict[str, Any]:
    """Return the body to apply to the node's status, with our conditions, or none."""
    return {**_named(node), "status": {"conditions": list(conditions)} if conditions else {}}


def build_labels_body(node: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the body to apply to the node, with our labels, or none."""
    found = _named(node)
    return {**found, "metadata": {**found["metadata"], **({"labels": dict(labels)} if labels else {})}}


def build_labels(*, version: str, engines: tuple[str, ...], payload: str | None) -> dict[str, str]:
    """Return the node's labels: the installer's version, the payload, and the engines."""
    found = {"version": version, "engine": "_".join(engines), "payload": payload or ""}
    return {f"{LABELS}{name}": build_label_value(text) for name, text in found.items() if build_label_value(text)}


def build_label_value(text: str) -> str:
    """Return the text as a label's value: at most 63 letters, digits, '.', '_', '-', the first and last no sign."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST_LABEL].strip("._-")


def _named(node: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}


def _status(state: NodeState) -> str:
    return "True" if state.ready else "False"


NODES_NAMESPACE = "default"
"""The namespace of events about objects that have none."""
MOST_A_MINUTE = 6
_MINUTE = 60.0
_SAME_SECONDS = 600.0
_MOST_ALIKE = 10
_MOST_SAVED = 50
_MOST_PENDING = 20
_COMBINED = "(combined from similar events): "


class EventContent(msgspec.Struct, frozen=True):
    """A fact that is worth an event. `about` is the object's kind: Node or DaemonSet."""

    about: str
    reason: str
    message: str
    warning: bool = False
    heard_at: int = 0
    """In nanoseconds since 1970; ignored when pending duplicates are dropped."""

    @property
    def kind(self) -> str:
        """The event's type."""
        return "Warning" if self.warning else "Normal"

    def name_of(self, involved: str) -> str:
        """Return the event's name, which begins with its object's name and stays the same over repeated writes."""
        return f"{involved}.{self.heard_at:x}"


class ReportedEvent(msgspec.Struct, frozen=True):
    """An event that the API server has."""

    happening: EventContent
    name: str
    count: int
    first: float
    last: float
    """Seconds since 1970."""


class EventLedger(msgspec.Struct, frozen=True):
    """Events that were reported, and events that are pending."""

    told: tuple[ReportedEvent, ...] = ()
    waiting: tuple[EventContent, ...] = ()
    spent: tuple[float, ...] = ()
    """When the recent events were written, in seconds since 1970."""


def add_pending(ledger: EventLedger, happening: EventContent) -> EventLedger:
    """Return the ledger with one more pending event; the oldest is dropped if too many are pending."""
    happening = msgspec.structs.replace(happening, message=shorten(happening.message))
    if any(_identity(each) == _identity(happening) for each in ledger.waiting):
        return ledger
    return msgspec.structs.replace(ledger, waiting=(*ledger.waiting, happening)[-_MOST_PENDING:])


def next_event(ledger: EventLedger, now: float, refused: Collection[str] = ()) -> ReportedEvent | None:
    """Return the event to write next, None if none is pending or the limit per minute is reached.

    A count over one means that it was written before. Events about a kind in `refused` stay pending.
    """
    happening = _find_next(ledger, refused)
    if happening is None or len(_select_last_minute(ledger.spent, now)) >= MOST_A_MINUTE:
        return None
    recent = [each for each in ledger.told if abs(now - each.last) < _SAME_SECONDS]
    alike = [each for each in recent if _combining_key(each.happening) == _combining_key(happening)]
    same = next((each for each in alike if each.happening.message == happening.message), None)
    if same is None and len(alike) >= _MOST_ALIKE:
        combined = msgspec.structs.replace(happening, message=shorten(f"{_COMBINED}{happening.message}"))
        same = next((each for each in alike if each.happening.message.startswith(_COMBINED)), None)
        if same is not None:
            same = msgspec.structs.replace(same, happening=combined)
        happening = combined
    if same is not None:
        # an expired event is created anew, under a new name
        again = msgspec.structs.replace(same.happening, heard_at=happening.heard_at)
        return msgspec.structs.replace(same, happening=again, count=same.count + 1, last=now)
    return ReportedEvent(happening, "", 1, now, now)


def record_written(ledger: EventLedger, event: ReportedEvent, now: float, refused: Collection[str] = ()) -> EventLedger:
    """Return the ledger after its next event was written."""
    ledger = drop_next(ledger, refused)
    others = tuple(each for each in ledger.told if each.name != event.name)
    told = (*others, event)[-_MOST_SAVED:]
    return msgspec.structs.replace(ledger, told=told, spent=(*_select_last_minute(ledger.spent, now), now))


def drop_next(ledger: EventLedger, refused: Collection[str] = ()) -> EventLedger:
    """Return the ledger without its next event, which the API server will never accept."""
    happening = _find_next(ledger, refused)
    return msgspec.structs.replace(ledger, waiting=tuple(each for each in ledger.waiting if each is not happening))


def build_event_body(event: ReportedEvent, involved: dict[str, str], *, node: str, now: str) -> dict[str, Any]:
    """Return the event object to create. `involved` is the object that it is about, `now` a time of RFC 3339."""
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
        **repeat_event(event, last=now),
    }


def repeat_event(event: ReportedEvent, *, last: str) -> dict[str, Any]:
    """Return the merge patch that counts an event once more."""
    return {"message": event.happening.message, "count": event.count, "lastTimestamp": last}


def _find_next(ledger: EventLedger, refused: Collection[str]) -> EventContent | None:
    return next((each for each in ledger.waiting if each.about not in refused), None)


def _identity(happening: EventContent) -> tuple[str, str, str, bool]:
    """Return the fields that make two happenings the same, without their times."""
    return happening.about, happening.reason, happening.message, happening.warning


def _combining_key(happening: EventContent) -> tuple[str, str, bool]:
    """Return the fields that two events share if they may be combined into one."""
    return happening.about, happening.reason, happening.warning


def _select_last_minute(spent: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(each for each in spent if abs(now - each) < _MINUTE)


class SavedReports(msgspec.Struct, frozen=True):
    """State of the reports to the API server, and the pending ones."""

    condition: NodeState | None = None
    """The condition that the node has."""
    refreshed: float = 0.0
    """When the condition was last reported, in seconds since 1970."""
    ready: bool | None = None
    """The readiness that the taint was last set or removed for; None: not checked yet."""
    begun: bool = False
    """Whether this run has reported that it is at work."""
    failed: NodeState | None = None
    """Why the node could not be brought to its desired state, until it is ready."""
    labels: tuple[tuple[str, str], ...] | None = None
    ledger: EventLedger = EventLedger()
    failure: str = ""
    """Why a report failed, as logged; empty: nothing is pending."""
