"""Tells the cluster how the node stands: a condition, a taint, labels, events; and takes all of it back.

The node's own work never waits for it: what cannot be told is said once in the log, and told later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.documents.secrets import mask
from toolkit_installer.errors import InstallerError
from toolkit_installer.kubernetes import events, node_state, scheduling, taints, told
from toolkit_installer.kubernetes.events import Happening
from toolkit_installer.kubernetes.node_client import DAEMON_SET, NODE, NodeClient, RefusedEventError, UntoldError
from toolkit_installer.kubernetes.node_state import NodeState, Reason
from toolkit_installer.kubernetes.told import ReportMemory
from toolkit_installer.node import clock
from toolkit_installer.node.disk.root import NodeError
from toolkit_installer.node.node import Node
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.settings import ReportSettings, Taint

_ROUND_SECONDS = 5.0
"""What all that is told at once may take."""
_REFRESH_SECONDS = 300.0
"""No condition is refreshed sooner: a thousand nodes share one API server."""
_CONFLICTS = 5
"""How often a node is read anew that somebody else changes meanwhile."""
_MESSAGE_FIELDS = ("engine", "file", "line", "what", "missing", "away", "why", "reason", "hint")

HAPPENINGS: Mapping[str, tuple[str, bool]] = {
    "configured": ("Installed", False),
    "engine-serves": ("EngineReloaded", False),
    "engine-started": ("EngineStarted", False),
    "not-ready-engine": ("EngineNotServing", True),
    "rollback": ("RolledBack", True),
    "drift": ("Drift", True),
    "toolkit-damaged": ("Drift", True),
    "drift-repair": ("DriftRepair", False),
    "driver-missing": ("DriverLost", True),
    "driver-gone": ("DriverLost", True),
}
"""Lines of the log (docs/logs.md) that are events as well: the event's reason, and whether it is a warning."""


