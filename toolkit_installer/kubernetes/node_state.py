"""One taint among a node's, whose list is replaced as a whole: there is no other way to change it. Pure.

How a node stands, in the words of a Kubernetes condition; and the objects that tell the API server. Pure.

Conditions and labels are told by server-side apply ("Server-Side Apply" in the Kubernetes documentation): what a field
manager leaves out of what it applies is taken away, if it is the only one that wanted it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.settings import Taint

READY_IN = "toolkit-installer/ready-in-boot"
"""The annotation of a node that says in which boot it was ready: a taint that comes later is somebody else's word."""

Object = Mapping[str, Any]


def is_there(node: Object, taint: Taint) -> bool:
    """Tell whether the node has the taint; its value does not count."""
    return any(_is(each, taint) for each in _of(node))


def boot_of(node: Object) -> str | None:
    """Return the boot in which the node was said to be ready, None where it was not."""
    annotations = node.get("metadata", {}).get("annotations") or {}
    boot = annotations.get(READY_IN)
    return boot if isinstance(boot, str) else None


def change(node: Object, taint: Taint, *, there: bool, boot: str | None) -> dict[str, Any] | None:
    """Return the merge patch (RFC 7386) after which the node has the taint or not, and `boot` as its annotation.

    None: it is so already. The patch names the version of the node that it was made for, so that the API server refuses
    it where somebody else has changed the node since, and nobody's taint is lost.
    """
    metadata: dict[str, Any] = {}
    body: dict[str, Any] = {"metadata": metadata}
    if is_there(node, taint) is not there:
        others = [each for each in _of(node) if not _is(each, taint)]
        body["spec"] = {"taints": [*others, *([_body(taint)] if there else [])] or None}
    if boot_of(node) != boot:
        metadata["annotations"] = {READY_IN: boot}
    if not metadata and "spec" not in body:
        return None
    metadata["resourceVersion"] = node.get("metadata", {}).get("resourceVersion")
    return body


def _of(node: Object) -> list[Object]:
    return list(node.get("spec", {}).get("taints") or ())


def _is(found: Object, taint: Taint) -> bool:
    return (found.get("key"), found.get("effect")) == (taint.key, taint.effect)


def _body(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}


MANAGER = "toolkit-installer"
"""The field manager that our fields belong to."""
LABELS = "toolkit-installer/"
"""What the names of our labels begin with."""
_LONGEST_MESSAGE = 1024
_LONGEST_LABEL = 63


class Reason(enum.StrEnum):
    """The reasons of the condition, all there are. Those of a ready node come first."""

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

    reason: Reason
    message: str = ""

    @property
    def ready(self) -> bool:
        """Whether pods that ask for the handlers can be started."""
        return self.reason in {Reason.SERVING, Reason.NO_GPU}


_OF_EXIT_CODES: Mapping[ExitCode, Reason] = {
    ExitCode.ENGINE_REJECTED: Reason.ENGINE_REJECTED,
    ExitCode.ENGINE_DOWN: Reason.ENGINE_DOWN,
    ExitCode.DRIVER_NOT_READY: Reason.DRIVER_NOT_READY,
}


def of_error(error: InstallerError, *, rolled_back: bool) -> NodeState:
    """Return how a node stands whose change failed so; `rolled_back`: it was begun, and taken back."""
    otherwise = Reason.ROLLED_BACK if rolled_back else Reason.REFUSED
    return NodeState(_OF_EXIT_CODES.get(error.exit_code, otherwise), str(error))


def shortened(text: str) -> str:
    """Return a message as conditions and events have it: one of at most 1,024 bytes (core/v1, events)."""
    content = text.encode(errors="replace")
    return (
        content.decode()
        if len(content) <= _LONGEST_MESSAGE
        else f"{content[: _LONGEST_MESSAGE - 3].decode(errors='ignore')}..."
    )


def condition(kind: str, state: NodeState, *, now: str, since: str) -> dict[str, str]:
    """Return the condition of this type. `now` and `since`, when its status changed, are times of RFC 3339."""
    return {
        "type": kind,
        "status": _status(state),
        "reason": str(state.reason),
        "message": shortened(state.message),
        "lastHeartbeatTime": now,
        "lastTransitionTime": since,
    }


def since(found: Mapping[str, Any] | None, state: NodeState, *, now: str) -> str:
    """Return since when a node's condition has the status that it is to have: `now` if it has another, or is new."""
    if found is None or found.get("status") != _status(state):
        return now
    return str(found.get("lastTransitionTime") or now)


def found_condition(node: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """Return the node's condition of this type, None where it has none."""
    conditions = node.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def says(found: Mapping[str, Any] | None, state: NodeState) -> bool:
    """Tell whether a node's condition says this already."""
    wanted = (_status(state), str(state.reason), shortened(state.message))
    return found is not None and tuple(found.get(key, "") for key in ("status", "reason", "message")) == wanted


def with_conditions(node: str, *conditions: Mapping[str, str]) -> dict[str, Any]:
    """Return what is applied to the node's status: our conditions, or none."""
    return {**_named(node), "status": {"conditions": list(conditions)} if conditions else {}}


def with_labels(node: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return what is applied to the node: our labels, or none."""
    found = _named(node)
    return {**found, "metadata": {**found["metadata"], **({"labels": dict(labels)} if labels else {})}}


def labels(*, version: str, engines: tuple[str, ...], payload: str | None) -> dict[str, str]:
    """Return the labels of a node: what is installed, by whom, in which engines."""
    found = {"version": version, "engine": "_".join(engines), "payload": payload or ""}
    return {f"{LABELS}{name}": label(text) for name, text in found.items() if label(text)}


def label(text: str) -> str:
    """Return the text as a label's value may be: letters, digits, '.', '_', '-', at most 63, none of these outside."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:_LONGEST_LABEL].strip("._-")


def _named(node: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}


def _status(state: NodeState) -> str:
    return "True" if state.ready else "False"
