"""Carry out a plan: receipt before change, toolkit before handlers, handlers before what is no longer needed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import msgspec

from toolkit_installer import foreign_words, log
from toolkit_installer.applying import files, impact, record
from toolkit_installer.applying.record import ReceiptBuilder
from toolkit_installer.applying.reload import NotServedError, Switch, Switcher
from toolkit_installer.applying.reload_gate import ReloadBudget, ReloadGate, ReloadPendingError
from toolkit_installer.driver import cdi, roots
from toolkit_installer.engines.api import EngineSilentError, LiveState, get_adapter
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.errors import EngineDownError, EngineRejectedError, InstallerError
from toolkit_installer.events import EventKind, publish
from toolkit_installer.node import signals
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.node import Node
from toolkit_installer.node.reading import Tree
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.signals import Stopped
from toolkit_installer.planning import files_naming, plan, toolkit_users
from toolkit_installer.planning.installed import Copies, SpecificationWork
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.planning.prepare import Prepared, prepare
from toolkit_installer.receipt.schema import Copy, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineName, ReloadMode, Settings


class Applier:
    """Applies a plan to the node, and rolls it back if a step fails."""

    def __init__(
        self,
        store: ReceiptStore,
        receipts: ReceiptBuilder,
        switcher: Switcher,
        gate: ReloadGate,
        budget: ReloadBudget,
        *,
        interruptible: bool,
    ) -> None:
        """`interruptible`: a signal may end the change between two steps."""
        self._node = switcher.node
        self._store = store
        self._receipts = receipts
        self._switcher = switcher
        self._gate = gate
        self._budget = budget
        self._interruptible = interruptible
        self._reloaded: set[EngineName] = set()
        """The engines that were told to reload their new files."""

    def apply(self, seen: Prepared) -> None:
        """Carry out the plan. If a step fails, restore the engines' files first, then re-raise the error.

        Raises EngineRejectedError, EngineDownError, NodeError, ChangedMeanwhileError; ConfigurationError if the receipt
        cannot record the change; ReloadPendingError; DriverNotReadyError if device nodes cannot be created; Stopped
        after a signal.
        """
        if any(engine.reload_why for engine in seen.plan.engines):
            self._budget.require_reload()
        self._receipts.require_recordable(seen)
        created = self._store.prepare()
        if self._store.load() != seen.receipt:
            # another run changed the node between planning and locking: the plan is out of date
            raise ChangedMeanwhileError.of(self._store.folder)
        receipt = self._receipts.build(seen, created)
        try:
            self._store.save(receipt, seen.originals)
            if seen.plan.device_nodes:
                seen = self._create_device_nodes(seen)
                receipt = self._receipts.build(seen, created)
                self._store.save(receipt, seen.originals)
            copies = self._change(seen, receipt)
        except (InstallerError, Stopped) as error:
            try:
                with signals.deferred():
                    self._roll_back(seen, receipt, error)
                raise
            except InstallerError as raised:
                raised.reloaded = self._switcher.reloads > 0
                raise
        # the engines serve the change: from here on the receipt records the node's present state
        final = files.remove_needless_folders(
            self._node, record.build_final_receipt(seen, receipt, copies), self._store.folder
        )
        self._store.save(final, {})
        self._store.tidy(final)
        # not earlier: a rollback up to here restores an engine configuration that still names these files
        for name in seen.plan.toolkit.remove:
            files.remove(self._node, seen.plan.toolkit.folder, name)

    def _create_device_nodes(self, seen: Prepared) -> Prepared:
        """Create the driver's device nodes, which stay; return a new plan made with them present.

        The new plan is based on the node's present state and on the receipt from before this run.
        """
        self._stop_if_requested()
        cdi.SpecificationGenerator(seen.target.payload, seen.target.settings.toolkit, seen.target.driver).create_nodes(
            self._node.calls
        )
        replanned = prepare(seen.receipt, seen.target.settings, self._node, self._store)
        if replanned.plan.device_nodes:
            raise ChangedMeanwhileError.of(replanned.plan.device_nodes[0])  # another program removed it just now
        for work in replanned.plan.specifications:
            if work.note and work.path not in {earlier.path for earlier in seen.plan.specifications}:
                log.get().warning("A CDI specification", key="cdi-note", file=work.path, what=work.note)
        return replanned

    def _change(self, seen: Prepared, receipt: Receipt) -> tuple[Copy, ...]:
        """Carry out the plan's steps; return the copies of payload files for the receipt to record."""
        work = seen.plan.toolkit
        for folder in receipt.folders:
            self._node.files.make_folders(folder)
        copied = files.install(self._node, seen, self._stop_if_requested)
        if seen.receipt is None or seen.receipt.state is not State.INSTALLED:
            # a killed run may have renamed files without flushing them: make them survive a power cut
            files.flush(self._node, work, receipt.folders)
        if work.write:
            log.get().info("Installed the toolkit", key="toolkit-installed", folder=work.folder, files=len(work.write))
        # additions first: remove what is no longer wanted once the engines serve the new state
        added = [each for each in seen.plan.specifications if each.target != each.base]
        removed = [each for each in seen.plan.specifications if each.target == each.base]
        for specification in added:
            self._stop_if_requested()
            self._switcher.writer.write(None, specification.file, specification.target)
        # installing the toolkit may have taken a while; from the first engine on, the change is completed or rolled
        # back
        self._gate.require(seen)
        for engine in seen.plan.engines:
            self._stop_if_requested()
            if engine.reload_why and engine.reload.ends_after_calls:
                # a client that stops this process through this engine waits for it, and the engine's restart waits for
                # that client
                self._switcher.attention.raise_if_stopped()
            self._switch_engine(engine, seen)
        for specification in removed:
            self._stop_if_requested()
            self._switcher.writer.write(None, specification.file, specification.target)
        written = {file.name for file in work.write}
        unchanged = [each for each in seen.facts.toolkit.copies if each.name not in written]
        return Copies(self._node, work.folder, Tree(seen.target.payload.root)).settled([*unchanged, *copied])

    def _stop_if_requested(self) -> None:
        if self._interruptible:
            self._switcher.attention.raise_if_stopped()

    def _switch_engine(self, work: EngineWork, seen: Prepared) -> None:
        """Write an engine's files, and reload it if that is due. Raises as `apply` does."""
        settings, folder = seen.target.settings, seen.plan.toolkit.folder
        reload = work.reload if work.reload_why else msgspec.structs.replace(work.reload, mode=ReloadMode.NONE)
        if work.reload_why:
            log.get().info("The engine is to be reloaded", key="reload-needed", engine=work.name, why=work.reload_why)
            with contextlib.nullcontext() if self._interruptible else signals.deferred():
                impact.log_impact(self._node, work.name, work.inspection, reload, folder)
            self._budget.spend()

        def wrong(live: LiveState) -> list[str]:
            return plan.find_differences(live, work.desired)

        switch = Switch(get_adapter(work.name), work.inspection, work.desired.files, reload, wrong)
        before = self._switcher.reloads
        try:
            self._switcher.make(switch, interruptible=self._interruptible)
        finally:
            if self._switcher.reloads > before:
                self._reloaded.add(work.name)
        if settings.verify_with_canary and self._switcher.reloads > before:
            with contextlib.nullcontext() if self._interruptible else signals.deferred():
                try_handlers(self._node, work, settings, folder)
        if work.changes and work.reload.mode is ReloadMode.NONE and not work.reload.by_itself:
            log.get().warning(
                "The engine was not reloaded: it serves the handlers after its next restart",
                key="not-reloaded",
                engine=work.name,
                socket=work.inspection.socket,
                serves=False,
                reason=work.inspection.silence or None,
            )

    def _roll_back(self, seen: Prepared, receipt: Receipt, error: InstallerError | Stopped) -> None:
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
        failures = [failure for work in reversed(seen.plan.engines) if (failure := self._roll_back_engine(work, error))]
        failures += [failure for work in seen.plan.specifications if (failure := self._roll_back_specification(work))]
        if failures:
            # raise only now, so that one failure does not keep the other engines from being restored; raise the gravest
            raise next((each for each in failures if isinstance(each, EngineDownError)), failures[0])
        previous = seen.receipt
        if previous is not None:
            self._restore_record(previous, receipt, {file.name for file in seen.plan.toolkit.write})
        else:
            self._remove_new_files(seen, receipt)
            files.remove_folders(self._node, receipt, self._store)
        if isinstance(error, NotServedError):
            raise EngineRejectedError(
                f"the engine did not take the change over: {error.reason}; its old configuration is back, and it "
                + (
                    "is restarted by systemd once this process has ended"
                    if self._switcher.left_to_systemd
                    else "answers"
                ),
                hint="look at the engine's own log for its reason",
            ) from error

    def _remove_new_files(self, seen: Prepared, receipt: Receipt) -> None:
        """Remove the toolkit's new files; keep all of them while a process uses the toolkit or a file names it."""
        folder = receipt.toolkit_folder
        naming = files_naming.find_naming_files(self._node, folder, known=files_naming.list_recorded_files(receipt))
        for each in naming:
            log.get().warning(
                "The toolkit stays: a file of an engine names it",
                key="toolkit-named",
                file=each.file,
                line=each.line,
            )
        if not naming and not toolkit_users.is_still_needed(self._node, folder, receipt.engines):
            new = tuple(name for name in receipt.toolkit_files if name not in seen.plan.toolkit.present)
            files.remove_toolkit_files(self._node, msgspec.structs.replace(receipt, toolkit_files=new))

    def _restore_record(self, previous: Receipt, receipt: Receipt, written: Collection[str]) -> None:
        """Save the previous receipt again, with the new toolkit files added.

        Contents of files in `written` are dropped, as each may or may not have been overwritten.
        """
        names = dict.fromkeys([*previous.toolkit_files, *receipt.toolkit_files])
        folders = dict.fromkeys([*previous.folders, *receipt.folders])
        contents = tuple(each for each in previous.contents if each.name not in written)
        kept = msgspec.structs.replace(previous, toolkit_files=tuple(names), folders=tuple(folders), contents=contents)
        try:
            self._store.save(kept, {})
        except NodeError as error:
            # the receipt on the node says that a change is under way: the next run finishes it
            log.get().warning(
                "The receipt could not be written back; the next run repairs it",
                key="receipt-not-written",
                reason=str(error),
            )

    def _roll_back_specification(self, work: SpecificationWork) -> InstallerError | None:
        """Restore the old version of a CDI specification; return the error if that fails."""
        try:
            self._switcher.writer.write(None, work.file, work.file.content)
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

    def _roll_back_engine(self, work: EngineWork, error: InstallerError | Stopped) -> InstallerError | None:
        """Restore one engine's files; return the error if that fails."""
        old = [msgspec.structs.replace(wanted, target=wanted.file.content) for wanted in reversed(work.desired.files)]
        # an engine that was not reloaded has no new handlers to forget
        mode = work.reload.mode if work.name in self._reloaded else ReloadMode.NONE
        switch = Switch(
            get_adapter(work.name),
            work.inspection,
            old,
            msgspec.structs.replace(work.reload, mode=mode),
            lambda live: plan.find_unreverted(live, work),
            last_resort=True,
        )
        try:
            self._switcher.make(switch, interruptible=False)
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


