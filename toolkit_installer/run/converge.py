"""Converging: prepare, log the plan's notes, apply, and revert the engines that no longer get handlers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from toolkit_installer import log
from toolkit_installer.applying.files import retry_if_changed
from toolkit_installer.applying.reload_gate import ReloadBudget, ReloadGate, ReloadPendingError
from toolkit_installer.applying.reload_windows import Pending
from toolkit_installer.errors import ConfigurationError, DriverNotReadyError, InstallerError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node import idling
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning import plan as plan_of
from toolkit_installer.planning.prepare import Prepared
from toolkit_installer.receipt import trust
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import ReceiptStore, locked, needs_recovery, recover, refuse_strangers
from toolkit_installer.reporting.saved_state import SavedState
from toolkit_installer.run import preload
from toolkit_installer.settings import Cleanup, EngineName, Method
from toolkit_installer.toolkit import payload, wrappers
from toolkit_installer.waiting.node_watch import DriverWatch, GpuWatch

if TYPE_CHECKING:
    from toolkit_installer.planning.plan import EngineWork
    from toolkit_installer.revert.engine import EngineReverter


class RunContext(NamedTuple):
    """The node that a run works on, what the run holds there, and the signals that it received."""

    node: Node
    store: ReceiptStore
    pid_file: PidFile
    attention: SignalCollector
    install_dir: str

    def load_receipt(self) -> Receipt | None:
        """Return the receipt, None if there is none. Raises ConfigurationError, NodeError."""
        return trust.load(self.node, self.store)

    def load_usable_receipt(self) -> Receipt | None:
        """Return the receipt, None if there is none; one that cannot be used counts as none, and is logged."""
        return trust.load_if_usable(self.node, self.store)


class MissingDriver(enum.Enum):
    """What a run does that needs a driver while none is usable."""

    END = enum.auto()
    """End with the error."""
    BLOCK = enum.auto()
    """Wait for the driver, then converge."""
    IDLE = enum.auto()
    """Wait as the idle process, and converge once there is a driver."""
    IDLE_UNLESS_INSTALLED = enum.auto()
    """The same for a GPU that came later: no other program waits for its driver. An installation needs no waiting."""


class Converger:
    """Brings the node to the state that the settings describe, as far as GPU, driver and `--reload-when` allow."""

    def __init__(
        self,
        context: RunContext,
        prepare: Callable[[Receipt | None], Prepared],
        gate: ReloadGate,
        driver: DriverWatch,
        gpus: GpuWatch,
        missing_driver: MissingDriver,
        wait_for_driver: Callable[[], object],
    ) -> None:
        """`prepare` plans the change, given the receipt. `wait_for_driver` returns once a driver is usable."""
        self._context = context
        self._node, self._store, self._pid_file, self._attention, _ = context
        self._prepare = prepare
        self._gate = gate
        self._driver = driver
        self._gpus = gpus
        self._missing_driver = missing_driver
        self._wait_for_driver = wait_for_driver
        self.processes: dict[EngineName, Process | None] = {}
        """The engines' processes before the first reload, as far as they are known."""

    @property
    def without_gpu(self) -> bool:
        """Whether the node shows no GPU, and is left alone until it does."""
        return self._gpus.idle

    @property
    def driver_missing(self) -> bool:
        """Whether no driver was usable at the last inspection."""
        return self._driver.missing

    @property
    def pending(self) -> Pending | None:
        """The reload that is not allowed yet."""
        return self._gate.pending

    @property
    def is_complete(self) -> bool:
        """Whether the last attempt left nothing to wait for: a GPU, a driver or a reload."""
        return not (self._gpus.idle or self._driver.missing or self._gate.pending is not None)

    def converge(self, begin: Callable[[Receipt | None], None]) -> InstallerError | None:
        """Bring the node to the state that the settings describe; return why that has to wait, None if it is done.

        That is a ReloadPendingError, or a DriverNotReadyError for which the run is to wait as the idle process.
        `begin` is called with the receipt before the work, and not if a node without a GPU is left alone. Raises
        InstallerError, Stopped.
        """
        self._driver.refresh()
        receipt = self._context.load_receipt()
        if self._gpus.must_idle(receipt):
            self._driver.not_found, self._gate.pending = False, None
            return None
        begin(receipt)
        try:
            self._recover_and_converge(receipt)
        except ReloadPendingError as error:
            return error
        except DriverNotReadyError as error:
            if self._missing_driver is MissingDriver.BLOCK:
                self._wait_for_driver()
                self._recover_and_converge(self._context.load_receipt())
                return None
            installed = receipt is not None and receipt.state is State.INSTALLED
            may_idle = {MissingDriver.IDLE, *(() if installed else (MissingDriver.IDLE_UNLESS_INSTALLED,))}
            if self._missing_driver not in may_idle:
                raise
            self._driver.not_found = True
            publish(
                EventKind.DRIVER_MISSING,
                "No driver is usable yet: nothing is changed before one is",
                level="warning",
                missing=error.reason,
            )
            return error
        return None

    def inspect_driver(self) -> None:
        """Inspect a named driver root for the first time, unless there is no GPU. Raises NodeError, Stopped."""
        if not self._gpus.idle:
            self._driver.inspect_first()

    def update_driver(self) -> bool:
        """Take note of a change of the driver's files; return whether converging shows what it means.

        A named driver root is inspected instead: the installed files do not depend on it. Raises NodeError, Stopped.
        """
        if self._driver.named:
            self._driver.refresh()
        else:
            self._driver.update_identities()
        return not self._driver.named

    def must_converge_after(self, events: Collection[str]) -> bool:
        """Return whether these events of `idling` may end a wait for a GPU, which any may, or for a reload."""
        return self._gate.may_be_allowed(events) or self._gpus.idle

    @property
    def must_poll(self) -> bool:
        """Whether the run must poll: for a driver, or for a reload that no window allows."""
        pending = self._gate.pending is not None and self._gate.seconds_to_opening() is None
        return self._driver.missing or pending

    def seconds_to_opening(self) -> float | None:
        """Return the seconds until the next reload window opens; None if none is waited for."""
        return self._gate.seconds_to_opening()

    def list_watched_paths(self) -> list[tuple[str, str, str]]:
        """Return the paths that the idle process watches for the next attempt: event, path, identity."""
        return [
            *((idling.DRIVER, *each) for each in self._driver.watched),
            *((idling.GPU, *each) for each in self._gpus.watched),
            *((idling.BUSY, *each) for each in self._gate.watched),
        ]

    def save(self, state: SavedState) -> SavedState:
        """Return the state with what `restore` takes."""
        return msgspec.structs.replace(
            state,
            driver=self._driver.watched,
            driver_missing=self._driver.missing,
            driver_history=self._driver.history,
            without_gpu=self._gpus.idle,
            pending=self._gate.pending,
        )

    def restore(self, saved: SavedState) -> None:
        """Restore what the process before the idle one saved."""
        self._driver.restore(saved.driver, saved.driver_history, missing=saved.driver_missing)
        self._gpus.idle = saved.without_gpu
        self._gate.pending = saved.pending

    def _recover_and_converge(self, receipt: Receipt | None) -> None:
        """Finish what a killed run left, then plan the change and apply it. Raises InstallerError, Stopped."""
        self._refuse_strangers(receipt, receipt.file_paths() if receipt is not None else [])
        if needs_recovery(self._node, receipt, self._store.folder):
            preload.import_all()
            recover(self._node, receipt, self._store.folder)
        retry_if_changed(self._converge)

    def _converge(self) -> None:
        """Plan the change and apply it. Raises as `converge` does; ChangedMeanwhileError."""
        seen = self._prepare_allowed()
        _log_method(seen)
        _log_plan(seen)
        if seen.receipt is not None and plan_of.is_done(seen.receipt, seen.plan):
            if self._store.lock_fd is None and locked(self._store):
                # another instance did this after this one began without a folder to lock, and has ended
                self._recover_and_converge(self._context.load_receipt())
                return
            self._tidy(seen.receipt)
            if not plan_of.find_superseded(seen.receipt.engines, seen.plan):
                log.get().info(
                    "Nothing to do: the node is as it should be", key="nothing-to-do", folder=seen.plan.toolkit.folder
                )
            self._retire_others(seen)
            return
        recorded = seen.receipt.engines if seen.receipt is not None else ()
        preload.import_all(frozenset({*(work.name for work in seen.plan.engines), *(each.name for each in recorded)}))
        from toolkit_installer.applying.apply import Applier
        from toolkit_installer.applying.record import ReceiptBuilder
        from toolkit_installer.applying.reload import Switcher

        paths = [wanted.path for engine in seen.plan.engines for wanted in engine.desired.files]
        self._refuse_strangers(seen.receipt, [*paths, *(work.path for work in seen.plan.specifications)])
        for record in plan_of.find_superseded(seen.receipt.engines if seen.receipt is not None else (), seen.plan):
            assert seen.receipt is not None  # noqa: S101  # it has the record
            self._build_reverter(seen).refuse_stranding(seen.receipt, record)
        settings = seen.target.settings
        Applier(
            self._store,
            ReceiptBuilder(self._node, self._store, self._pid_file.path, self._pid_file.created_folders),
            Switcher(self._node, self._attention, settings.reload_timeout, self._store.folder),
            self._gate,
            self._build_budget(seen),
            interruptible=settings.cleanup is Cleanup.ALWAYS,
        ).apply(seen)
        self._retire_others(seen)
        publish(EventKind.CONFIGURED, "The node is configured", folder=seen.plan.toolkit.folder)

    def _tidy(self, receipt: Receipt) -> None:
        """Remove what a run left that was killed when all but that was done. Raises InstallerError."""
        if self._store.is_tidy(receipt):
            return
        self._store.prepare()  # locks the folder, so that no other instance starts to name these files
        if self._store.load() == receipt:
            self._store.tidy(receipt)

    def _refuse_strangers(self, receipt: Receipt | None, paths: Iterable[str]) -> None:
        """Raise ConfigurationError for files in the way; AlreadyRunningError if a running instance owns them."""
        try:
            refuse_strangers(self._node, receipt, paths)
        except ConfigurationError:
            locked(self._store)
            raise

    def _retire_others(self, seen: Prepared) -> None:
        """Revert the engines that no longer get the handlers, once the new engine serves them."""
        receipt = self._store.load()
        for record in plan_of.find_superseded(receipt.engines if receipt is not None else (), seen.plan):
            assert receipt is not None  # noqa: S101  # it has the record
            receipt = self._build_reverter(seen).retire(receipt, record)

    def _build_budget(self, seen: Prepared) -> ReloadBudget:
        return ReloadBudget(self._node.files, self._pid_file.path, seen.target.settings.reload_budget)

    def _build_reverter(self, seen: Prepared) -> EngineReverter:
        preload.import_all()
        from toolkit_installer.revert.engine import EngineReverter

        settings = seen.target.settings
        return EngineReverter(self._node, self._store, self._attention, settings.reload_timeout, settings.settings_of)

    def _prepare_allowed(self) -> Prepared:
        """Prepare the change; first revert files of the same engine that no longer get the handlers.

        Raises ReloadPendingError if neither is allowed yet.
        """
        seen = self._prepare_once()
        self._gate.require(seen)
        while seen.receipt is not None and (
            record := plan_of.find_moved_engine(seen.receipt.engines, seen.plan.engines)
        ):
            self._attention.raise_if_stopped()
            if any(engine.reload_why for engine in seen.plan.engines):
                self._build_budget(seen).require_reload()
            kept = {
                name for engine in seen.plan.engines if engine.name == record.name for name in engine.desired.served
            }
            self._build_reverter(seen).retire(seen.receipt, record, kept_handlers=kept)
            seen = self._prepare_once()
        return seen

    def _prepare_once(self) -> Prepared:
        """Prepare the change, and store the driver's status and the engines' processes."""
        seen = self._prepare(self._store.load())
        self._driver.not_found = seen.driver_away
        self.processes = {work.name: work.inspection.process for work in seen.plan.engines}
        return seen


