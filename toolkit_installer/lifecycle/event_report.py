"""What happens on the node, as events of the cluster: heard in the log, and written once the API server takes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit_installer import foreign_words, log
from toolkit_installer.cluster_settings import ReportSettings
from toolkit_installer.kubernetes import events
from toolkit_installer.kubernetes.events import Happening, Ledger
from toolkit_installer.kubernetes.node_client import DAEMON_SET, NODE, NodeClient, RefusedEventError, UntoldError
from toolkit_installer.kubernetes.node_state import NodeState
from toolkit_installer.node import clock

_MESSAGE_FIELDS = ("engine", "file", "line", "what", "missing", "away", "why", "reason", "hint")

HAPPENINGS: Mapping[str, tuple[str, bool]] = {
    "configured": ("Installed", False),
    "engine-serves": ("EngineReloaded", False),
    "engine-started": ("EngineStarted", False),
    "not-ready-engine": ("EngineNotServing", True),
    "reload-pending": ("ReloadPending", False),
    "rollback": ("RolledBack", True),
    "drift": ("Drift", True),
    "toolkit-damaged": ("Drift", True),
    "drift-repair": ("DriftRepair", False),
    "driver-missing": ("DriverLost", True),
    "driver-gone": ("DriverLost", True),
}
"""Lines of the log (docs/logs.md) that are events as well: the event's reason, and whether it is a warning."""


class EventReport:
    """Hears what happens, and writes it. `ledger` is to be remembered while the run sleeps."""

    def __init__(self, settings: ReportSettings, api: NodeClient) -> None:
        self.ledger = Ledger()
        self.rolled_back = False
        """A change was begun in this process, and taken back."""
        self._settings = settings
        self._api = api
        log.overhear(self._overheard)

    def failed(self, state: NodeState) -> None:
        """Hear why the node could not be brought to where it should be."""
        self._happened(str(state.reason), state.message, warning=True)

    def tell(self) -> None:
        """Write what is due. Raises UntoldError, once the rest is written where a kind of object may not be told of."""
        refused: dict[str, UntoldError] = {}
        while (event := events.due(self.ledger, now := clock.now(), refused)) is not None:
            try:
                written = self._api.write(event, now=clock.text(now))
                self.ledger = events.wrote(self.ledger, written, now, refused)
            except RefusedEventError as error:
                log.get().warning(
                    "The API server refuses an event for good",
                    key="event-refused",
                    why=error,
                    says=event.happening.reason,
                )
                self.ledger = events.dropped(self.ledger, refused)
            except UntoldError as error:
                if not error.is_final:
                    raise
                refused[event.happening.about] = error  # what is about others is in another namespace
        for untold in refused.values():
            raise untold

    def _overheard(self, line: Mapping[str, Any]) -> None:
        reason, warning = HAPPENINGS.get(str(line.get("event")), ("", False))
        if not reason:
            return
        self.rolled_back |= line["event"] == "rollback"
        fields = "; ".join(f"{key}: {line[key]}" for key in _MESSAGE_FIELDS if key in line)
        words = f"{line['msg']} ({fields})" if fields else str(line["msg"])
        self._happened(reason, foreign_words.own(words), warning=warning)

    def _happened(self, reason: str, words: str, *, warning: bool) -> None:
        """Remember an event to be told: what goes wrong is told of the DaemonSet too, with the node's name."""
        if not self._settings.events:
            return
        happening = Happening(NODE, reason, words, warning=warning, heard_at=time.time_ns())
        self.ledger = events.heard(self.ledger, happening)
        if warning and self._settings.daemon_set is not None:
            words = f"{self._settings.node}: {words}"
            of_daemon_set = msgspec.structs.replace(happening, about=DAEMON_SET, message=words)
            self.ledger = events.heard(self.ledger, of_daemon_set)
