"""One running instance: converge, wait, inspect again, clean up.

At its end, a run that waited reverts its changes, unless the settings or the DaemonSet want them to stay.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from toolkit_installer import log
from toolkit_installer.errors import SIGNALLED, ConfigurationError, DriverNotReadyError, ExitCode, InstallerError
from toolkit_installer.events import get_fault_digests, ignore_known_faults
from toolkit_installer.kubernetes.verdicts import CleanupState
from toolkit_installer.node import idling, machine, services, signals
from toolkit_installer.node.signals import Stopped
from toolkit_installer.planning import other_installer
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import locked
from toolkit_installer.reporting import outcome, saved_state
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.run import preload
from toolkit_installer.run.converge import Converger, RunContext
from toolkit_installer.run.node_status import NodeStatusReporter
from toolkit_installer.settings import Settings
from toolkit_installer.waiting import wait
from toolkit_installer.waiting.node_watch import DriftWatch

if TYPE_CHECKING:
    from toolkit_installer.kubernetes.wanted import DaemonSetQuery


class RunCleanup:
    """The end of a run: cleans up, or logs why not."""

    def __init__(
        self,
        context: RunContext,
        status: NodeStatusReporter,
        daemon_set_query: DaemonSetQuery | None,
        revert: Callable[[Receipt, bytes | None], None],
        *,
        never: bool,
        daemon: bool,
    ) -> None:
        """`revert` reverts what a receipt records, given the request of `uninstall`. `never`: `--cleanup never`."""
        self._store = context.store
        self._load_receipt = context.load_receipt
        self._status = status
        self._daemon_set_query = daemon_set_query
        self._revert = revert
        self._never = never
        self._daemon = daemon

    def clean_up_or_leave(self) -> None:
        """Clean up if the settings, a request of `uninstall`, or the DaemonSet's state demand it.

        The node's status in the cluster is withdrawn first: the permission to do so goes with the DaemonSet. Raises
        InstallerError if the node is still configured, or half-way.
        """
        reports, query = self._status.reports, self._daemon_set_query
        reports.prepare_shutdown()
        request = self._store.take_request() if self._store.exists() else None
        # queried first: the permission to query is deleted together with the DaemonSet
        stays = request is None and query is not None and self._store.exists() and not query.is_cleanup_due()
        self._status.readiness.ready_file.clear_before_cleanup()
        receipt = self._load_receipt()
        if request is None and self._never:
            log.get().info("Leaving the node configured, as --cleanup never says", key="left-configured-never")
        elif request is None and not self._daemon:
            log.get().info("Leaving: --no-daemon cleans nothing up", key="left-no-daemon")
        elif stays:
            log.get().info("Leaving the node configured, as --cleanup auto says", key="left-configured-auto")
        else:
            reports.remove_reports()
            if receipt is None:
                log.get().info("Nothing to clean up", key="nothing-to-clean-up")
                return
            self._revert(receipt, request)


def revert_installation(settings: Settings, context: RunContext, receipt: Receipt, request: bytes | None) -> None:
    """Revert the changes that the receipt records; `request` is the request of `uninstall`. Raises InstallerError."""
    preload.import_all()
    from toolkit_installer.revert import uninstall

    node, store, pid_file, attention, _ = context
    stop = attention.stop
    log.get().info("Cleaning up", key="cleaning-up", signal=stop.name if stop else None)
    keep = settings.keep_toolkit if request is None else request == uninstall.KEEP
    try:
        remainder = uninstall.revert(settings, node, store, receipt, attention, keep_toolkit=keep)
    except InstallerError:
        log.get().error(
            "Cleanup failed: the node is STILL configured, or half-way",
            key="cleanup-failed",
            hint="the next error says why; once that is mended, run `toolkit-installer uninstall`",
        )
        raise
    pid_file.adopt_folders(receipt.pid_folders)
    if request is not None or settings.cluster is not None:
        # an administrator or the cluster wants the node reverted: no crash loop is behind the cleanup
        uninstall.forgive_reloads(settings, node, receipt)
    uninstall.log_result(receipt, remainder)


class Instance:
    """A run that holds the locks: it converges, waits as the idle process, and cleans up at its end."""

    def __init__(
        self,
        context: RunContext,
        converger: Converger,
        drift: DriftWatch,
        status: NodeStatusReporter,
        daemon_set_query: DaemonSetQuery | None,
        cleanup: RunCleanup,
        *,
        daemon: bool,
    ) -> None:
        """`daemon_set_query`: None if the settings name no cluster. `daemon`: wait, and clean up at the end."""
        self.store = context.store
        self._context = context
        self._attention = context.attention
        self._converger = converger
        self._drift = drift
        self._status = status
        self._daemon_set_query = daemon_set_query
        self._cleanup = cleanup
        self._daemon = daemon
        self._stopped_by: Stopped | None = None
        """The signal that stopped the work before it was done."""
        self._converged_at, self._failure = 0.0, ""
        """When the node was last brought to where it should be, and why that failed (`SavedState`)."""
        self._tries = 0
        self._command: tuple[str, ...] = ()
        """The command line of the program's first start; empty during that first start."""

    # --- start and wake-up ---

    def start(self) -> int:
        """Converge for the first time, then wait; return the exit code if the run is not to wait."""
        if locked(self.store):
            self.store.take_request()  # the request was for an earlier run
        self._status.readiness.ready_file.prepare()
        with self._stoppable():
            self._status.reports.prepare()
            self._query_at_start(self._context.load_receipt())
            if not self._is_held():
                self._converge_or_end()
        return self._run_until_stopped()

    def resume(self, events: Collection[str], saved: SavedState) -> int:
        """Continue after `events` woke the idle process: signals' names, or events of `idling`."""
        self._restore(saved, events)
        events = frozenset(events)
        if events <= {idling.LATER, idling.BUSY, idling.CHILD}:
            log.suppress_known_lines(saved.line_digests)
            ignore_known_faults(saved.fault_digests)
        self._handle_events(events, saved.tries)
        for name in signal.Signals.__members__.keys() & events:
            if name == signal.SIGHUP.name:
                log.get().info("Looking again", key="looking-again", signal=name)
                self._attention.again = True
            else:
                self._attention.stop = signal.Signals[name]
        if not saved.parsed and self._attention.stop is None:
            log.get().info("Another version of this program fell asleep: looking again", key="program-changed")
            self._attention.again = True
            with self._stoppable():  # whether the node may be changed is unknown again
                self._query_at_start(self._context.load_usable_receipt())
        return self._run_until_stopped()

    def _handle_events(self, events: frozenset[str], tries: int) -> None:
        """Find out whether these events of `idling` require converging again; `tries`: how often the run polled."""
        drifted = idling.DRIFT in events and self._has_drifted()
        if self._failure and not drifted and not events.isdisjoint({idling.DRIFT, idling.ENGINE}):
            self._retry_failure()
        if idling.DRIVER in events:
            self._look_for_driver("its files changed")
        if idling.LATER in events:
            self._tries = tries + 1
            self._query_again()
            if self._converger.driver_missing:
                self._look_for_driver("none was usable so far")
        self._attention.again |= self._converger.must_converge_after(events)

    def _run_until_stopped(self) -> int:
        """Handle the pending signals, then wait for more; clean up at the end, and return the exit code."""
        while self._attention.stop is None:
            again, self._attention.again = self._attention.again, False
            self._attention.take_pending()
            if self._attention.again:  # a caller requests this inspection: log and report all of it
                log.suppress_known_lines(())
                ignore_known_faults(())
            if again or self._attention.again:
                self._attention.again = False
                self._converge_again()
            elif self._attention.stop is None and self._update_status():
                if not self._daemon:
                    return self._exit_code()
                self._wait()
        with signals.deferred():
            self._cleanup.clean_up_or_leave()
            self._status.stop()  # last, so that no container that requests devices starts without them
            return self._exit_code()

    @contextlib.contextmanager
    def _until_signal(self) -> Iterator[None]:
        """Let a signal end the work inside the block; it stays pending, and `_run_until_stopped` handles it."""
        try:
            yield
        except Stopped as stopped:
            self._stopped_by = stopped

    @contextlib.contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let a signal end the work inside the block as `_until_signal` does, and log that."""
        self._stopped_by = None
        try:
            yield
        except Stopped as stopped:
            self._stopped_by = stopped
            log.get().info("Stopped before the work was done", key="stopped", signal=stopped.number.name)

    def _exit_code(self) -> int:
        """Return 0, or 128 plus the signal's number if `--no-daemon` was interrupted: its caller must not go on."""
        if self._stopped_by is not None and not self._daemon:
            return SIGNALLED + self._stopped_by.number
        return ExitCode.DONE

    # --- is the node wanted? ---

    def _is_held(self) -> bool:
        """Return whether the API server has yet to allow any change of the node."""
        return self._daemon_set_query is not None and self._daemon_set_query.cleanup_state.held

    def _query_at_start(self, receipt: Receipt | None) -> None:
        """Query whether the node is wanted; until it is, a run that found nothing installed changes nothing."""
        if self._daemon_set_query is not None:
            # the rest of an interrupted cleanup does not count as installed
            self._daemon_set_query.query_at_start(bare=receipt is None or receipt.state is State.REVERTING)

    def _query_again(self, *, verbose: bool = False) -> None:
        """Query again whether the node is wanted, if that is unknown; a run no longer held back inspects the node."""
        if self._daemon_set_query is None:
            return
        held = self._is_held()
        with self._stoppable():
            self._daemon_set_query.query_again(loudly=verbose)
        self._attention.again |= held and not self._is_held()

    # --- converging ---

    def _converge_or_end(self) -> None:
        """Converge, and report a failure: no later attempt follows. Raises InstallerError, Stopped."""
        self._status.inspection.begin()
        try:
            self._converge()
        except InstallerError as error:
            receipt = self._context.load_usable_receipt()
            self._status.reports.report_failure(error, self._status.readiness.current, receipt)
            raise

    def _converge_again(self) -> None:
        """Converge while waiting: after a failure the node stays as recorded, and the run goes on waiting.

        The node's status is inspected before the failure is reported: the engines may still serve the handlers.
        """
        self._status.inspection.begin()
        if self._is_held():
            self._query_again(verbose=True)
            if self._is_held():
                self._status.inspection.fail(
                    ConfigurationError(
                        "nothing is changed on this node: the API server has not said that it is wanted",
                        hint="the log says what the API server answered",
                    )
                )
                return
            self._attention.again = False  # the inspection begins now
        try:
            with self._stoppable():
                # finds installers started since; the start checked this before it locked the PID files
                other_installer.refuse_running(self._context.node, self._context.install_dir)
                self._converge()
        except InstallerError as error:
            self._status.record_failure(error)
            from toolkit_installer import foreign_words

            self._failure = foreign_words.mask_own_text(str(error))
            log.get().error("Could not converge: the wait goes on", key="failed-to-converge", reason=str(error))

    def _converge(self) -> None:
        """Converge, and record the success. Raises InstallerError, Stopped."""
        deferral = self._converger.converge(self._begin)
        if deferral is not None:
            if not self._daemon:
                raise deferral
            self._status.inspection.fail(deferral)
        if isinstance(deferral, DriverNotReadyError):
            self._failure = deferral.reason
        outcome.remove_record(self._context.node, self._context.pid_file.path, self._status.readiness.ready_file.path)
        self._status.reports.record_success(complete=self._converger.is_complete)

    def _begin(self, receipt: Receipt | None) -> None:
        """Report that the run is at work. Raises InstallerError, Stopped."""
        self._status.begin(receipt)
        self._converged_at, self._failure = machine.now(), ""

    def _has_drifted(self) -> bool:
        """Check the managed files; return whether any was changed, or a signal came, which stays pending."""
        changed = True
        with self._until_signal():
            with signals.interruptible():
                changed = self._drift.log_changes(self._context.load_usable_receipt())
            self._attention.again |= changed and self._drift.repairs
        return changed

    def _retry_failure(self) -> None:
        """Converge again after a failure: a changed file or a started engine may have removed its cause.

        Does nothing while there is drift that is only to be reported: converging would repair it.
        """
        if not self._list_drift_to_report():
            log.get().info("Trying again what failed", key="looking-at-failure", reason=self._failure)
            self._attention.again = True

    def _look_for_driver(self, why: str) -> None:
        """Converge again if that shows what became of the driver, and repairs no drift that is only to be reported."""
        must_converge = False
        with self._until_signal():
            must_converge = self._converger.update_driver()
        if not must_converge:
            return
        drifted = self._list_drift_to_report()
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
            self._attention.again = True

    def _list_drift_to_report(self) -> list[str]:
        """Return the changed files that converging would repair although their drift is only to be reported."""
        receipt = self._context.load_usable_receipt()
        return [] if self._drift.repairs else file_records.list_drifted(self._context.node, receipt)

    # --- waiting ---

    def _update_status(self) -> bool:
        """Report the node's status; return False if a signal came, which stays pending. Raises NodeError."""
        try:
            self._report_status()
        except Stopped as stopped:
            self._stopped_by = stopped
            return False
        return True

    def _report_status(self) -> None:
        """Write or remove the ready file by the node's status, and report it. Raises NodeError, Stopped.

        A node that may not be changed yet is not ready.
        """
        converger = self._converger
        self._status.update_plugin()
        if self._is_held():
            self._status.readiness.ready_file.clear()
        elif self._status.readiness.is_needed:
            receipt = self._context.load_usable_receipt()
            if converger.without_gpu:
                self._status.update_without_gpu(receipt)
            else:
                self._status.update(receipt, driver_missing=converger.driver_missing, pending=converger.pending)

    def _wait(self) -> None:
        """Become the idle process; return only if there is something to do first, or for a signal."""
        with self._until_signal():
            self._converger.inspect_driver()
            self._become_idle()

    def _become_idle(self) -> None:
        """Become the idle process; return only if a file was changed since it was written, or the plugin reported.

        Raises NodeError, Stopped.
        """
        receipt = self._context.load_usable_receipt()
        managed = self._drift.list_watched_paths(receipt)
        # checked after the identities were taken: the idle process sees every later change
        deferred = self._converger.pending is not None and self._drift.repairs
        if managed and not self._drift.logged and not deferred and self._has_drifted():
            return
        watched = [
            *managed,
            *self._status.list_watched_paths(receipt, self._converger.processes),
            *self._converger.list_watched_paths(),
        ]
        if not self._status.settle():  # last of all
            return
        log.get().info("Waiting for signal", key="waiting")
        services.report_ready("waiting for the driver" if self._converger.driver_missing else "waiting for signal")
        polls, opening = self._must_poll(), self._converger.seconds_to_opening()
        saved = self._save(polls=polls)
        seconds = wait.seconds_to_wake_up(later=polls, tries=saved.tries, soon=saved.cleanup_state.held, within=opening)
        wait.wait(
            self._context.pid_file,
            self.store.lock_fd,
            watched,
            saved.command,
            saved_state.plain(saved),
            seconds=seconds,
            # after a logged change, the next is looked for every 30 s: a program that writes all the time wakes nobody
            folders=[] if self._drift.logged else self._drift.list_watched_folders(receipt),
        )

    def _must_poll(self) -> bool:
        """Return whether something is unknown that no watched path tells."""
        query = self._daemon_set_query
        unknown = query is not None and not query.cleanup_state.wanted
        return unknown or self._converger.must_poll or self._status.must_poll

    def _save(self, *, polls: bool) -> SavedState:
        """Return what `_restore` takes."""
        query = self._daemon_set_query
        state = SavedState(
            tries=self._tries if polls else 0,
            command=self._command or tuple(wait.list_own_words()),
            cleanup_state=query.cleanup_state if query is not None else CleanupState(),
            converged_at=self._converged_at,
            failure=self._failure,
            line_digests=log.get_line_digests(),
            fault_digests=get_fault_digests(),
            differences=tuple(self._drift.differences.items()),
        )
        return self._status.save(self._converger.save(state))

    def _restore(self, saved: SavedState, events: Collection[str]) -> None:
        """Restore what the process before the idle one saved."""
        if self._daemon_set_query is not None:
            self._daemon_set_query.cleanup_state = saved.cleanup_state
        self._command = saved.command
        self._converged_at, self._failure = saved.converged_at, saved.failure
        self._converger.restore(saved)
        self._status.restore(saved, engine_changed=idling.ENGINE in events)
