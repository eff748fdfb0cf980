"""Revert one engine: restore its files, or remove our entries, and make it forget the handlers."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Collection

import msgspec

from toolkit_installer import log
from toolkit_installer.applying import files, impact
from toolkit_installer.applying.reload import NotServedError, Switch, Switcher
from toolkit_installer.engines.api import (
    DesiredState,
    Engine,
    EngineFile,
    EngineSilentError,
    Inspection,
    LiveState,
    RecordedFile,
    Reload,
    get_adapter,
)
from toolkit_installer.engines.common import losses
from toolkit_installer.engines.common.serving import EngineBrokenError, find_process
from toolkit_installer.engines.ownership import is_beneath
from toolkit_installer.errors import ConfigurationError, EngineDownError, EngineRejectedError
from toolkit_installer.node import signals, sockets
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning import prepare
from toolkit_installer.planning.observe import has_read_files, load_records
from toolkit_installer.planning.plan import EngineWork
from toolkit_installer.receipt import file_records
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import EngineName, EngineSettings, ReloadMode

_QUERY_SECONDS = 5.0
_PAUSE_SECONDS = 0.1
_UNINSTALL = "then run `toolkit-installer uninstall`"
_RUN_AGAIN = "then start this run again"


class EngineReverter:
    """Reverts one engine at a time, as a receipt records it."""

    def __init__(
        self,
        node: Node,
        store: ReceiptStore,
        attention: SignalCollector,
        seconds: float,
        settings_of: Callable[[EngineName], EngineSettings] = lambda _name: EngineSettings(),
        *,
        others_serve: bool = False,
    ) -> None:
        """`seconds`: how long an engine may take to answer, and to forget the handlers.

        `settings_of` returns an engine's settings. `others_serve`: another installer has handlers in the same folder,
        which an engine goes on serving.
        """
        self.node = node
        self._settings_of = settings_of
        self.store = store
        self._others_serve = others_serve
        self.switcher = Switcher(node, attention, seconds, store.folder)

    def retire(self, receipt: Receipt, record: EngineRecord, kept_handlers: Collection[str] = ()) -> Receipt:
        """Revert an engine that should no longer have the handlers; keep the toolkit and the other engines.

        `kept_handlers`: handlers that the engine gets again soon. Returns the receipt without the engine. Raises as
        `revert` does.
        """
        log.get().info(
            "An engine or file is to have the handlers no longer: taking them back",
            key="engine-retired",
            engine=record.name,
        )
        with signals.deferred():
            receipt = self.revert(receipt, record, kept_handlers, next_step=_RUN_AGAIN)
        engines = tuple(other for other in receipt.engines if other.name != record.name)
        switched = tuple(
            name for name in receipt.cdi_switched if record.reload is ReloadMode.NONE or name != record.name
        )
        receipt = msgspec.structs.replace(receipt, state=State.INSTALLED, engines=engines, cdi_switched=switched)
        receipt = files.remove_needless_folders(self.node, receipt, self.store.folder)
        self.store.save(receipt, {})
        self.store.tidy(receipt)
        return receipt

    def revert(
        self,
        receipt: Receipt,
        record: EngineRecord,
        kept_handlers: Collection[str] = (),
        *,
        next_step: str = _UNINSTALL,
    ) -> Receipt:
        """Revert an engine's files; return the receipt with the facts found meanwhile.

        `next_step` says what to do once the pods that prevented it are deleted.
        """
        engine = get_adapter(record.name)
        originals: dict[str, bytes] = {}
        record, work = self._build_work(receipt, record, originals, kept_handlers)
        prepare.refuse_stranding(
            self.node, work, prepare.handlers_of_ours(receipt.toolkit_folder, record, kept_handlers), next_step
        )
        copied = self._add_copies(engine, receipt, record)
        if copied != record:
            record = copied
            record, work = self._build_work(receipt, record, originals, kept_handlers)
        # unless our edit enabled CDI, the files do not matter for how the engine is made to forget us
        known = () if not receipt.has_switched_cdi(record.name) else work.inspection.files
        reload = self._choose_reload(engine, record, msgspec.structs.replace(work.inspection, files=known))
        files = []
        for file, wanted in zip(reversed(record.files), work.desired.files, strict=True):
            signalled = reload.mode is ReloadMode.SIGNAL
            files.append(file_records.build_revert_record(engine, file, wanted, signalled=signalled))
            for note in wanted.left:
                log.get().warning(
                    "Somebody changed what was ours", key="edit-kept", file=file.path, engine=record.name, what=note
                )
            for note in wanted.notes:
                log.get().info(note, key="engine-note", file=file.path, engine=record.name)
            if wanted.base is not None:
                originals[file_records.digest_of(wanted.base)] = wanted.base
        record = msgspec.structs.replace(record, files=tuple(reversed(files)))
        if work.changes and work.inspection.process is not None:
            record = msgspec.structs.replace(record, unread_by=work.inspection.process.identity)
        engines = tuple(record if other.name == record.name else other for other in receipt.engines)
        switched = tuple(dict.fromkeys([*receipt.cdi_switched, *([record.name] if record.switches_cdi else [])]))
        receipt = msgspec.structs.replace(receipt, state=State.REVERTING, engines=engines, cdi_switched=switched)
        self.store.save(receipt, originals)
        for wanted in work.desired.files:
            if wanted.file.found is None and wanted.target is not None:  # its folder may be gone as well
                self.node.files.make_folders(posixpath.dirname(wanted.path))
        self._switch(work, reload, receipt)
        if record.handlers or not record.switches_cdi:
            log.get().info("Took the handlers back", key="handlers-removed", engine=work.name)
        else:
            log.get().info("Took back the edit that switched CDI on", key="cdi-switch-removed", engine=work.name)
        return receipt

    def refuse_stranding(self, receipt: Receipt, record: EngineRecord) -> None:
        """Raise ConfigurationError if `retire` would because pods need a handler that it removes."""
        is_ours = prepare.handlers_of_ours(receipt.toolkit_folder, record)
        _, work = self._build_work(receipt, record, {})
        prepare.refuse_stranding(self.node, work, is_ours, _RUN_AGAIN)

    def _add_copies(self, engine: Engine, receipt: Receipt, record: EngineRecord) -> EngineRecord:
        """Return the record plus the files into which another program copied our handlers, without a receipt.

        nvidia-ctk does so: its drop-in has all runtimes that config.toml had. Our entries are removed from it; the rest
        stays.
        """
        if self._others_serve:
            return record  # they may be the other installer's own
        folder = receipt.toolkit_folder
        try:
            known = {file.role: file.path for file in record.files}
            others = engine.find_other_files(
                self.node, self._settings_of(record.name), known, folder, dict(record.defaults)
            )
            copies = [
                (file, ownership)
                for file, ownership in others
                if engine.remove_ours(file, RecordedFile(), folder).base != file.content
            ]
        except ConfigurationError as error:
            log.get().debug("Looking in the recorded files alone", engine=record.name, reason=error.reason)
            return record
        for file, _ in copies:
            log.get().warning(
                "Another program copied the handlers into a file of the engine: they go from it too",
                key="copied-handlers",
                file=file.path,
                engine=record.name,
            )
        adopted = tuple(file_records.build_adopted_record(engine, file, ownership) for file, ownership in copies)
        return msgspec.structs.replace(record, files=(*record.files, *adopted))

    def _build_work(
        self, receipt: Receipt, record: EngineRecord, originals: dict[str, bytes], kept_handlers: Collection[str] = ()
    ) -> tuple[EngineRecord, EngineWork]:
        """Return the work on an engine: its files without our entries, the last recorded one first.

        A file in which another program made one of our handlers the default since is added to the work and to the
        returned record. `kept_handlers`: handlers that are kept. The backups that the files are restored from are added
        to `originals`. Raises as `_query` does; ConfigurationError.
        """
        engine = get_adapter(record.name)
        live = self._query(engine, record)
        handlers = dict(record.handlers).keys() - set(kept_handlers)
        if handlers and not self._others_serve:  # the other installer's handlers may have the same names
            known = {file.role: self.node.locate_file(file.path)[0] for file in record.files}
            others = engine.find_files_naming(self.node, live, known, handlers, dict(record.defaults))
            added = tuple(file_records.build_adopted_record(engine, file, ownership) for file, ownership in others)
            record = msgspec.structs.replace(record, files=(*record.files, *added))
        recorded_files = load_records(engine, record, self.store, originals)
        desired = []
        with losses.name_backups_in_errors(recorded_files):
            for file in reversed(record.files):
                present = EngineFile(file.role, *self.node.locate_file(file.path))  # it may be a symlink by now
                desired.append(engine.remove_ours(present, recorded_files[file.path], receipt.toolkit_folder))
        inspection = Inspection(record.socket, tuple(wanted.file for wanted in desired), live)
        return record, EngineWork(record.name, inspection, DesiredState(tuple(desired), {}, None))

    def _query(self, engine: Engine, record: EngineRecord) -> LiveState | None:
        """Query the engine; wait for one that runs and is slow, but not for one that is down.

        Raises EngineDownError if it hangs: it may offer the handlers as soon as it recovers.
        """
        if record.reload is ReloadMode.NONE:
            return None
        deadline = time.monotonic() + self.switcher.seconds
        while True:
            try:
                return engine.ask(self.node, record.socket, _QUERY_SECONDS)
            except EngineSilentError as error:
                hangs = not isinstance(error, EngineBrokenError) and (
                    find_process(self.node, record.name, record.socket) is not None
                    or sockets.is_listening(self.node.root, record.socket)
                )
                if hangs and self._waits_for_us(record):
                    raise EngineDownError(
                        f"{record.name} ends only after this process, and cannot be asked which pods need the handlers "
                        "that are to be taken back: they stay",
                        hint=f"systemd starts it again once this process has ended; {_UNINSTALL}",
                    ) from error
                if hangs and time.monotonic() < deadline:
                    self.switcher.attention.take_pending(_PAUSE_SECONDS)
                    continue
                if hangs:
                    raise EngineDownError(
                        f"{record.name} RUNS AND DOES NOT ANSWER, so the handlers cannot be taken back: {error.reason} "
                        f"(waited {self.switcher.seconds:g} s)",
                        hint="look at its log and restart it; then run `toolkit-installer uninstall`",
                    ) from error
                log.get().warning(
                    "The engine does not answer: its files are given back, and it reads them when it starts",
                    key="engine-down-at-cleanup",
                    engine=record.name,
                    reason=str(error),
                )
                return None

    def _waits_for_us(self, record: EngineRecord) -> bool:
        """Return whether the engine, whose restart was requested, waits for this process to end."""
        waiting_engine = self.switcher.attention.awaited_by
        return waiting_engine is not None and find_process(self.node, record.name, record.socket) == waiting_engine

    def _choose_reload(self, engine: Engine, record: EngineRecord, inspection: Inspection) -> Reload:
        """Choose how to reload; cleanup goes on even if the engine cannot be reloaded."""
        if inspection.live is None:
            return Reload(ReloadMode.NONE)
        settings = EngineSettings(reload_mode=record.reload, allow_restart=True)
        try:
            return engine.choose_reload(self.node, inspection, settings)
        except ConfigurationError as error:
            log.get().warning(
                "The engine cannot be reloaded: restart it, so that it forgets the handlers",
                key="engine-not-reloadable",
                engine=record.name,
                reason=str(error),
            )
            return Reload(ReloadMode.NONE)

    def _switch(self, work: EngineWork, reload: Reload, receipt: Receipt) -> None:
        toolkit_folder = receipt.toolkit_folder

        def wrong(now: LiveState) -> list[str]:
            return [
                f"it still lists the handler {name}, which runs {path}"
                for name, path in now.handlers.items()
                if is_beneath(path, toolkit_folder) and name not in now.own and not self._others_serve
            ]

        live = work.inspection.live
        if not work.changes and (live is None or not (wrong(live) or _has_cdi_of_ours(work, reload, receipt))):
            reload = Reload(ReloadMode.NONE)
        if reload.mode is not ReloadMode.NONE:
            with signals.deferred():  # a revert is always completed
                impact.log_impact(self.node, work.name, work.inspection, reload, toolkit_folder)
        switch = Switch(
            get_adapter(work.name),
            work.inspection,
            work.desired.files,
            reload,
            wrong,
            last_resort=True,
            forgotten_folder=toolkit_folder,
        )
        try:
            self.switcher.make(switch, interruptible=False)
        except NotServedError as error:
            failure = _build_failure(work.name, error)
            failure.reloaded = self.switcher.reloads > 0
            raise failure from error


def _has_cdi_of_ours(work: EngineWork, reload: Reload, receipt: Receipt) -> bool:
    """Return whether our edit, removed by a killed run that did not restart the engine, still has CDI on in it."""
    live = work.inspection.live
    on = live is not None and bool(live.cdi_folders)
    switched = on and reload.restarts and work.name in receipt.cdi_switched
    return switched and not has_read_files(work.inspection, receipt.engine(work.name))


def _build_failure(name: EngineName, error: NotServedError) -> EngineRejectedError | EngineDownError:
    """Return the error for an engine that has its old files and does not serve them. Pure."""
    if error.answers:
        return EngineRejectedError(
            f"{name} has its old configuration back, but {error.reason}",
            hint="look for another file that names the handler; then run `toolkit-installer uninstall`",
        )
    return EngineDownError(
        f"{name} DOES NOT COME BACK, although its old configuration is in place: {error.reason}",
        hint="look at its log and restart it; then run `toolkit-installer uninstall`",
    )
