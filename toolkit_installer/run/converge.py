"""Converging: prepare, log the plan's notes, apply, and revert the engines that no longer get handlers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from toolkit_installer import log
from toolkit_installer.applying.files import retry_if_changed
from toolkit_installer.applying.reload_gate import ReloadBudget, ReloadGate
from toolkit_installer.errors import ConfigurationError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning import plan as plan_of
from toolkit_installer.planning.prepare import Prepared, prepare
from toolkit_installer.receipt import store, trust
from toolkit_installer.receipt.schema import Receipt, State
from toolkit_installer.receipt.store import ReceiptStore, locked
from toolkit_installer.run import preload
from toolkit_installer.settings import EngineName, Method, Settings
from toolkit_installer.toolkit import payload, wrappers

if TYPE_CHECKING:
    from toolkit_installer.planning.plan import EngineWork
    from toolkit_installer.revert.engine import EngineReverter


class Converger:
    """A run's executor, which brings the node to the state that the settings describe."""

    def __init__(
        self, settings: Settings, node: Node, store: ReceiptStore, pid_file: PidFile, attention: SignalCollector
    ) -> None:
        self._settings = settings
        self._node = node
        self._store = store
        self._pid_file = pid_file
        self._attention = attention
        self.gate = ReloadGate(settings, node)
        self.driver_away = False
        """Whether no driver was usable at the last inspection; files generated for the previous driver are then kept.
        """
        self.processes: dict[EngineName, Process | None] = {}
        """The engines' processes before the first reload, as far as they are known."""

    def converge(self, receipt: Receipt | None) -> None:
        """Bring the node to the state that the settings describe; `receipt` is the recorded state.

        Raises InstallerError, Stopped.
        """
        self._refuse_strangers(receipt, receipt.file_paths() if receipt is not None else [])
        if store.is_needed(self._node, receipt, self._store.folder):
            preload.import_all()
            store.recover(self._node, receipt, self._store.folder)
        retry_if_changed(self._converge)

    def _converge(self) -> None:
        """Plan the change and apply it. Raises as `converge` does; ChangedMeanwhileError."""
        seen = self._prepare()
        _log_method(seen)
        _log_plan(seen)
        if seen.receipt is not None and plan_of.is_done(seen.receipt, seen.plan):
            if self._store.lock_fd is None and locked(self._store):
                # another instance did this after this one began without a folder to lock, and has ended
                self.converge(trust.load(self._node, self._store))
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

        paths = [wanted.path for engine in seen.plan.engines for wanted in engine.desired.files]
        self._refuse_strangers(seen.receipt, [*paths, *(work.path for work in seen.plan.specifications)])
        for record in plan_of.find_superseded(seen.receipt.engines if seen.receipt is not None else (), seen.plan):
            assert seen.receipt is not None  # noqa: S101  # it has the record
            self._reverter().refuse_stranding(seen.receipt, record)
        Applier(self._node, self._store, self._pid_file, self._attention, self._settings, self.gate).apply(seen)
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
            store.refuse_strangers(self._node, receipt, paths)
        except ConfigurationError:
            locked(self._store)
            raise

    def _retire_others(self, seen: Prepared) -> None:
        """Revert the engines that no longer get the handlers, once the new engine serves them."""
        receipt = self._store.load()
        for record in plan_of.find_superseded(receipt.engines if receipt is not None else (), seen.plan):
            assert receipt is not None  # noqa: S101  # it has the record
            receipt = self._reverter().retire(receipt, record)

    def _reverter(self) -> EngineReverter:
        preload.import_all()
        from toolkit_installer.revert.engine import EngineReverter

        settings = self._settings
        return EngineReverter(self._node, self._store, self._attention, settings.reload_timeout, settings.asked_of)

    def _prepare(self) -> Prepared:
        """Prepare the change; first revert files of the same engine that no longer get the handlers.

        Raises ReloadPendingError if neither is allowed yet.
        """
        seen = self._looked()
        self.gate.require(seen)
        while seen.receipt is not None and (
            record := plan_of.find_moved_engine(seen.receipt.engines, seen.plan.engines)
        ):
            self._attention.raise_if_stopped()
            if any(engine.reload_why for engine in seen.plan.engines):
                ReloadBudget(self._node.files, self._pid_file.path, self._settings.reload_budget).require_reload()
            again = {
                name for engine in seen.plan.engines if engine.name == record.name for name in engine.desired.served
            }
            self._reverter().retire(seen.receipt, record, staying=again)
            seen = self._looked()
        return seen

    def _looked(self) -> Prepared:
        """Prepare the change, and store the driver's status and the engines' processes."""
        seen = prepare(self._store.load(), self._settings, self._node, self._store)
        self.driver_away = seen.driver_away
        self.processes = {work.name: work.inspection.process for work in seen.plan.engines}
        return seen


def _log_method(seen: Prepared) -> None:
    """Log which method was chosen automatically, and why the others were not."""
    if seen.target.settings.method is Method.AUTO:
        choice = seen.plan.choice
        over = "; ".join(f"{each.method}: {each.why}" for each in choice.passed_over) or None
        log.get().info(
            "Chose how containers get the GPU",
            key="method-chosen",
            method=choice.method,
            why=choice.why,
            not_taken=over,
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
    from toolkit_installer.toolkit import security

    config = next(file.content for file in work.files if file.name == wrappers.CONFIG_NAME)
    assert config is not None  # noqa: S101  # it is always written, never copied
    named = payload.library_release(file.name for file in work.files)
    runtime = dict(found.programs)[payload.RUNTIMES[0]]
    return security.find_warnings(
        seen.target.settings.toolkit, config, versions.read_runtime_version(found.root, runtime), named
    )