class NodeReport:
    """What one run tells. `memory` is to be remembered while it sleeps."""

    def __init__(self, settings: ReportSettings, node: Node) -> None:
        self._settings = settings
        self._node = node
        self._api = NodeClient(settings)
        self._rolled_back = False
        self._booted = True
        """The node is not known to have been ready in this boot."""
        self.memory = ReportMemory()
        log.overhear(self._overheard)

    def recall(self, said: Mapping[str, Any]) -> None:
        """Know again what a run before the sleep told."""
        self.memory = told.understood(said)

    def remembered(self) -> dict[str, Any]:
        """Return what is to be known again after the sleep, as JSON has it."""
        return told.plain(self.memory)

    @property
    def owes(self) -> bool:
        """Whether something is still to be told."""
        return bool(self.memory.failure or self.memory.ledger.waiting)

    def begin(self, receipt: Receipt | None) -> None:
        """Say that the node is being installed, unless it is: before anything is changed, and once. Raises Stopped.

        With a taint that is put back, a node that has booted since it was ready is not ready either.
        """
        if self.memory.begun:
            return
        self.memory = msgspec.structs.replace(self.memory, begun=True)
        if _is_installed(receipt):
            if self._settings.retaint:
                self._each(self._look_for_boot)
            if not self._settings.retaint or self.memory.failure or not self._booted:
                return
        self.tell(NodeState(Reason.INSTALLING, "The toolkit is being installed, and the engine told of it"), receipt)

    def failed(self, error: InstallerError, receipt: Receipt | None) -> None:
        """Tell why the node could not be brought to where it should be. Raises Stopped.

        A node that has the toolkit from before may serve it still: its taint stays as it is.
        """
        state = node_state.of_error(error, rolled_back=self._rolled_back)
        state = msgspec.structs.replace(state, message=mask(state.message))
        self._happened(Happening(NODE, str(state.reason), state.message, warning=True))
        self.memory = msgspec.structs.replace(self.memory, failed=state)
        self._tell(state, receipt, taint=not _is_installed(receipt))

    def tell(self, state: NodeState, receipt: Receipt | None) -> None:
        """Tell how the node stands, and what has happened, as far as the API server listens. Raises Stopped.

        Why the toolkit could not be installed stays said as long as it is not.
        """
        failed = self.memory.failed
        if failed is not None and state.reason is Reason.INSTALLING:
            state = failed
        elif failed is not None and state.ready:
            self.memory = msgspec.structs.replace(self.memory, failed=None)
        self._tell(state, receipt, taint=True)

    def _tell(self, state: NodeState, receipt: Receipt | None, *, taint: bool) -> None:
        labels = _labels(receipt)
        self._each(
            lambda: self._tell_condition(state),
            *([lambda: self._tell_taint(state)] if taint else []),
            lambda: self._tell_labels(labels),
            self._tell_events,
        )

    def withdraw(self) -> None:
        """Take condition, taint and labels from the node, and tell what has happened: before the permissions go.

        Raises Stopped.
        """
        self._each(self._tell_events, self._withdraw_taint, self._withdraw_condition, lambda: self._tell_labels(()))
        if self.memory.failure:
            log.get().warning(
                "The Node keeps what the cluster was told of it",
                key="report-left",
                node=self._settings.node,
                reason=self.memory.failure,
                hint="remove the taint, the labels and the annotation with kubectl; the condition goes with the Node",
            )

    def leave(self) -> None:
        """Put the taint back where the machine goes down: it is to be there before the next boot. Raises Stopped."""
        if self._settings.retaint and self._node.services.is_stopping():
            self.tell(NodeState(Reason.INSTALLING, "The node is shutting down"), None)

    # --- what is told ---

    def _tell_condition(self, state: NodeState) -> None:
        kind, now = self._settings.condition, clock.now()
        if kind is None or (self.memory.condition == state and abs(now - self.memory.refreshed) < _REFRESH_SECONDS):
            return
        node = self._api.read()
        found, text = node_state.found_condition(node, kind), clock.text(now)
        recent = str((found or {}).get("lastHeartbeatTime", "")) > clock.text(now - _REFRESH_SECONDS)
        if not (recent and node_state.says(found, state)):
            said = node_state.condition(kind, state, now=text, since=node_state.since(found, state, now=text))
            self._api.apply("/status", node_state.with_conditions(self._settings.node, said), "the condition")
        self.memory = msgspec.structs.replace(self.memory, condition=state, refreshed=now)

    def _withdraw_condition(self) -> None:
        if self._settings.condition is not None:
            self._api.apply("/status", node_state.with_conditions(self._settings.node), "the condition")
            self.memory = msgspec.structs.replace(self.memory, condition=None, refreshed=0.0)

    def _tell_taint(self, state: NodeState) -> None:
        taint = self._settings.taint
        if taint is None or self.memory.ready is state.ready:
            return
        boot = clock.boot()

        def patch(node: Mapping[str, Any]) -> dict[str, Any] | None:
            ready_in, stands = taints.boot_of(node), taints.is_there(node, taint)
            # without being asked to put it back, one that has come since the node was ready is somebody else's word
            foreign = not self._settings.retaint and (not state.ready or ready_in == boot)
            there = stands if foreign else not state.ready
            if there and not stands:
                self._refuse_to_evict(taint)
            return taints.change(node, taint, there=there, boot=boot if state.ready else ready_in)

        self._change(patch)
        self.memory = msgspec.structs.replace(self.memory, ready=state.ready)

    def _withdraw_taint(self) -> None:
        taint = self._settings.taint
        if taint is not None:
            self._change(lambda node: taints.change(node, taint, there=False, boot=None))
            self.memory = msgspec.structs.replace(self.memory, ready=None)

    def _change(self, patch_of: Callable[[Mapping[str, Any]], dict[str, Any] | None]) -> None:
        """Change the Node, whoever else changes it meanwhile. Raises UntoldError, Stopped."""
        for _ in range(_CONFLICTS):
            patch = patch_of(self._api.read())
            if patch is None or self._api.change(patch, "the taint"):
                return
        raise UntoldError("the taint: somebody else changes the Node all the time")

    def _refuse_to_evict(self, taint: Taint) -> None:
        """Raise UntoldError where the DaemonSet's own pods would be kept away, or end, for the taint."""
        try:
            tolerated = scheduling.tolerates(self._api.daemon_set(), msgspec.structs.asdict(taint))
        except scheduling.UnclearError as error:
            raise UntoldError(f"the taint: the DaemonSet is not understood: {error}") from error
        if not tolerated:
            raise UntoldError(f"the taint {taint}: the DaemonSet has no toleration for it, or none that lasts")

    def _look_for_boot(self) -> None:
        self._booted = taints.boot_of(self._api.read()) != clock.boot()

    def _tell_labels(self, labels: tuple[tuple[str, str], ...] | None) -> None:
        if not self._settings.labels or labels is None or labels == self.memory.labels:
            return
        self._api.apply("", node_state.with_labels(self._settings.node, dict(labels)), "the labels")
        self.memory = msgspec.structs.replace(self.memory, labels=labels)

    def _tell_events(self) -> None:
        while (event := events.due(self.memory.ledger, now := clock.now())) is not None:
            try:
                written = self._api.write(event, now=clock.text(now))
                ledger = events.wrote(self.memory.ledger, written, now)
            except RefusedEventError as error:
                log.get().warning(
                    "The API server refuses an event for good",
                    key="event-refused",
                    why=error,
                    says=event.happening.reason,
                )
                ledger = events.dropped(self.memory.ledger)
            self.memory = msgspec.structs.replace(self.memory, ledger=ledger)

    # --- what has happened ---

    def _overheard(self, line: Mapping[str, Any]) -> None:
        reason, warning = HAPPENINGS.get(str(line.get("event")), ("", False))
        if not reason:
            return
        self._rolled_back |= line["event"] == "rollback"
        fields = "; ".join(f"{key}: {line[key]}" for key in _MESSAGE_FIELDS if key in line)
        words = f"{line['msg']} ({fields})" if fields else str(line["msg"])
        self._happened(Happening(NODE, reason, mask(words), warning=warning))

    def _happened(self, happening: Happening) -> None:
        """Remember an event to be told: what goes wrong is told of the DaemonSet too, with the node's name."""
        if not self._settings.events:
            return
        ledger = events.heard(self.memory.ledger, happening)
        if happening.warning and self._settings.daemon_set is not None:
            words = f"{self._settings.node}: {happening.message}"
            ledger = events.heard(ledger, msgspec.structs.replace(happening, about=DAEMON_SET, message=words))
        self.memory = msgspec.structs.replace(self.memory, ledger=ledger)

    def _each(self, *parts: Callable[[], None]) -> None:
        """Tell each part, whatever became of the others; say once what could not be told."""
        failures: list[str] = []
        self._api.begin(_ROUND_SECONDS)
        for part in parts:
            try:
                part()
            except (UntoldError, NodeError) as error:
                failures.append(str(error))
        failure, before = "; ".join(dict.fromkeys(failures)), self.memory.failure
        self.memory = msgspec.structs.replace(self.memory, failure=failure)
        if failure and failure != before:
            log.get().warning(
                "The cluster could not be told how the node stands: the node's work goes on, and it is told later",
                key="report-untold",
                node=self._settings.node,
                why=failure,
            )
        elif before and not failure:
            log.get().info("The cluster was told how the node stands", key="report-told", node=self._settings.node)


def _is_installed(receipt: Receipt | None) -> bool:
    return receipt is not None and receipt.state is State.INSTALLED


def _labels(receipt: Receipt | None) -> tuple[tuple[str, str], ...] | None:
    """Return the labels that the node is to have; None: as they are."""
    if receipt is None or receipt.state is not State.INSTALLED:
        return None
    engines = tuple(str(each.name) for each in receipt.engines)
    found = node_state.labels(version=__version__, engines=engines, payload=receipt.release)
    return tuple(sorted(found.items()))
