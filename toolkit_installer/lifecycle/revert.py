"""Taking everything back: engines first, then the binaries that they no longer name, then the receipt."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence
from functools import partial

from toolkit_installer import log
from toolkit_installer.engines.api import Engine, EngineFile, EngineSilentError, Goal, Live, Reload, Survey
from toolkit_installer.engines.common import stranding
from toolkit_installer.engines.common.answering import EngineBrokenError
from toolkit_installer.engines.common.serving import process_of
from toolkit_installer.engines.common.undisturbed import undisturbed
from toolkit_installer.engines.ownership import OurHandlers, beneath
from toolkit_installer.engines.registry import room
from toolkit_installer.errors import ConfigurationError, EngineDownError, EngineRejectedError, InstallerError, gravest
from toolkit_installer.lifecycle import cdi_files, toolkit_files
from toolkit_installer.lifecycle.observe import memories
from toolkit_installer.lifecycle.reload import NotServedError, Step, Switch, Switcher
from toolkit_installer.lifecycle.still_needed import holders, named_in_files
from toolkit_installer.lifecycle.still_needed.named_in_files import Naming
from toolkit_installer.node import signals, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import Attention
from toolkit_installer.receipt import memory, recover
from toolkit_installer.receipt.schema import Before, EngineRecord, FileRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineSettings, ReloadMode

_ASK_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_UNINSTALL = "then run `toolkit-installer uninstall`"
_RUN_AGAIN = "then start this run again"


@dataclasses.dataclass(frozen=True)
class Remainder:
    """What is not as it was after everything was taken back.

    `unseen` are engines that are still to come back, `named` what names the toolkit in files that are not ours.
    """

    toolkit_stays: bool
    unseen: tuple[str, ...] = ()
    named: tuple[Naming, ...] = ()
    recorded: bool = True


class Reverter:
    """Takes back what a receipt records."""

    def __init__(self, node: Node, store: ReceiptStore, attention: Attention, seconds: float) -> None:
        self.node = node
        self.store = store
        self.switcher = Switcher(node, attention, seconds, store.folder)

    def revert(self, receipt: Receipt, *, keep_toolkit: bool, known: Sequence[str] = ()) -> Remainder:
        """Take back everything. What comes to an end here is never refused, and may be repeated after a crash.

        The toolkit stays where `keep_toolkit` says so, or something still needs or names it; `known` are more files of
        engines that may. Each engine is for itself: all are tried, whatever becomes of the others.
        Raises the gravest of what failed: EngineDownError, EngineRejectedError, ConfigurationError; the receipt stays.
        """
        recover.sweep(self.node, receipt, self.store.folder)
        found = receipt  # as it was: what lies beside the files may be a killed run's only if it says so
        failures = []
        for record in reversed(receipt.engines):
            try:
                recover.refuse_strangers(self.node, found, [file.path for file in record.files])
                recover.recover_engine(self.node, record, self.store.folder)
                receipt = undisturbed(partial(self._revert_recorded, receipt, record))
            except InstallerError as failure:
                log.get().error(
                    "The handlers could not be taken back",
                    engine=record.name,
                    file=failure.path,
                    line=failure.line,
                    reason=failure.reason,
                    hint=failure.hint,
                )
                failures.append(failure)
                receipt = self.store.load() or receipt
        if failures:
            raise gravest(failures)
        recover.refuse_strangers(self.node, found, [file.path for file in receipt.specifications])
        recover.recover_specifications(self.node, receipt)
        receipt = self._revert_specifications(receipt)
        folder = receipt.toolkit_folder
        known = (*named_in_files.known_files(receipt), *known)
        named = () if keep_toolkit else named_in_files.naming(self.node, folder, known=known)
        if named:
            # the record stands as long as what it speaks of: taken for an older installer's, all of it would go
            self.store.save(dataclasses.replace(receipt, state=State.REVERTING, engines=(), specifications=()), {})
            return Remainder(toolkit_stays=True, unseen=tuple(self.switcher.unseen), named=named)
        # whoever made a specification makes it anew: nothing has to be remembered for it
        specified = () if keep_toolkit else named_in_files.in_specifications(self.node, folder)
        stays = bool(keep_toolkit or specified or holders.held(self.node, folder, receipt.engines))
        if stays:
            log.get().info("Left the toolkit in place", folder=folder)
        else:
            toolkit_files.remove_all(self.node, receipt)
            log.get().info("Removed the toolkit", folder=folder)
        # while the receipt stands, so that whoever is killed here is finished; its own folder's parents go after it
        toolkit_files.remove_folders(self.node, receipt, around=self.store.folder, store_gone=False)
        self.store.clear()
        toolkit_files.remove_folders(self.node, receipt, around=self.store.folder, store_gone=True)
        return Remainder(stays, tuple(self.switcher.unseen), specified, recorded=False)

    def _revert_recorded(self, receipt: Receipt, record: EngineRecord) -> Receipt:
        """Give an engine's files back by what is recorded by now: an attempt before may have learnt something."""
        learnt = self.store.load() or receipt
        return self._revert_engine(learnt, next(each for each in learnt.engines if each.name == record.name))

    def _revert_specifications(self, receipt: Receipt) -> Receipt:
        """Give the CDI specifications back; return the receipt with what was learnt on the way."""
        seen = cdi_files.look(self.node, self.store, [file.path for file in receipt.specifications])
        works = [cdi_files.taken_back(seen, file, receipt.toolkit_folder) for file in receipt.specifications]
        if not works:
            return receipt
        files = (cdi_files.recorded(work, file) for work, file in zip(works, receipt.specifications, strict=True))
        receipt = dataclasses.replace(
            receipt, state=State.REVERTING, specifications=tuple(file for file in files if file is not None)
        )
        originals = {memory.digest(work.base): work.base for work in works if work.base is not None}
        self.store.save(receipt, originals)
        for work in works:
            if work.note:
                log.get().warning("Somebody changed the CDI specification", file=work.path, what=work.note)
            self.switcher.put(cdi_files.file_of(work), work.target)
        return receipt

    def retire(self, receipt: Receipt, record: EngineRecord, staying: Collection[str] = ()) -> Receipt:
        """Take the handlers back from one engine that is no longer to have them; the toolkit and the rest stay.

        `staying` are handlers that it has again soon. Return the receipt without it. Raises as `revert` does.
        """
        log.get().info("Another engine or file is to be configured: taking the handlers back", engine=record.name)
        with signals.deferred():
            receipt = self._revert_engine(receipt, record, staying, then=_RUN_AGAIN)
        engines = tuple(other for other in receipt.engines if other.name != record.name)
        receipt = dataclasses.replace(receipt, state=State.INSTALLED, engines=engines)
        self.store.save(receipt, {})
        self.store.tidy(receipt)
        return receipt

    def _revert_engine(
        self, receipt: Receipt, record: EngineRecord, staying: Collection[str] = (), *, then: str = _UNINSTALL
    ) -> Receipt:
        """Give an engine's files back; return the receipt with what was learnt on the way.

        `then` says what to do once the pods are deleted for whose sake this is refused.
        """
        engine = room(record.name)
        originals: dict[str, bytes] = {}
        live = self._ask(engine, record)
        goals = self._goals(receipt, record, originals)
        self._refuse_stranding(receipt, record, live, goals, staying, then=then)
        reload = self._reload(engine, record, live)
        files = []
        for file, (present, goal) in zip(reversed(record.files), goals, strict=True):
            files.append(self._record(engine, file, present, goal, reload))
            for note in goal.left:
                log.get().warning("Somebody changed what was ours", file=file.path, engine=record.name, what=note)
            for note in goal.notes:
                log.get().info(note, file=file.path, engine=record.name)
            if goal.base is not None:
                originals[memory.digest(goal.base)] = goal.base
        record = dataclasses.replace(record, files=tuple(reversed(files)))
        engines = tuple(record if other.name == record.name else other for other in receipt.engines)
        receipt = dataclasses.replace(receipt, state=State.REVERTING, engines=engines)
        self.store.save(receipt, originals)
        self._switch(engine, record, live, reload, goals, receipt.toolkit_folder)
        return receipt

    def refuse_stranding(self, receipt: Receipt, record: EngineRecord) -> None:
        """Raise ConfigurationError where `retire` would, because pods need a handler that it takes back."""
        live = self._ask(room(record.name), record)
        self._refuse_stranding(receipt, record, live, self._goals(receipt, record, {}), then=_RUN_AGAIN)

    def _goals(
        self, receipt: Receipt, record: EngineRecord, originals: dict[str, bytes]
    ) -> list[tuple[EngineFile, Goal]]:
        """Return an engine's files as they are, each with what it should be without us, the last recorded one first.

        The kept copies that they go back to go into `originals`.
        """
        engine = room(record.name)
        remembered = memories(engine, record, self.store, originals)
        found = []
        for file in reversed(record.files):
            present = EngineFile(file.role, *self.node.find(file.path))  # it may be a symlink by now
            found.append((present, engine.without_us(present, remembered[file.path], receipt.toolkit_folder)))
        return found

    def _refuse_stranding(
        self,
        receipt: Receipt,
        record: EngineRecord,
        live: Live | None,
        goals: list[tuple[EngineFile, Goal]],
        staying: Collection[str] = (),
        *,
        then: str,
    ) -> None:
        """Raise ConfigurationError where pods need a handler that goes, unless it comes back as one of `staying`."""
        ours = OurHandlers(receipt.toolkit_folder, frozenset(dict(record.handlers)), frozenset(staying))
        after = [goal for _, goal in goals]
        stranding.refuse(self.node, room(record.name), record.socket, live, after, ours, then)

    def _ask(self, engine: Engine, record: EngineRecord) -> Live | None:
        """Ask the engine; one that runs and is slow to answer gets its time, one that is down is not waited for.

        Raises EngineDownError for one that hangs: it may offer the handlers as soon as it goes on.
        """
        if record.reload is ReloadMode.NONE:
            return None
        deadline = time.monotonic() + self.switcher.seconds
        while True:
            try:
                return engine.ask(self.node, record.socket, _ASK_SECONDS)
            except EngineSilentError as error:
                hangs = not isinstance(error, EngineBrokenError) and (
                    process_of(self.node, record.name, record.socket) is not None
                    or sockets.listens(self.node.root, record.socket)
                )
                if hangs and time.monotonic() < deadline:
                    self.switcher.attention.look(_PAUSE_SECONDS)
                    continue
                if hangs:
                    raise EngineDownError(
                        f"{record.name} RUNS AND DOES NOT ANSWER, so the handlers cannot be taken back: {error.reason} "
                        f"(waited {self.switcher.seconds:g} s)",
                        hint="look at its log and restart it; then run `toolkit-installer uninstall`",
                    ) from error
                log.get().warning(
                    "The engine does not answer: its files are given back, and it reads them when it starts",
                    engine=record.name,
                    reason=str(error),
                )
                return None

    def _reload(self, engine: Engine, record: EngineRecord, live: Live | None) -> Reload:
        """Decide how to reload; an engine that cannot be reloaded is no reason to refuse the cleanup."""
        if live is None:
            return Reload(ReloadMode.NONE)
        asked = EngineSettings(reload_mode=record.reload, allow_restart=True)
        try:
            return engine.reload(self.node, Survey(record.socket, (), live), asked)
        except ConfigurationError as error:
            log.get().warning(
                "The engine cannot be reloaded: restart it, so that it forgets the handlers",
                engine=record.name,
                reason=str(error),
            )
            return Reload(ReloadMode.NONE)

    @staticmethod
    def _record(engine: Engine, file: FileRecord, present: EngineFile, goal: Goal, reload: Reload) -> FileRecord:
        """Return the record for the way back: a run that is killed on it must find the new original, not the old."""
        before: Before | None = None
        if goal.base is not None:
            before = file.before
            if present.found is not None:
                meta = present.found.metadata
                before = Before(memory.digest(goal.base), meta.mode, meta.uid, meta.gid, meta.xattrs)
        written = set(file.written)
        if reload.mode is ReloadMode.SIGNAL:
            transitional = engine.transitional(goal.base)
            if transitional is not None:
                written.add(memory.digest(transitional))
        return dataclasses.replace(file, before=before, written=tuple(sorted(written)))

    def _switch(  # the parts of one switch
        self,
        engine: Engine,
        record: EngineRecord,
        live: Live | None,
        reload: Reload,
        goals: list[tuple[EngineFile, Goal]],
        toolkit_folder: str,
    ) -> None:
        def wrong(now: Live) -> list[str]:
            return [
                f"it still lists the handler {name}, which runs {path}"
                for name, path in now.handlers.items()
                if beneath(path, toolkit_folder) and name not in now.own
            ]

        changes = any(goal.base != present.content for present, goal in goals)
        if not changes and (live is None or not wrong(live)):
            reload = Reload(ReloadMode.NONE)
        steps = [Step(present, goal.base) for present, goal in goals]
        switch = Switch(engine, record.socket, live, steps, reload, wrong, last_resort=True)
        try:
            self.switcher.make(switch, interruptible=False)
        except NotServedError as error:
            if error.answers:
                raise EngineRejectedError(
                    f"{record.name} has its old configuration back, but {error.reason}",
                    hint="look for another file that names the handler; then run `toolkit-installer uninstall`",
                ) from error
            raise EngineDownError(
                f"{record.name} DOES NOT COME BACK, although its old configuration is in place: {error.reason}",
                hint="look at its log and restart it; then run `toolkit-installer uninstall`",
            ) from error
        log.get().info("Took the handlers back", engine=record.name)
