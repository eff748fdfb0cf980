"""One instance at work: converge, wait, look again, leave."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from toolkit_installer import log
from toolkit_installer.errors import SIGNALLED, DriverNotReadyError, ExitCode, InstallerError
from toolkit_installer.kubernetes.node_state import NodeState, Reason
from toolkit_installer.kubernetes.standing import Standing
from toolkit_installer.lifecycle import gpu_watch, idling, last_run, wait
from toolkit_installer.lifecycle.converge import Converger
from toolkit_installer.lifecycle.drift_report import DriftWatch
from toolkit_installer.lifecycle.driver_watch import DriverWatch
from toolkit_installer.lifecycle.gpu_watch import GpuWatch
from toolkit_installer.lifecycle.leaving import Leaving
from toolkit_installer.lifecycle.readiness import Readiness
from toolkit_installer.lifecycle.reload_when import pending
from toolkit_installer.lifecycle.reload_when.gate import ReloadPendingError
from toolkit_installer.lifecycle.telling import Telling
from toolkit_installer.lifecycle.waiting_state import Remembered
from toolkit_installer.node import clock, signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import Attention, Stopped
from toolkit_installer.receipt import drift, trust
from toolkit_installer.receipt.schema import State
from toolkit_installer.receipt.store import ReceiptStore, locked
from toolkit_installer.settings import OnDrift, Settings

if TYPE_CHECKING:
    from toolkit_installer.kubernetes.wanted import Question


class Instance:
    """One run that holds the locks."""

    def __init__(self, settings: Settings, node: Node, pid_file: PidFile) -> None:
        self.settings = settings
        self.node = node
        self.pid_file = pid_file
        self.store = ReceiptStore(node.files, settings.toolkit.install_dir)
        self.attention = Attention()
        self._unfinished: Stopped | None = None
        """A signal stopped the work before it was done."""
        self._drift = DriftWatch(settings, node, self.store)
        self._question: Question | None = None
        if settings.cluster is not None:
            from toolkit_installer.kubernetes.wanted import Question

            self._question = Question(settings.cluster)
        self._telling = Telling(settings, node)
        self._readiness = Readiness(settings, node)
        self._driver = DriverWatch(settings, node)
        self._gpus = GpuWatch(settings, node)
        self._converger = Converger(settings, node, self.store, pid_file, self.attention)
        self._gate = self._converger.gate
        self._tries = 0
        self._looked_at, self._failure = 0.0, ""
        """When the node was last brought to where it should be, and why that failed (`Remembered`)."""
        self._command: tuple[str, ...] = ()
        """What the program was started with at first; empty: this is the first time."""

    def start(self) -> int:
        """Converge for the first time, then wait; return the exit code if it is not to wait."""
        if locked(self.store):
            self.store.take_request()  # it was meant for a run that is gone
        self._readiness.marker.prepare()
        with self._stoppable():
            self._telling.prepare()
            if self._question is not None:
                receipt = trust.load(self.node, self.store)
                # what a cleanup that was cut short left over is not installed any more
                self._question.ask_at_start(bare=receipt is None or receipt.state is State.REVERTING)
            if not self._held():
                self._converge_or_end()
        return self._go_on()

    def _converge_or_end(self) -> None:
        """Converge, and tell why that failed: nobody does it later. Raises InstallerError, Stopped."""
        try:
            self._converge_and_note()
        except InstallerError as error:
            receipt = trust.load_if_usable(self.node, self.store)
            self._telling.failed(error, self._readiness, receipt)
            raise

    def _converge_and_note(self) -> None:
        """Converge, and note that it went well. Raises InstallerError, Stopped."""
        self.converge()
        last_run.forget(self.node, self.pid_file.path, self.settings.ready_file)
        # a node without a GPU, or whose driver is away, or whose reload is pending, is to be more than it is
        waits = self._gpus.idle or self._driver_away or self._gate.pending is not None
        self._telling.converged(whole=not waits)

    def resume(self, events: Collection[str], remembered: Remembered) -> int:
        """Go on after the idle process was woken by `events`, a signal's name among them or those of `idling`."""
        self._recall(remembered)
        events = frozenset(events)
        if events <= {idling.LATER, idling.BUSY}:
            log.only_news(remembered.said)
        # whatever it was woken for: it is known only once it was looked at again
        self.attention.again |= self._gpus.idle
        if idling.DRIFT in events:
            self._drifted()
        self._readiness.stopped = remembered.engine_stopped
        self._readiness.engine_changed = remembered.engine_stopped or idling.ENGINE in events
        if idling.DRIVER in events:
            self._look_for_driver("its files changed")
        if idling.LATER in events:
            self._tries = remembered.tries + 1
            self._ask_again()
            if self._driver_away:
                self._look_for_driver("none was usable so far")
        self.attention.again |= self._gate.is_worth_a_look(events)
        for name in signal.Signals.__members__.keys() & events:
            if name == signal.SIGHUP.name:
                log.get().info("Looking again", key="looking-again", signal=name)
                self.attention.again = True
            else:
                self.attention.stop = signal.Signals[name]
        if not remembered.known and self.attention.stop is None:
            log.get().info("Another version of this program fell asleep: looking again", key="program-changed")
            self.attention.again = True
            self._ask_again()
        return self._go_on()

    def _recall(self, remembered: Remembered) -> None:
        """Know again what the process before the idle one knew."""
        if self._question is not None:
            self._question.recall(remembered.standing, remembered.answered)
        self._driver.recall(remembered)
        self._converger.driver_away = remembered.driver_away and not self._driver.named
        self._command = remembered.command
        self._looked_at, self._failure = remembered.looked_at, remembered.failure
        self._gpus.idle = remembered.without_gpu
        self._telling.recall(remembered.telling)
        self._gate.pending = pending.understood(remembered.pending)

    def _ask_again(self, *, loudly: bool = False) -> None:
        """Ask whether the node is wanted, where that is open; what was held back is done once it is."""
        if self._question is None:
            return
        held = self._question.standing.held
        with self._stoppable():
            self._question.ask_again(loudly=loudly)
        self.attention.again |= held and not self._question.standing.held

    def _go_on(self) -> int:
        """Do what the signals so far ask for, then wait for more."""
        while self.attention.stop is None:
            again, self.attention.again = self.attention.again, False
            self.attention.take_pending()
            if self.attention.again:  # somebody asks right now, and is to be answered
                log.only_news(())
            if again or self.attention.again:
                self.attention.again = False
                self._converge_again()
            elif self.attention.stop is None and self._marked():
                if not self.settings.daemon:
                    return self._exit_code()
                self._wait()
        with signals.deferred():
            leaving = Leaving(self.settings, self.node, self.store, self.pid_file, self.attention)
            leaving.leave(self._question, self._readiness.marker, self._telling)
            return self._exit_code()

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let a signal end the work inside; `_go_on` handles the signal afterwards."""
        self._unfinished = None
        try:
            yield
        except Stopped as stopped:
            self._unfinished = stopped
            log.get().info("Stopped before the work was done", key="stopped", signal=stopped.number.name)

    def _converge_again(self) -> None:
        """Converge while waiting: a failure leaves the node as it is recorded, and the wait goes on.

        How the node stands then is looked at before anybody is told: it may serve as it did.
        """
        if self._held():
            self._ask_again(loudly=True)
            if self._held():
                return
            self.attention.again = False  # it is done right now
        try:
            with self._stoppable():
                self._converge_and_note()
        except InstallerError as error:
            self._telling.hear(error)
            from toolkit_installer.documents.secrets import mask

            self._failure = mask(str(error))
            log.get().error("Could not converge: the wait goes on", key="failed-to-converge", reason=str(error))

    def _held(self) -> bool:
        """Tell whether the API server has yet to allow any change of the node."""
        return self._question is not None and self._question.standing.held

    def _marked(self) -> bool:
        """Write or remove the ready file, as the engines serve; return False if a signal came, which stays pending.

        A node that may not be changed yet is not ready.
        """
        marker = self._readiness.marker
        self._readiness.pending = self._gate.pending
        if self._held():
            marker.clear()
            return True
        if not self._readiness.due:
            return True
        try:
            receipt = trust.load_if_usable(self.node, self.store)

            def tell() -> None:
                self._telling.tell(self._readiness, receipt)

            if self._gpus.idle:
                marker.write(gpu_watch.READY, "nothing is to be done on this node")
                self._readiness.state = NodeState(Reason.NO_GPU, "The node shows no NVIDIA GPU: nothing is installed")
            else:
                self._readiness.mark(receipt, driver_away=self._driver_away, tell=tell)
            tell()
        except Stopped as stopped:
            self._unfinished = stopped
            return False
        return True

    def converge(self) -> None:
        """Bring the node to where the settings want it. Raises InstallerError, Stopped."""
        self._driver.renew()
        receipt = trust.load(self.node, self.store)
        if self._gpus.leaves_alone(receipt):
            self._converger.driver_away, self._gate.pending = False, None
            return
        if receipt is None:
            self._readiness.marker.clear()  # of a node that had no GPU
        self._telling.begin(receipt)
        self._looked_at, self._failure = clock.now(), ""
        try:
            self._converger.converge(receipt)
        except ReloadPendingError:
            if not self.settings.daemon:
                raise
        except DriverNotReadyError as error:
            if self.settings.wait_for_driver and not self.settings.daemon:
                self._gpus.wait_for_driver()
                self._converger.converge(trust.load(self.node, self.store))
                return
            if not self._gpus.waits_for_driver(receipt):
                raise
            self._converger.driver_away, self._failure = True, error.reason
            log.get().warning(
                "No driver is usable yet: nothing is changed before one is", key="driver-missing", missing=error.reason
            )

    def _drifted(self) -> bool:
        """Look at the managed files; tell whether any was changed, or a signal came, which stays pending."""
        try:
            changed = self._drift.look(trust.load_if_usable(self.node, self.store))
        except Stopped as stopped:
            self._unfinished = stopped
            return True
        self.attention.again |= changed and self.settings.on_drift is OnDrift.REPAIR
        return changed

    def _look_for_driver(self, why: str) -> None:
        """Converge again, unless that would repair files whose drift is only to be reported.

        A root that was named is looked at, and no more: what is installed does not depend on it.
        """
        if self._driver.named:
            self._see_driver(self._driver.renew)
            return
        self._driver.changed()
        receipt = trust.load_if_usable(self.node, self.store)
        drifted = [] if self.settings.on_drift is OnDrift.REPAIR else drift.drifted(self.node, receipt)
        if drifted:
            log.get().warning(
                "The driver may be another one, but somebody changed a managed file: SIGHUP has both looked at",
                key="driver-and-drift",
                file=drifted[0],
            )
        else:
            log.get().info("Looking for the driver again", key="looking-for-driver", why=why)
            self.attention.again = True

    @property
    def _driver_away(self) -> bool:
        """Whether no driver is usable, as far as the last look went."""
        return self._converger.driver_away or self._driver.away

    def _see_driver(self, look: Callable[[], None]) -> bool:
        """Look at the driver; tell whether it was looked at, and no signal came, which stays pending."""
        try:
            look()
        except Stopped as stopped:
            self._unfinished = stopped
            return False
        return True

    def _wait(self) -> None:
        """Become the idle process. Returns only for a file that was changed since it was written, and for a signal."""
        if not self._gpus.idle and not self._see_driver(self._driver.look_first):
            return
        receipt = trust.load_if_usable(self.node, self.store)
        watched = self._drift.watched(receipt)
        # looked at after its identity was taken: whatever is changed from here on, the idle process sees
        put_off = self._gate.pending is not None and self.settings.on_drift is OnDrift.REPAIR
        if watched and not self._drift.told and not put_off and self._drifted():
            return
        watched += self._readiness.watched(receipt, self._converger.processes)
        watched += [(idling.DRIVER, *each) for each in self._driver.watched]
        watched += [(idling.GPU, *each) for each in self._gpus.watched]
        watched += [(idling.BUSY, *each) for each in self._gate.watched]
        watched += self._telling.watched()
        log.get().info("Waiting for signal", key="waiting")
        unknown = self._driver_away or (self._question is not None and not self._question.standing.wanted)
        unknown |= self._readiness.stopped or self._telling.owes
        opens = self._gate.seconds()
        unknown |= self._gate.pending is not None and opens is None
        tries = self._tries if unknown else 0
        away, idle = self._driver_away, self._gpus.idle
        standing = self._question.standing if self._question is not None else Standing()
        remembered = Remembered(
            *((), self._driver.watched, away, tries, idle, self._command, standing, self._readiness.stopped),
            *(self._looked_at, self._failure, log.said(), tuple(self._drift.differences.items())),
            *(self._telling.remembered(), pending.plain(self._gate.pending), self._driver.seen),
        )
        wait.wait(self.pid_file, self.store.lock_fd, watched, remembered, later=unknown, within=opens)

    def _exit_code(self) -> int:
        """Return 0, or 128 plus the signal's number if `--no-daemon` was interrupted: its caller must not go on."""
        if self._unfinished is not None and not self.settings.daemon:
            return SIGNALLED + self._unfinished.number
        return ExitCode.DONE
