"""Reports of the node's status to the cluster: a condition, a taint, labels and events; all of them can be withdrawn.

The node's own work never waits for a report: a failure is logged once, and the report is made later. Events
of the run (events.py) are written once the API server accepts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolkit_installer import __version__, foreign_words, log
from toolkit_installer.errors import InstallerError
from toolkit_installer.events import Event, EventKind, subscribe
from toolkit_installer.kubernetes import node_state, verdicts
from toolkit_installer.kubernetes.node_client import DAEMON_SET, NODE, NodeClient, RefusedEventError, ReportError
from toolkit_installer.kubernetes.node_state import ConditionReason, EventContent, EventLedger, NodeState, SavedReports
from toolkit_installer.node import machine, signals
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import NodeError
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.settings import ReportSettings, Taint

_ROUND_SECONDS = 5.0
"""The limit for all requests of one report."""
_REFRESH_SECONDS = 300.0
"""The shortest time between refreshes of the condition: a thousand nodes share one API server."""
_CONFLICTS = 5
"""How often a Node is read again that other clients change meanwhile."""
_WITHDRAW_SECONDS = 25.0
"""The limit for retries of a withdrawal; the last try may take as long as one report."""
_BOOT_SECONDS = 15.0
"""The limit for retries of the query in which boot the node was ready: after a boot an API server may be late."""
_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 4.0


_Part = Callable[[], None]
_Failures = dict[_Part, ReportError | NodeError]


class NodeReport:
    """A run's reports to the cluster; `saved` is the state to save over a sleep."""

    def __init__(self, settings: ReportSettings, node: Node) -> None:
        self._settings = settings
        self._node = node
        self._api = NodeClient(settings)
        self._events = EventReport(settings, self._api)
        self._booted = True
        """Whether the node is not known to have been ready in this boot."""
        self._saved = SavedReports()

    def restore(self, saved: SavedReports) -> None:
        """Restore what the run reported before it waited."""
        self._saved = saved
        self._events.ledger = saved.ledger

    @property
    def saved(self) -> SavedReports:
        """What `restore` takes."""
        return msgspec.structs.replace(self._saved, ledger=self._events.ledger)

    @property
    def has_pending_report(self) -> bool:
        """Whether a report is still pending."""
        return bool(self._saved.failure or self._events.ledger.waiting)

    def begin(self, receipt: Receipt | None) -> None:
        """Report once, before any change, that the node is being installed, unless it is installed. Raises Stopped.

        With `retaint`, a node that has booted since it was ready is not ready either.
        """
        if self._saved.begun:
            return
        self._saved = msgspec.structs.replace(self._saved, begun=True)
        if _is_installed(receipt):
            if self._settings.retaint:
                self._log_failures(self._retry_parts(_BOOT_SECONDS, self._check_boot))
            if not self._settings.retaint or self._saved.failure or not self._booted:
                return
        self.report_status(
            NodeState(ConditionReason.INSTALLING, "The toolkit is being installed, and the engine told of it"), receipt
        )

    def record_failure(self, error: InstallerError) -> None:
        """Store why the run could not converge, for the next report of the node's status."""
        state = node_state.build_error_state(error, rolled_back=self._events.rolled_back)
        state = msgspec.structs.replace(state, message=foreign_words.mask_own_text(state.message))
        self._events.add_failure(state)
        self._saved = msgspec.structs.replace(self._saved, failed=state)

    def report_failure(self, error: InstallerError, receipt: Receipt | None) -> None:
        """Report why a run ends that could not converge. Raises Stopped.

        A node with an earlier installation may still serve it: its taint stays as it is.
        """
        self.record_failure(error)
        assert self._saved.failed is not None  # noqa: S101  # set by record_failure()
        self._report(self._saved.failed, receipt, taint=not _is_installed(receipt))

    def report_status(self, state: NodeState, receipt: Receipt | None) -> None:
        """Report the node's status and the pending events, as far as the API server accepts them. Raises Stopped.

        The failure of an installation stays reported until the toolkit is installed.
        """
        failed = self._saved.failed
        if failed is not None and state.reason is ConditionReason.INSTALLING:
            state = failed
        elif failed is not None and state.ready:
            self._saved = msgspec.structs.replace(self._saved, failed=None)
        self._report(state, receipt, taint=True)

    def _report(self, state: NodeState, receipt: Receipt | None, *, taint: bool) -> None:
        state = msgspec.structs.replace(state, message=foreign_words.mask_own_text(state.message))
        labels = _build_labels(receipt)
        failures = self._run_parts(
            lambda: self._report_condition(state),
            *([lambda: self._update_taint(state)] if taint else []),
            lambda: self._update_labels(labels),
            self._events.write_pending,
        )
        self._log_failures(failures)

    def remove_reports(self) -> None:
        """Remove condition, taint and labels from the Node, and report pending events: before the permissions go.

        No later run does it, so failed requests are retried for a while. Raises Stopped.
        """
        left = self._retry_parts(
            _WITHDRAW_SECONDS, self._remove_taint, self._remove_condition, lambda: self._update_labels(())
        )
        self._run_parts(self._events.write_pending)
        if left:
            log.get().warning(
                "The Node keeps what the cluster was told of it",
                key="report-left",
                node=self._settings.node,
                reason=_join_failures(left),
                hint="remove the taint, the labels and the annotation with kubectl; the condition goes with the Node",
            )

    def prepare_shutdown(self) -> None:
        """Restore the taint if the machine is shutting down: it must be there before the next boot. Raises Stopped."""
        if self._settings.retaint and self._node.services.is_stopping():
            self.report_status(NodeState(ConditionReason.INSTALLING, "The node is shutting down"), None)

    # --- condition, taint and labels ---

    def _report_condition(self, state: NodeState) -> None:
        kind, now = self._settings.condition, machine.now()
        if kind is None or (self._saved.condition == state and abs(now - self._saved.refreshed) < _REFRESH_SECONDS):
            return
        node = self._api.read()
        found, text = node_state.find_condition(node, kind), machine.text(now)
        # a heartbeat in the future, from before the clock was set back, would make a dead run seem alive until then
        reported_at, earliest = str((found or {}).get("lastHeartbeatTime", "")), machine.text(now - _REFRESH_SECONDS)
        recent = earliest < reported_at <= machine.text(now + _REFRESH_SECONDS)
        if not (recent and node_state.matches_state(found, state)):
            wanted = node_state.build_condition(
                kind, state, now=text, since=node_state.find_transition_time(found, state, now=text)
            )
            self._api.apply("/status", node_state.build_conditions_body(self._settings.node, wanted), "the condition")
        self._saved = msgspec.structs.replace(self._saved, condition=state, refreshed=now)

    def _remove_condition(self) -> None:
        if self._settings.condition is not None:
            self._api.apply("/status", node_state.build_conditions_body(self._settings.node), "the condition")
            self._saved = msgspec.structs.replace(self._saved, condition=None, refreshed=0.0)

    def _update_taint(self, state: NodeState) -> None:
        taint = self._settings.taint
        if taint is None or self._saved.ready is state.ready:
            return
        boot = machine.boot()

        def patch(node: Mapping[str, Any]) -> dict[str, Any] | None:
            ready_in, stands = node_state.read_ready_boot(node), node_state.has_taint(node, taint)
            # without `retaint`, a taint that appeared after the node was ready is another client's
            foreign = not self._settings.retaint and (not state.ready or ready_in == boot)
            there = stands if foreign else not state.ready
            if there and not stands:
                self._refuse_to_evict(taint)
            return node_state.build_taint_patch(node, taint, there=there, boot=boot if state.ready else ready_in)

        self._patch_node(patch)
        self._saved = msgspec.structs.replace(self._saved, ready=state.ready)

    def _remove_taint(self) -> None:
        taint = self._settings.taint
        if taint is not None:
            self._patch_node(lambda node: node_state.build_taint_patch(node, taint, there=False, boot=None))
            self._saved = msgspec.structs.replace(self._saved, ready=None)

    def _patch_node(self, patch_of: Callable[[Mapping[str, Any]], dict[str, Any] | None]) -> None:
        """Change the Node, and retry on conflicts with other clients. Raises ReportError, Stopped."""
        for _ in range(_CONFLICTS):
            patch = patch_of(self._api.read())
            if patch is None or self._api.change(patch, "the taint"):
                return
        raise ReportError("the taint: somebody else changes the Node all the time")

    def _refuse_to_evict(self, taint: Taint) -> None:
        """Raise ReportError if the taint would keep away or end the DaemonSet's own pods."""
        try:
            tolerated = verdicts.tolerates_taint(self._api.daemon_set(), msgspec.structs.asdict(taint))
        except verdicts.UnclearError as error:
            raise ReportError(f"the taint: the DaemonSet is not understood: {error}") from error
        if not tolerated:
            raise ReportError(f"the taint {taint}: the DaemonSet has no toleration for it, or none that lasts")

    def _check_boot(self) -> None:
        self._booted = node_state.read_ready_boot(self._api.read()) != machine.boot()

    def _update_labels(self, labels: tuple[tuple[str, str], ...] | None) -> None:
        if not self._settings.labels or labels is None or labels == self._saved.labels:
            return
        self._api.apply("", node_state.build_labels_body(self._settings.node, dict(labels)), "the labels")
        self._saved = msgspec.structs.replace(self._saved, labels=labels)

    # --- requests and retries ---

    def _run_parts(self, *parts: _Part) -> _Failures:
        """Do each part, whatever becomes of the others; return those that failed. Raises Stopped."""
        failures: _Failures = {}
        self._api.begin(_ROUND_SECONDS)
        for part in parts:
            try:
                part()
            except (ReportError, NodeError) as error:
                failures[part] = error
        return failures

    def _retry_parts(self, seconds: float, *parts: _Part) -> _Failures:
        """Do each part, with retries for `seconds` while it may yet succeed; return those that failed. Raises Stopped.

        Other signals wait while the run ends, as in all of its cleanup.
        """
        end, pause = machine.boot_seconds() + seconds, _PAUSE_SECONDS
        failures = self._run_parts(*parts)
        while waits := _find_retryable(failures):
            remaining = end - machine.boot_seconds()
            if remaining <= 0:
                break
            signals.sleep(min(remaining, max(pause, *waits.values())))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            failures = {part: error for part, error in failures.items() if part not in waits} | self._run_parts(*waits)
        return failures

    def _log_failures(self, failures: _Failures) -> None:
        """Store which reports failed, and log that once."""
        failure, before = _join_failures(failures), self._saved.failure
        self._saved = msgspec.structs.replace(self._saved, failure=failure)
        if failure and failure != before:
            log.get().warning(
                "The cluster could not be told how the node stands: the node's work goes on, and it is told later",
                key="report-untold",
                node=self._settings.node,
                why=failure,
            )
        elif before and not failure:
            log.get().info("The cluster was told how the node stands", key="report-told", node=self._settings.node)


