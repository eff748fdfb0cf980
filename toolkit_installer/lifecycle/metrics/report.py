"""Tells how the node stands to whoever reads metrics, wherever somebody asked for them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolkit_installer import log
from toolkit_installer.errors import ExitCode, InstallerError
from toolkit_installer.kubernetes.node_state import Reason
from toolkit_installer.lifecycle.metrics import counting, exposition
from toolkit_installer.lifecycle.metrics.counting import Counted
from toolkit_installer.lifecycle.metrics.exposition import Metrics
from toolkit_installer.lifecycle.metrics.textfile import Textfile
from toolkit_installer.lifecycle.readiness import Readiness
from toolkit_installer.node import clock
from toolkit_installer.node.node import Node
from toolkit_installer.receipt import drift
from toolkit_installer.receipt.schema import Receipt
from toolkit_installer.settings import OnDrift, Settings

if TYPE_CHECKING:
    from toolkit_installer.lifecycle.metrics.endpoint import Endpoint


class MetricsReport:
    """Counts what the run does, and writes all of it to the places that the settings name."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self._node = node
        self._looks_for_drift = settings.on_drift is not OnDrift.IGNORE
        path = settings.metrics_textfile
        self._textfile = Textfile(path, node.calls) if path is not None else None
        address = settings.metrics_address
        self._endpoint: Endpoint | None = None
        if address is not None:
            from toolkit_installer.lifecycle.metrics.endpoint import Endpoint

            self._endpoint = Endpoint(address)
        self._counted = Counted()
        log.overhear(self._overheard)

    @property
    def owes(self) -> bool:
        """Whether nobody answers at the address, which is to be tried again."""
        return self._endpoint is not None and self._endpoint.lost

    def prepare(self) -> None:
        """Refuse a place that cannot be used, before anything is written.

        Raises ConfigurationError, NodeError, Stopped.
        """
        # a counter that is not seen at 0 is not seen to grow; and what a run that was killed left is not true any more
        content = exposition.text(self._so_far())
        if self._textfile is not None:
            self._textfile.prepare()
            self._textfile.write(content)
        if self._endpoint is not None:
            self._endpoint.prepare()
            self._endpoint.tell(ready=False, why="nothing is known of the node yet", metrics=content)

    def begin(self, receipt: Receipt | None) -> None:
        """Say that a node is not ready while it is set up, whatever it was while nothing was to be done there.

        Raises Stopped.
        """
        if receipt is None:
            why = f"{Reason.INSTALLING}: the node is set up"
            self._say(ready=False, why=why, content=exposition.text(self._so_far()))

    def tell(self, readiness: Readiness, receipt: Receipt | None) -> None:
        """Tell how the node stands; a failure is said, and nothing else follows from it. Raises Stopped."""
        try:
            content = exposition.text(self._metrics(readiness, receipt))
        except InstallerError as error:
            log.get().warning(
                "The metrics stay as they are, and are out of date", key="metrics-unknown", reason=str(error)
            )
            return
        state = readiness.state
        self._say(ready=state.ready, why=f"{state.reason}: {state.message}", content=content)

    def _say(self, *, ready: bool, why: str, content: str) -> None:
        if self._textfile is not None:
            self._textfile.write(content)
        if self._endpoint is not None:
            self._endpoint.tell(ready=ready, why=why, metrics=content)

    def _so_far(self) -> Metrics:
        """Return what was counted, of a node that is not ready, and of which nothing else is known."""
        return Metrics(
            ready=False,
            reloads={(name, why): count for name, why, count in self._counted.reloads},
            away=dict(self._counted.away),
            rollbacks=self._counted.rollbacks,
            result=self._counted.result,
            converged_at=float(int(self._counted.converged_at)),
        )

    def _metrics(self, readiness: Readiness, receipt: Receipt | None) -> Metrics:
        engines = [str(each.name) for each in receipt.asked()] if receipt is not None else []
        so_far = self._so_far()
        return msgspec.structs.replace(
            so_far,
            ready=readiness.state.ready,
            served={name: name not in readiness.unserved for name in engines},
            # as in `prepare`: the first reload of a waiting run would not be seen otherwise
            reloads={(name, why): 0 for name in engines for why in counting.REASONS} | dict(so_far.reloads),
            drifted=tuple(drift.drifted(self._node, receipt)) if self._looks_for_drift else (),
            payload=(receipt.release or "") if receipt is not None else "",
            driver_usable=not readiness.driver_away,
            reload_pending=readiness.pending is not None,
            damaged=readiness.damaged,
            nri_connected=readiness.plugin.connected if readiness.plugin is not None else None,
        )

    def failed(self, code: str) -> None:
        """Note with which exit code's name a look failed."""
        self._counted = counting.ended(self._counted, code)

    def converged(self, *, whole: bool) -> None:
        """Note that a look ended well; `whole`: the node is where it should be, and waits for nothing."""
        self._counted = counting.ended(self._counted, ExitCode.DONE.event, clock.now() if whole else None)

    def leave(self) -> None:
        """Say that nobody keeps the metrics up to date from here on."""
        if self._textfile is not None:
            self._textfile.remove()
        if self._endpoint is not None:
            self._endpoint.leave("the run was told to stop")

    def watched(self) -> list[tuple[str, str, str]]:
        """Return what else the idle process is to watch; to be asked when the run becomes that."""
        return self._endpoint.process.watched() if self._endpoint is not None else []

    def remembered(self) -> dict[str, Any]:
        """Return what was counted, as JSON has it."""
        return {
            "counted": counting.plain(self._counted),
            **({"endpoint": self._endpoint.process.remembered()} if self._endpoint is not None else {}),
        }

    def recall(self, said: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._counted = counting.understood(said.get("counted", {}))
        if self._endpoint is not None:
            self._endpoint.process.recall(said.get("endpoint"))

    def _overheard(self, line: Mapping[str, Any]) -> None:
        self._counted = counting.heard(self._counted, line, time.monotonic())
