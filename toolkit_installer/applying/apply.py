"""Carry out a plan: receipt before change, toolkit before handlers, handlers before what is no longer needed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import msgspec

from toolkit_installer import log
from toolkit_installer.applying import canary, files, impact, record
from toolkit_installer.applying.record import Recorder
from toolkit_installer.applying.reload import NotServedError, Switch, Switcher
from toolkit_installer.applying.reload_gate import ReloadBudget, ReloadGate, ReloadPendingError
from toolkit_installer.driver import cdi
from toolkit_installer.engines.adapters import get_adapter
from toolkit_installer.engines.api import LiveState
from toolkit_installer.errors import EngineDownError, EngineRejectedError, InstallerError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node import signals
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Tree
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.signals import SignalCollector, Stopped
from toolkit_installer.planning import files_naming, plan, toolkit_users
from toolkit_installer.planning.installed import Copies, SpecificationWork
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.planning.prepare import Prepared, prepare
from toolkit_installer.receipt.schema import Copy, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import Cleanup, EngineName, ReloadMode, Settings


class Applier:
    """Applies a plan to the node, and rolls it back if a step fails."""

    def __init__(
        self,
        node: Node,
        store: ReceiptStore,
        pid_file: PidFile,
        attention: SignalCollector,
        settings: Settings,
        gate: ReloadGate,
    ) -> None:
        self.node = node
        self.store = store
        self.attention = attention
        self.settings = settings
        self.gate = gate
        self.interruptible = settings.cleanup is Cleanup.ALWAYS
        self.switcher = Switcher(node, attention, settings.reload_timeout, store.folder)
        self.budget = ReloadBudget(node.files, pid_file.path, settings.reload_budget)
        self.recorder = Recorder(node, settings, store, pid_file.path, pid_file.created_folders)
        self._reloaded: set[EngineName] = set()
        """The engines that were told to reload their new files."""

    def apply(self, seen: Prepared) -> None:
        """Carry out the plan. If a step fails, restore the engines' files first, then re-raise the error.

        Raises EngineRejectedError, EngineDownError, NodeError, ChangedMeanwhileError; ConfigurationError if the receipt
        cannot record the change; ReloadPendingError; DriverNotReadyError if device nodes cannot be created; Stopped
        after a signal.
        """
        if any(engine.reload_why for engine in seen.plan.engines):
            self.budget.require_reload()
        self.recorder.require_recordable(seen)
        created = self.store.prepare()
        if self.store.load() != seen.receipt:
            # another run changed the node between planning and locking: the plan is out of date
            raise ChangedMeanwhileError.of(self.store.folder)
        receipt = self.recorder.begun(seen, created)
        try:
            self.store.save(receipt, seen.originals)
            if seen.plan.device_nodes:
                seen = self._with_nodes(seen)
                receipt = self.recorder.begun(seen, created)
                self.store.save(receipt, seen.originals)
            copies = self._change(seen, receipt)
        except (InstallerError, Stopped) as error:
            try:
                with signals.deferred():
                    self._put_back(seen, receipt, error)
                raise
            except InstallerError as told:
                told.reloaded = self.switcher.reloads > 0
                raise
        # the engines serve the change: from here on the receipt records the node's present state
        settled = files.remove_needless_folders(
            self.node, record.build_final_receipt(seen, receipt, copies), self.store.folder
        )
        self.store.save(settled, {})
        self.store.tidy(settled)
        # not earlier: a rollback up to here restores an engine configuration that still names these files
        for name in seen.plan.toolkit.remove:
            files.remove(self.node, seen.plan.toolkit.folder, name)

    def _with_nodes(self, seen: Prepared) -> Prepared:
        """Create the driver's device nodes, which stay; return a new plan made with them present.

        The new plan is based on the node's present state and on the receipt from before this run.
        """
        self._safe_point()
        cdi.SpecificationGenerator(seen.target.payload, seen.target.settings.toolkit, seen.target.driver).create_nodes(
            self.node.calls
        )
        again = prepare(seen.receipt, self.settings, self.node, self.store)
        if again.plan.device_nodes:
            raise ChangedMeanwhileError.of(again.plan.device_nodes[0])  # another program removed it just now
        for work in again.plan.specifications:
            if work.note and work.path not in {known.path for known in seen.plan.specifications}:
                log.get().warning("A CDI specification", key="cdi-note", file=work.path, what=work.note)
        return again

    def _change(self, seen: Prepared, receipt: Receipt) -> tuple[Copy, ...]:
        """Carry out the plan's steps; return the copies of payload files for the receipt to record."""
        work = seen.plan.toolkit
        for folder in receipt.folders:
            self.node.files.make_folders(folder)
        copied = files.install(self.node, seen, self._safe_point)
        if seen.receipt is None or seen.receipt.state is not State.INSTALLED:
            # a killed run may have renamed files without flushing them: make them survive a power cut
            files.flush(self.node, work, receipt.folders)
        if work.write:
            log.get().info("Installed the toolkit", key="toolkit-installed", folder=work.folder, files=len(work.write))
        # additions first: remove what is no longer wanted once the engines serve the new state
        made = [each for each in seen.plan.specifications if each.target != each.base]
        gone = [each for each in seen.plan.specifications if each.target == each.base]
        for specification in made:
            self._safe_point()
            self.switcher.writer.write(None, specification.file, specification.target)
        # installing the toolkit may have taken a while; from the first engine on, the change is completed or rolled
        # back
        self.gate.require(seen)
        for engine in seen.plan.engines:
            self._safe_point()
            if engine.reload_why and engine.reload.ends_after_calls:
                # a client that stops this process through this engine waits for it, and the engine's restart waits for
                # that client
                self.attention.raise_if_stopped()
            self._switch_engine(engine, work.folder)
        for specification in gone:
            self._safe_point()
            self.switcher.writer.write(None, specification.file, specification.target)
        written = {file.name for file in work.write}
        stood = [each for each in seen.facts.toolkit.copies if each.name not in written]
        return Copies(self.node, work.folder, Tree(seen.target.payload.root)).settled([*stood, *copied])

    def _safe_point(self) -> None:
        if self.interruptible:
            self.attention.raise_if_stopped()

    def _switch_engine(self, work: EngineWork, folder: str) -> None:
        reload = work.reload if work.reload_why else msgspec.structs.replace(work.reload, mode=ReloadMode.NONE)
        if work.reload_why:
            log.get().info("The engine is to be reloaded", key="reload-needed", engine=work.name, why=work.reload_why)
            with contextlib.nullcontext() if self.interruptible else signals.deferred():
                impact.log_impact(self.node, work.name, work.inspection, reload, folder)
            self.budget.spend()

        def wrong(live: LiveState) -> list[str]:
            return plan.find_differences(live, work.desired)

        switch = Switch(get_adapter(work.name), work.inspection, work.desired.files, reload, wrong)
        before = self.switcher.reloads
        try:
            self.switcher.make(switch, interruptible=self.interruptible)
        finally:
            if self.switcher.reloads > before:
                self._reloaded.add(work.name)
        if self.settings.verify_with_canary and self.switcher.reloads > before:
            with contextlib.nullcontext() if self.interruptible else signals.deferred():
                canary.verify(self.node, work, self.settings, folder)
        if work.changes and work.reload.mode is ReloadMode.NONE and not work.reload.by_itself:
            log.get().warning(
                "The engine was not reloaded: it serves the handlers after its next restart",
                key="not-reloaded",
                engine=work.name,
                socket=work.inspection.socket,
                serves=False,
                reason=work.inspection.silence or None,
            )

    def _put_back(self, seen: Prepared, receipt: Receipt, error: InstallerError | Stopped) -> None:
        """Roll back: restore the old bytes of the engines' files, reload where they may have been read, and check.

        Raises EngineRejectedError or EngineDownError in place of an error that came from the engine.
        """
        if isinstance(error, ReloadPendingError):
            log.get().info(
                "The reload is not allowed any more: what was begun is taken back",
                key="reload-put-off",
                why=error.reason,
            )
        elif isinstance(error, InstallerError):
            publish(EventKind.ROLLBACK, "The change failed and is taken back", level="error", reason=str(error))
        failures = [failure for work in reversed(seen.plan.engines) if (failure := self._tried_back(work, error))]
        failures += [failure for made in seen.plan.specifications if (failure := self._tried_replacing(made))]
        if failures:
            # raise only now, so that one failure does not keep the other engines from being restored; raise the gravest
            raise next((each for each in failures if isinstance(each, EngineDownError)), failures[0])
        previous = seen.receipt
        if previous is not None:
            self._keep_record(previous, receipt, {file.name for file in seen.plan.toolkit.write})
        else:
            self._remove_what_is_new(seen, receipt)
            files.remove_folders(self.node, receipt, self.store)
        if isinstance(error, NotServedError):
            raise EngineRejectedError(
                f"the engine did not take the change over: {error.reason}; its old configuration is back, and it "
                + ("is restarted by systemd once this process has ended" if self.switcher.unseen else "answers"),
                hint="look at the engine's own log for its reason",
            ) from error

    def _remove_what_is_new(self, seen: Prepared, receipt: Receipt) -> None:
        """Remove the toolkit's new files; keep all of them while a process uses the toolkit or a file names it."""
        folder = receipt.toolkit_folder
        named = files_naming.find_naming_files(self.node, folder, known=files_naming.list_recorded_files(receipt))
        for each in named:
            log.get().warning(
                "The toolkit stays: a file of an engine names it",
                key="toolkit-named",
                file=each.file,
                line=each.line,
            )
        if not named and not toolkit_users.is_still_needed(self.node, folder, receipt.engines):
            new = tuple(name for name in receipt.toolkit_files if name not in seen.plan.toolkit.present)
            files.remove_toolkit_files(self.node, msgspec.structs.replace(receipt, toolkit_files=new))

    def _keep_record(self, previous: Receipt, receipt: Receipt, written: Collection[str]) -> None:
        """Save the previous receipt again, with the new toolkit files added.

        Contents of files in `written` are dropped, as each may or may not have been overwritten.
        """
        names = dict.fromkeys([*previous.toolkit_files, *receipt.toolkit_files])
        folders = dict.fromkeys([*previous.folders, *receipt.folders])
        known = tuple(each for each in previous.contents if each.name not in written)
        kept = msgspec.structs.replace(previous, toolkit_files=tuple(names), folders=tuple(folders), contents=known)
        try:
            self.store.save(kept, {})
        except NodeError as error:
            # the receipt on the node says that a change is under way: the next run finishes it
            log.get().warning(
                "The receipt could not be written back; the next run repairs it",
                key="receipt-not-written",
                reason=str(error),
            )

    def _tried_replacing(self, work: SpecificationWork) -> InstallerError | None:
        """Restore the old version of a CDI specification; return the error if that fails."""
        try:
            self.switcher.writer.write(None, work.file, work.file.content)
        except ChangedMeanwhileError:
            log.get().warning(
                "Somebody else wrote the CDI specification meanwhile: it stays",
                key="cdi-changed-meanwhile",
                file=work.path,
            )
        except InstallerError as failure:
            log.get().error(
                "The CDI specification could not be given back",
                key="cdi-not-given-back",
                file=work.path,
                reason=str(failure),
            )
            return failure
        return None

    def _tried_back(self, work: EngineWork, error: InstallerError | Stopped) -> InstallerError | None:
        """Restore one engine's files; return the error if that fails."""
        old = [msgspec.structs.replace(wanted, target=wanted.file.content) for wanted in reversed(work.desired.files)]
        # an engine that was not reloaded has no new handlers to forget
        mode = work.reload.mode if work.name in self._reloaded else ReloadMode.NONE
        switch = Switch(
            get_adapter(work.name),
            work.inspection,
            old,
            msgspec.structs.replace(work.reload, mode=mode),
            lambda now: plan.find_unreverted(now, work),
            last_resort=True,
        )
        try:
            self.switcher.make(switch, interruptible=False)
        except InstallerError as reason:
            failure = reason
            if isinstance(reason, NotServedError):
                failure = EngineDownError(
                    f"{work.name} DOES NOT COME BACK, although its old configuration is in place: {reason.reason}",
                    hint="look at its log and restart it; the installer's next run, or `uninstall`, finishes the rest",
                )
                failure.__cause__ = error
            log.get().error(
                "The engine's files could not all be given back",
                key="rollback-incomplete",
                engine=work.name,
                reason=str(failure),
            )
            return failure
        return None