def _find_retryable(failures: _Failures) -> dict[_Part, float]:
    """Return the parts that may yet succeed, and for how many seconds the API server asked for no request."""
    return {
        part: error.wait for part, error in failures.items() if isinstance(error, ReportError) and not error.is_final
    }


def _join_failures(failures: _Failures) -> str:
    return "; ".join(dict.fromkeys(map(str, failures.values())))


def _is_installed(receipt: Receipt | None) -> bool:
    return receipt is not None and receipt.state is State.INSTALLED


def _build_labels(receipt: Receipt | None) -> tuple[tuple[str, str], ...] | None:
    """Return the labels for the node; None to leave them as they are."""
    if receipt is None or receipt.state is not State.INSTALLED:
        return None
    engines = tuple(str(each.name) for each in receipt.served_engines())
    found = node_state.build_labels(version=__version__, engines=engines, payload=receipt.release)
    return tuple(sorted(found.items()))


_MESSAGE_FIELDS = ("engine", "file", "line", "what", "missing", "away", "why", "reason", "hint")

EVENT_REASONS: Mapping[EventKind, tuple[str, bool]] = {
    EventKind.CONFIGURED: ("Installed", False),
    EventKind.ENGINE_SERVES: ("EngineReloaded", False),
    EventKind.ENGINE_STARTED: ("EngineStarted", False),
    EventKind.ENGINE_NOT_SERVING: ("EngineNotServing", True),
    EventKind.RELOAD_PENDING: ("ReloadPending", False),
    EventKind.ROLLBACK: ("RolledBack", True),
    EventKind.DRIFT: ("Drift", True),
    EventKind.TOOLKIT_DAMAGED: ("Drift", True),
    EventKind.DRIFT_REPAIR: ("DriftRepair", False),
    EventKind.DRIVER_MISSING: ("DriverLost", True),
    EventKind.DRIVER_GONE: ("DriverLost", True),
}
"""The events that are reported to the cluster: the reason there, and whether it is a warning."""


