"""One running instance: converge, wait, inspect again, clean up.

At its end, a run that waited reverts its changes, unless the settings or the DaemonSet want them to stay.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import msgspec

from toolkit_installer import log
from toolkit_installer.applying.reload_gate import ReloadPendingError
from toolkit_installer.errors import SIGNALLED, ConfigurationError, DriverNotReadyError, ExitCode, InstallerError
from toolkit_installer.events import EventKind, ignore_known_faults, publish
from toolkit_installer.kubernetes.node_state import ConditionReason, NodeState
from toolkit_installer.node import idling, machine, services, signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import SignalCollector, Stopped
from toolkit_installer.planning import other_installer
from toolkit_installer.receipt import memory, trust
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import ReceiptStore, locked
from toolkit_installer.reporting import outcome, saved_state
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.run import preload
from toolkit_installer.run.converge import Converger
from toolkit_installer.run.watches import Watches
from toolkit_installer.settings import Cleanup, OnDrift, Settings
from toolkit_installer.waiting import node_watch, wait
from toolkit_installer.waiting.readiness import Marker

if TYPE_CHECKING:
    from toolkit_installer.kubernetes.wanted import DaemonSetQuery
    from toolkit_installer.reporting.run_reports import RunReports


class RunCleanup:
    """The end of a run: cleans up, or logs why not."""

    def __init__(
        self, settings: Settings, node: Node, store: ReceiptStore, pid_file: PidFile, attention: SignalCollector
    ) -> None:
        self._settings = settings
        self._node = node
        self._store = store
        self._pid_file = pid_file
        self._attention = attention

    def leave(self, question: DaemonSetQuery | None, marker: Marker, telling: RunReports) -> None:
        """Clean up if the settings, a request of `uninstall`, or the answer to `question` demand it.

        The node's status in the cluster is withdrawn first: the permission to do so goes with the DaemonSet. Raises
        InstallerError if the node is still configured, or half-way.
        """
        telling.prepare_shutdown()
        asked = self._store.take_request() if self._store.exists() else None
        # queried first: the permission to query is deleted together with the DaemonSet
        stays = asked is None and question is not None and self._store.exists() and not question.is_cleanup_due()
        marker.clear_before_cleanup()
        receipt = trust.load(self._node, self._store)
        if asked is None and self._settings.cleanup is Cleanup.NEVER:
            log.get().info("Leaving the node configured, as --cleanup never says", key="left-configured-never")
        elif asked is None and not self._settings.daemon:
            log.get().info("Leaving: --no-daemon cleans nothing up", key="left-no-daemon")
        elif stays:
            log.get().info("Leaving the node configured, as --cleanup auto says", key="left-configured-auto")
        else:
            telling.remove_reports()
            if receipt is None:
                log.get().info("Nothing to clean up", key="nothing-to-clean-up")
                return
            self._clean_up(receipt, asked, forgive=asked is not None or question is not None)

    def _clean_up(self, receipt: Receipt, asked: bytes | None, *, forgive: bool) -> None:
        """Revert the changes that the receipt records; `asked` is the request of `uninstall`. Raises InstallerError.

        `forgive`: an administrator or the cluster wants the node reverted, so no crash loop is behind the cleanup.
        """
        preload.import_all()
        from toolkit_installer.revert import uninstall

        stop = self._attention.stop
        log.get().info("Cleaning up", key="cleaning-up", signal=stop.name if stop else None)
        keep = self._settings.keep_toolkit if asked is None else asked == uninstall.KEEP
        try:
            remainder = uninstall.revert(
                self._settings, self._node, self._store, receipt, self._attention, keep_toolkit=keep
            )
        except InstallerError:
            log.get().error(
                "Cleanup failed: the node is STILL configured, or half-way",
                key="cleanup-failed",
                hint="the next error says why; once that is mended, run `toolkit-installer uninstall`",
            )
            raise
        self._pid_file.adopt_folders(receipt.pid_folders)
        if forgive:
            uninstall.forgive_reloads(self._settings, self._node, receipt)
        uninstall.log_result(receipt, remainder)


class Instance:
    """A run that holds the locks."""

    def __init__(self, settings: Settings, node: Node, pid_file: PidFile) -> None:
        self.settings = settings
        self.node = node
        self.pid_file = pid_file
        self.store = ReceiptStore(node, settings.toolkit.install_dir)
        self.attention = SignalCollector()
        self._unfinished: Stopped | None = None
        """The signal that stopped the work before it was done."""
        self._converger = Converger(settings, node, self.store, pid_file, self.attention)
        self._gate = self._converger.gate
        self._watches = Watches(settings, node, self.store, self._converger)

    def start(self) -> int:
        """Converge for the first time, then wait; return the exit code if the run is not to wait."""
        if locked(self.store):
            self.store.take_request()  # the request was for an earlier run
        self._watches.readiness.marker.prepare()
        with self._stoppable():
            self._watches.telling.prepare()
            self._ask_first(trust.load(self.node, self.store))
            if not self._watches.is_held():
                self._converge_or_end()
        return self._go_on()

    def _converge_or_end(self) -> None:
        """Converge, and report a failure: no later attempt follows. Raises InstallerError, Stopped."""
        self._watches.look.begin()
        try:
            self._converge_and_note()
        except InstallerError as error:
            receipt = trust.load_if_usable(self.node, self.store)
            self._watches.telling.report_failure(error, self._watches.readiness, receipt)
            raise

    def _converge_and_note(self) -> None:
        """Converge, and record the success. Raises InstallerError, Stopped."""
        self.converge()
        outcome.remove_record(self.node, self.pid_file.path, self.settings.ready_file)
        # without a GPU, without a driver or with a pending reload, the node is not complete yet
        waits = self._watches.gpus.idle or self._watches.driver_away or self._gate.pending is not None
        self._watches.telling.record_success(complete=not waits)

    def resume(self, events: Collection[str], saved: SavedState) -> int:
        """Continue after `events` woke the idle process: signals' names, or events of `idling`."""
        self._watches.restore(saved)
        events = frozenset(events)
        if events <= {idling.LATER, idling.BUSY, idling.CHILD}:
            log.suppress_known_lines(saved.said)
            ignore_known_faults(saved.faults)
        # whatever it was woken for: it is known only once it was looked at again
        self.attention.again |= self._watches.gpus.idle
        drifted = idling.DRIFT in events and self._drifted()
        if self._watches.failure and not drifted and not events.isdisjoint({idling.DRIFT, idling.ENGINE}):
            self._look_at_failure()
        self._watches.readiness.stopped = saved.engine_stopped
        self._watches.readiness.engine_changed = saved.engine_stopped or idling.ENGINE in events
        if idling.DRIVER in events:
            self._look_for_driver("its files changed")
        if idling.LATER in events:
            self._watches.tries = saved.tries + 1
            self._ask_again()
            if self._watches.driver_away:
                self._look_for_driver("none was usable so far")
        self.attention.again |= self._gate.is_worth_a_look(events)
        for name in signal.Signals.__members__.keys() & events:
            if name == signal.SIGHUP.name:
                log.get().info("Looking again", key="looking-again", signal=name)
                self.attention.again = True
            else:
                self.attention.stop = signal.Signals[name]
        if not saved.known and self.attention.stop is None:
            log.get().info("Another version of this program fell asleep: looking again", key="program-changed")
            self.attention.again = True
            with self._stoppable():  # whether the node may be changed is unknown again
                self._ask_first(trust.load_if_usable(self.node, self.store))
        return self._go_on()

    def _ask_first(self, receipt: Receipt | None) -> None:
        """Query whether the node is wanted; until it is, a run that found nothing installed changes nothing."""
        if self._watches.question is not None:
            # the rest of an interrupted cleanup does not count as installed
            self._watches.question.query_at_start(bare=receipt is None or receipt.state is State.REVERTING)

    def _ask_again(self, *, loudly: bool = False) -> None:
        """Query again whether the node is wanted, if that is unknown; a run no longer held back inspects the node."""
        if self._watches.question is None:
            return
        held = self._watches.question.cleanup_state.held
        with self._stoppable():
            self._watches.question.query_again(loudly=loudly)
        self.attention.again |= held and not self._watches.question.cleanup_state.held

    def _go_on(self) -> int:
        """Handle the pending signals, then wait for more."""
        while self.attention.stop is None:
            again, self.attention.again = self.attention.again, False
            self.attention.take_pending()
            if self.attention.again:  # a caller requests this inspection: log and report all of it
                log.suppress_known_lines(())
                ignore_known_faults(())
            if again or self.attention.again:
                self.attention.again = False
                self._converge_again()
            elif self.attention.stop is None and self._marked():
                if not self.settings.daemon:
                    return self._exit_code()
                self._wait()
        with signals.deferred():
            leaving = RunCleanup(self.settings, self.node, self.store, self.pid_file, self.attention)
            leaving.leave(self._watches.question, self._watches.readiness.marker, self._watches.telling)
            if self._watches.plugin is not None:  # last, so that no container that requests devices starts without them
                self._watches.plugin.end()
            return self._exit_code()

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let a signal end the work inside the block; `_go_on` handles the signal afterwards."""
        self._unfinished = None
        try:
            yield
        except Stopped as stopped:
            self._unfinished = stopped
            log.get().info("Stopped before the work was done", key="stopped", signal=stopped.number.name)

    def _converge_again(self) -> None:
        """Converge while waiting: after a failure the node stays as recorded, and the run goes on waiting.

        The node's status is inspected before the failure is reported: the engines may still serve the handlers.
        """
        self._watches.look.begin()
        if self._watches.is_held():
            self._ask_again(loudly=True)
            if self._watches.is_held():
                self._watches.look.fail(
                    ConfigurationError(
                        "nothing is changed on this node: the API server has not said that it is wanted",
                        hint="the log says what the API server answered",
                    )
                )
                return
            self.attention.again = False  # the inspection begins now
        try:
            with self._stoppable():
                # finds installers started since; the start checked this before it locked the PID files
                other_installer.refuse_running(self.node, self.settings.toolkit.install_dir)
                self._converge_and_note()
        except InstallerError as error:
            self._watches.look.fail(error)
            self._watches.telling.record_failure(error)
            from toolkit_installer import foreign_words

            self._watches.failure = foreign_words.mask_own_text(str(error))
            log.get().error("Could not converge: the wait goes on", key="failed-to-converge", reason=str(error))

    def _marked(self) -> bool:
        """Write or remove the ready file by the engines' status; return False if a signal came, which stays pending.

        A node that may not be changed yet is not ready.
        """
        marker = self._watches.readiness.marker
        self._watches.readiness.pending = self._gate.pending
        if not self._looked_at_plugin():
            return False
        if self._watches.is_held():
            marker.clear()
            return True
        if not self._watches.readiness.due:
            return True
        try:
            receipt = trust.load_if_usable(self.node, self.store)

            def tell() -> None:
                self._watches.telling.report_status(self._watches.readiness, receipt)

            if self._watches.gpus.idle:
                marker.write(node_watch.NO_GPU_TEXT, "nothing is to be done on this node")
                self._watches.readiness.state = NodeState(
                    ConditionReason.NO_GPU, "The node shows no NVIDIA GPU: nothing is installed"
                )
            else:
                self._watches.readiness.mark(receipt, driver_away=self._watches.driver_away, tell=tell)
            tell()
        except Stopped as stopped:
            self._unfinished = stopped
            return False
        return True

    def _looked_at_plugin(self) -> bool:
        """Update the status of an NRI plugin that is served; return False if a signal came, which stays pending."""
        plugin = self._watches.plugin
        if plugin is None:
            return True
        try:
            plugin.look()
        except Stopped as stopped:
            self._unfinished = stopped
            return False
        self._watches.readiness.plugin = plugin.standing if plugin.begun else None
        return True

    def converge(self) -> None:
        """Bring the node to the state that the settings describe. Raises InstallerError, Stopped."""
        self._watches.driver.renew()
        receipt = trust.load(self.node, self.store)
        if self._watches.gpus.leaves_alone(receipt):
            self._converger.driver_away, self._gate.pending = False, None
            return
        if self._watches.plugin is not None:
            self._watches.plugin.begin()
        if receipt is None:
            self._watches.readiness.marker.clear()  # left from when the node had no GPU
        self._watches.telling.begin(receipt)
        self._watches.looked_at, self._watches.failure = machine.now(), ""
        try:
            self._converger.converge(receipt)
        except ReloadPendingError as error:
            if not self.settings.daemon:
                raise
            self._watches.look.fail(error)
        except DriverNotReadyError as error:
            if self.settings.wait_for_driver and not self.settings.daemon:
                self._watches.gpus.wait_for_driver()
                self._converger.converge(trust.load(self.node, self.store))
                return
            if not self._watches.gpus.waits_for_driver(receipt):
                raise
            self._watches.look.fail(error)
            self._converger.driver_away, self._watches.failure = True, error.reason
            publish(
                EventKind.DRIVER_MISSING,
                "No driver is usable yet: nothing is changed before one is",
                level="warning",
                missing=error.reason,
            )

    def _drifted(self) -> bool:
        """Check the managed files; return whether any was changed, or a signal came, which stays pending."""
        try:
            with signals.interruptible():
                changed = self._watches.drift.look(trust.load_if_usable(self.node, self.store))
        except Stopped as stopped:
            self._unfinished = stopped
            return True
        self.attention.again |= changed and self.settings.on_drift is OnDrift.REPAIR
        return changed

    def _look_at_failure(self) -> None:
        """Converge again after a failure: a changed file or a started engine may have removed its cause.

        Does nothing while there is drift that is only to be reported: converging would repair it.
        """
        receipt = trust.load_if_usable(self.node, self.store)
        if self.settings.on_drift is OnDrift.REPAIR or not memory.drifted(self.node, receipt):
            log.get().info("Trying again what failed", key="looking-at-failure", reason=self._watches.failure)
            self.attention.again = True

    def _look_for_driver(self, why: str) -> None:
        """Converge again, unless that would repair files whose drift is only to be reported.

        A named driver root is only inspected: the installed files do not depend on it.
        """
        if self._watches.driver.named:
            self._see_driver(self._watches.driver.renew)
            return
        self._watches.driver.changed()
        receipt = trust.load_if_usable(self.node, self.store)
        drifted = [] if self.settings.on_drift is OnDrift.REPAIR else memory.drifted(self.node, receipt)
        if drifted:
            from toolkit_installer.waiting import refresh_command

            log.get().warning(
                "The driver may be another one, but somebody changed a managed file: `refresh` has both looked at",
                key="driver-and-drift",
                file=drifted[0],
                hint=f"`{refresh_command.of_self()}`",
            )
        else:
            log.get().info("Looking for the driver again", key="looking-for-driver", why=why)
            self.attention.again = True

    def _see_driver(self, look: Callable[[], None]) -> bool:
        """Inspect the driver; return False if a signal interrupted that, which stays pending."""
        try:
            look()
        except Stopped as stopped:
            self._unfinished = stopped
            return False
        return True

    def _wait(self) -> None:
        """Become the idle process; return only if a file was changed since it was written, or for a signal."""
        if not self._watches.gpus.idle and not self._see_driver(self._watches.driver.look_first):
            return
        receipt = trust.load_if_usable(self.node, self.store)
        managed = self._watches.drift.watched(receipt)
        # checked after the identities were taken: the idle process sees every later change
        put_off = self._gate.pending is not None and self.settings.on_drift is OnDrift.REPAIR
        if managed and not self._watches.drift.told and not put_off and self._drifted():
            return
        watched = [*managed, *self._watches.watched(receipt)]
        if not self._watches.settled():
            return
        log.get().info("Waiting for signal", key="waiting")
        services.report_ready("waiting for the driver" if self._watches.driver_away else "waiting for signal")
        later, within = self._watches.later()
        saved = self._watches.save(later=later)
        command = saved.command or wait.started_as()
        # once a change was reported, the next is looked for every 30 s: whoever writes all the time wakes nobody
        folders = [] if self._watches.drift.told else self._watches.drift.folders(receipt)
        wait.wait(
            self.pid_file,
            self.store.lock_fd,
            watched,
            command,
            saved_state.plain(msgspec.structs.replace(saved, command=tuple(command))),
            seconds=wait.woken_after(later=later, tries=saved.tries, soon=saved.standing.held, within=within),
            folders=folders,
        )

    def _exit_code(self) -> int:
        """Return 0, or 128 plus the signal's number if `--no-daemon` was interrupted: its caller must not go on."""
        if self._unfinished is not None and not self.settings.daemon:
            return SIGNALLED + self._unfinished.number
        return ExitCode.DONE