def _log_method(seen: Prepared) -> None:
    """Log which method was chosen automatically, and why the others were not."""
    if seen.target.settings.method is Method.AUTO:
        choice = seen.plan.choice
        passed_over = "; ".join(f"{each.method}: {each.why}" for each in choice.passed_over) or None
        log.get().info(
            "Chose how containers get the GPU",
            key="method-chosen",
            method=choice.method,
            why=choice.why,
            not_taken=passed_over,
        )


def _log_plan(seen: Prepared) -> None:
    """Log the interruption of an earlier run, and the plan's notes, dangers and warnings."""
    if seen.receipt is not None and seen.receipt.state is not State.INSTALLED:
        log.get().warning(
            "An earlier run was interrupted: finishing what it began", key="interrupted-run", state=seen.receipt.state
        )
    for warning in _find_security_warnings(seen):
        log.get().warning(warning, key="security")
    for specification in seen.plan.specifications:
        if specification.note:
            log.get().warning("A CDI specification", key="cdi-note", file=specification.path, what=specification.note)
    for engine in seen.plan.engines:
        _log_engine(engine)


def _log_engine(engine: EngineWork) -> None:
    """Log the notes, faults, dangers and kept edits of one engine's files."""
    for note in engine.desired.notes:
        log.get().info(note, key="engine-note", engine=engine.name)
    for fault in engine.desired.faults:
        log.get().warning(fault, key="engine-fault", engine=engine.name)
    for danger in engine.desired.dangers if engine.reload_why else ():
        log.get().warning(danger, key="engine-danger", engine=engine.name)
    for wanted in engine.desired.files:
        for left in wanted.left:
            log.get().warning(
                "Somebody changed what was ours", key="edit-kept", file=wanted.path, engine=engine.name, what=left
            )


def _find_security_warnings(seen: Prepared) -> tuple[str, ...]:
    """Return warnings about the security of a toolkit that is about to change."""
    work, found = seen.plan.toolkit, seen.target.payload
    if not work.write:
        return ()
    from toolkit_installer.reporting import versions
    from toolkit_installer.toolkit.layout import find_config_warnings

    config = next(file.content for file in work.files if file.name == wrappers.CONFIG_NAME)
    assert config is not None  # noqa: S101  # it is always written, never copied
    named = payload.library_release(file.name for file in work.files)
    runtime = dict(found.programs)[payload.RUNTIMES[0]]
    printed = versions.read_runtime_version(found.root, runtime)
    release_warnings = payload.find_release_warnings(printed, named)
    return (*release_warnings, *find_config_warnings(seen.target.settings.toolkit, config))