_USUAL_HANDLERS = ("runc", "crun")
_CONTROL_DEVICE = "/dev/nvidiactl"
"""Exists once the driver's kernel module is loaded."""


def try_handlers(node: Node, work: EngineWork, settings: Settings, folder: str) -> None:
    """Start a short container through each handler that the engine serves, and check that it runs.

    That an engine lists a handler does not prove that it works: a program that does not fit the node's C library, a
    failing hook, or a list of handlers that the engine does not act on, show only when a container is created.
    `folder` is the toolkit's. If no container can be tried at all, log a warning and return. Raises NotServedError if a
    handler does not work, Stopped.
    """
    engine = get_adapter(work.name)
    seconds = settings.reload_timeout
    try:
        live = engine.ask(node, work.inspection.socket, seconds)
        control = _find_control_handler(live, work, folder)
        shown = _should_show_gpus(node, settings)
        ours = {name: shown and name == settings.settings_of(work.name).runtime_name for name in work.desired.served}
        trials = engine.try_handlers(node, work.inspection.socket, seconds, {control: False, **ours})
    except EngineSilentError as error:
        raise NotServedError(f"no container could be tried: {error.reason}", answers=False) from error
    unknown = trials.unknown
    if control in trials.faults:  # if no container can be started at all, no handler is to blame
        unknown = f"none starts through {control or 'the default handler'} either: {trials.faults[control]}"
    if unknown:
        log.get().warning(
            "No container could be tried: whether the handlers work is not known",
            key="canary-impossible",
            engine=work.name,
            reason=foreign_words.mask_program_text(unknown),
        )
        return
    if trials.faults:
        faults = "; ".join(
            f"through {name}: {foreign_words.mask_program_text(fault)}" for name, fault in trials.faults.items()
        )
        raise NotServedError(f"a container does not start {faults}", answers=True)
    log.get().info(
        "A container was started through each handler, and removed again",
        key="canary",
        engine=work.name,
        handlers=",".join(ours),
        gpus=any(ours.values()),
    )


def _find_control_handler(live: LiveState, work: EngineWork, folder: str) -> str:
    """Return a handler that is not ours, preferring the usual ones; empty: use the engine's default."""
    others = {
        name
        for name, path in live.handlers.items()
        if name not in work.desired.served and name not in live.own and not is_beneath(path, folder)
    }
    return next((name for name in (*_USUAL_HANDLERS, *sorted(others)) if name in others), "")


def _should_show_gpus(node: Node, settings: Settings) -> bool:
    """Return whether a container that requests all GPUs through its environment should see them."""
    toolkit = settings.toolkit
    if not toolkit.accept_envvar_when_unprivileged or node.files.status(_CONTROL_DEVICE) is None:
        return False
    return roots.find_driver(node, toolkit).driver is not None