class EventReport:
    """A writer of the run's events to the cluster; `ledger` is the state to save over a sleep."""

    def __init__(self, settings: ReportSettings, api: NodeClient) -> None:
        self.ledger = EventLedger()
        self.rolled_back = False
        """Whether a change was begun in this process, and rolled back."""
        self._settings = settings
        self._api = api
        subscribe(self._add_event)

    def add_failure(self, state: NodeState) -> None:
        """Add an event for why the run could not converge."""
        self._add(str(state.reason), state.message, warning=True)

    def write_pending(self) -> None:
        """Write all events that are due. Raises ReportError, at the end if events about some objects are forbidden."""
        refused: dict[str, ReportError] = {}
        while (event := node_state.next_event(self.ledger, now := machine.now(), refused)) is not None:
            try:
                written = self._api.write(event, now=machine.text(now))
                self.ledger = node_state.record_written(self.ledger, written, now, refused)
            except RefusedEventError as error:
                log.get().warning(
                    "The API server refuses an event for good",
                    key="event-refused",
                    why=error,
                    says=event.happening.reason,
                )
                self.ledger = node_state.drop_next(self.ledger, refused)
            except ReportError as error:
                if not error.is_final:
                    raise
                refused[event.happening.about] = error  # events about other objects are in another namespace
        for failure in refused.values():
            raise failure

    def _add_event(self, event: Event) -> None:
        if event.kind not in EVENT_REASONS:
            return
        reason, warning = EVENT_REASONS[event.kind]
        self.rolled_back |= event.kind is EventKind.ROLLBACK
        named = {**({"engine": event.engine} if event.engine else {}), **event.fields}
        fields = "; ".join(f"{key}: {named[key]}" for key in _MESSAGE_FIELDS if key in named)
        words = f"{event.message} ({fields})" if fields else event.message
        self._add(reason, foreign_words.mask_own_text(words), warning=warning)

    def _add(self, reason: str, words: str, *, warning: bool) -> None:
        """Add an event to the ledger; a warning is also written about the DaemonSet, with the node's name."""
        if not self._settings.events:
            return
        content = EventContent(NODE, reason, words, warning=warning, heard_at=time.time_ns())
        self.ledger = node_state.add_pending(self.ledger, content)
        if warning and self._settings.daemon_set is not None:
            words = f"{self._settings.node}: {words}"
            of_daemon_set = msgspec.structs.replace(content, about=DAEMON_SET, message=words)
            self.ledger = node_state.add_pending(self.ledger, of_daemon_set)
