"""Uninstall: make a running instance clean up and leave, or revert the node if no instance runs.

The node is reverted by its receipt. Without one, the leftovers of an installer that kept none, or lost it, are found by
the executables that its entries run. The request to a running instance overrides the instance's own settings.
"""

from __future__ import annotations

import errno
import os
import posixpath
import signal
import time
from collections.abc import Sequence

import msgspec

from toolkit_installer import __version__, log
from toolkit_installer.applying.files import retry_if_changed
from toolkit_installer.applying.reload_gate import ReloadBudget
from toolkit_installer.engines import registry
from toolkit_installer.engines.api import Engine, Inspection, RecordedFile, get_adapter
from toolkit_installer.engines.detect import decide
from toolkit_installer.engines.ownership import Ownership
from toolkit_installer.engines.target import EngineTarget
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError, gravest
from toolkit_installer.node import locks, processes, signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.signals import SignalCollector
from toolkit_installer.planning import files_naming, installed, other_installer
from toolkit_installer.receipt import file_records, trust
from toolkit_installer.receipt.schema import EngineRecord, Receipt, State
from toolkit_installer.receipt.store import ReceiptStore, locked
from toolkit_installer.revert.engine import EngineReverter
from toolkit_installer.revert.node import Remainder, revert_recorded
from toolkit_installer.settings import Program, Settings
from toolkit_installer.toolkit import layout, wrappers
from toolkit_installer.toolkit.payload import RUNTIMES


def finish_uninstall(settings: Settings, node: Node, store: ReceiptStore, pid_file: PidFile) -> None:
    """Revert what is left on the node when no other run works on it.

    Raises the gravest of the failures; StillNamedError if the toolkit has to stay.
    """
    is_locked = locked(store)
    if is_locked:
        store.take_request()
    recorded = trust.load(node, store)
    # with a receipt, nothing else counts as an installer's leftovers: it may be the operator's own
    left = find_leftovers(node, settings) if recorded is None else Leftovers(recorded)
    receipt = left.receipt
    if receipt is None:
        # the leftovers of a run that was killed before its receipt was written, or after it was removed
        if is_locked:
            store.forget()
        else:  # without a lock, the store may belong to a run that starts just now
            node.files.sweep(store.folder)
            for folder in reversed(node.files.folders_of_ours(os.path.dirname(store.folder))):
                node.files.remove_folder(folder)
        if left.failures:
            raise gravest(left.failures)
        log.get().info("Nothing is installed", key="nothing-installed", folder=settings.toolkit.folder)
        return
    store.prepare()
    remainder = revert(settings, node, store, receipt, SignalCollector(), keep_toolkit=settings.keep_toolkit)
    if remainder.named and remainder.recorded and recorded is None:
        store.clear()  # without a receipt, the next run finds the same again, including engines that were not named
        remainder = msgspec.structs.replace(remainder, recorded=False)
    if receipt.pid_file not in (pid_file.path, *(each.path for each in pid_file.others)):
        _remove_pid_file(node, receipt.pid_file)
    pid_file.adopt_folders(receipt.pid_folders)
    if left.failures and not remainder.named:
        raise gravest(left.failures)
    if recorded is not None:
        forgive_reloads(settings, node, recorded)
    log_result(receipt, remainder)


def forgive_reloads(settings: Settings, node: Node, receipt: Receipt) -> None:
    """Forgive the reloads of an installation that was served and is now reverted on purpose.

    The reloads of a half-done installation stay counted. Raises NodeError.
    """
    if receipt.state is State.INSTALLED:
        ReloadBudget(node.files, receipt.pid_file, settings.reload_budget).reset()


def log_result(receipt: Receipt, remainder: Remainder) -> None:
    """Log what a finished cleanup left on the node. Raises StillNamedError if engines' files name the toolkit."""
    if remainder.named:
        raise files_naming.build_refusal(remainder.named, recorded=remainder.recorded)
    if remainder.left_to_systemd:
        log.get().info(
            "systemd starts the engine again once this process has ended",
            key="engine-left-to-systemd",
            engine=", ".join(remainder.left_to_systemd),
        )
    lost = other_installer.list_gone(receipt, toolkit_stays=remainder.toolkit_stays)
    for words in lost:
        log.get().info("Gone for good, as another installer had left it", key="leftover-gone", what=words)
    if remainder.other is not None:
        log.get().info(
            "Cleaned up, but for what another installer owns that runs on this node",
            key="cleaned-up-but-other",
            installer=str(remainder.other),
            folder=receipt.toolkit_folder,
        )
    elif remainder.toolkit_stays:
        log.get().info(
            "Cleaned up, but for the toolkit's files, which stay",
            key="cleaned-up-but-toolkit",
            folder=receipt.toolkit_folder,
        )
    elif lost:
        log.get().info(
            "Cleaned up, and nothing of another installer's leftover is restored", key="cleaned-up-leftovers"
        )
    else:
        log.get().info("The node is as it was", key="cleaned-up")


def _remove_pid_file(node: Node, path: str) -> None:
    """Remove the PID file of a dead run, if it can be locked as a PID file."""
    try:
        locks.remove_stale(node.files, path)
    except ConfigurationError as error:
        log.get().warning(
            "Left the PID file that the receipt names", key="pid-file-left", file=path, reason=error.reason
        )
    except AlreadyRunningError as error:
        log.get().warning(
            "Another run has started meanwhile", key="another-run-started", file=path, reason=error.reason
        )


def revert(  # the inputs of a cleanup
    settings: Settings,
    node: Node,
    store: ReceiptStore,
    receipt: Receipt,
    attention: SignalCollector,
    *,
    keep_toolkit: bool,
) -> Remainder:
    """Revert what the receipt records. Raises as `revert_recorded` does, except ChangedMeanwhileError."""
    other = other_installer.find_running(node, settings.toolkit.install_dir)
    own = [settings.settings_of(name) for name in registry.names()]
    known = [path for each in own for path in (each.config, each.drop_in) if path is not None]

    def work() -> Remainder:
        # an earlier attempt may have recorded new facts
        engines = EngineReverter(
            node, store, attention, settings.reload_timeout, settings.settings_of, others_serve=other is not None
        )
        recorded = store.load() or receipt
        return revert_recorded(engines, recorded, keep_toolkit=keep_toolkit, known=known, other=other)

    with signals.deferred():  # a revert is completed, however often the program is told to stop
        return retry_if_changed(work)


REMOVE = b"remove\n"
KEEP = b"keep\n"
"""The requests: clean up, and remove or keep the toolkit's files."""

_PAUSE_SECONDS = 0.1
_INTERPRETER = "python"
"""The prefix of the name of the executable that runs this installer, idle or awake."""
_PACKAGE = __name__.partition(".")[0]
_PROGRAMS = frozenset(Program)
"""The names of other installers that use the same PID file, NVIDIA's own included."""


def request_cleanup(node: Node, store: ReceiptStore, path: str, *, keep_toolkit: bool, seconds: float) -> None:
    """Make the process that holds the PID file at `path` clean up and end; wait for it up to `seconds`.

    A process that takes its place meanwhile gets the request as well. Raises AlreadyRunningError if a process stays, or
    does not look like an installer from here.
    """
    requested: int | None = None
    deadline = time.monotonic() + seconds
    while (pid := locks.find_instance(node.files, path)) is not None:
        if pid != requested and _send_request(node, store, path, pid, keep_toolkit=keep_toolkit):
            requested = pid
        if time.monotonic() > deadline:
            raise AlreadyRunningError(
                f"the running instance (PID {pid}) did not leave in time",
                path=path,
                hint="look at its log; a killed one is cleaned up by running uninstall again",
            )
        signals.sleep(_PAUSE_SECONDS)


def _send_request(node: Node, store: ReceiptStore, path: str, pid: int, *, keep_toolkit: bool) -> bool:
    """Write the request and signal the instance; return False if it was ending or executing another program.

    Raises AlreadyRunningError, ConfigurationError.
    """
    process = processes.inspect_process(pid)
    if process is None or not is_installer(node, path, process):
        if locks.find_instance(node.files, path) != pid:
            return False  # it ended by itself
        raise AlreadyRunningError(
            f"PID {pid} holds the lock on the PID file, and is not seen here as an installer: it is not signalled",
            path=path,
            hint="run uninstall where it runs, in the same PID namespace (`hostPID: true`); or look at what that "
            "process is, and end it",
        )
    if store.exists():  # without that folder there is no installation to clean up
        store.require_private()
        try:
            store.leave_request(KEEP if keep_toolkit else REMOVE)
        except NodeError as error:
            if error.number != errno.ENOENT:
                raise
            # the instance removed its folder just now: it cleans up already
    log.get().info("Asking the running instance to clean up and leave", key="asking-instance-to-leave", pid=pid)
    try:
        processes.send_signal(node.calls, process, signal.SIGTERM)
    except ConfigurationError:
        if processes.inspect_process(process.pid) == process:
            raise
        return False  # it ended, fell asleep or woke up: the latter two execute another program
    return True


def is_python(process: Process) -> bool:
    """Return whether the process is a Python interpreter, as this program is; NVIDIA's is a binary."""
    return posixpath.basename(process.executable).startswith(_INTERPRETER)


def is_installer(node: Node, path: str, process: Process) -> bool:
    """Return whether root's lock holder is an installer, by its executable and its PID in the file.

    A holder that has not written its PID yet is recognized by the script or module it was started with. Its other
    arguments prove nothing: any program of root's may have such arguments.
    """
    if posixpath.basename(process.executable) not in _PROGRAMS and not is_python(process):
        return False
    started_as = next((word for word in process.arguments[1:] if not word.startswith("-")), "")
    ours = posixpath.basename(started_as) in _PROGRAMS or f"/{_PACKAGE}/" in started_as or started_as == _PACKAGE
    return ours or locks.read_pid(node.files, path) == process.pid


class Leftovers(msgspec.Struct, frozen=True):
    """The leftovers as a receipt (None: none found), and the errors about unreadable files that name the toolkit."""

    receipt: Receipt | None
    failures: tuple[ConfigurationError, ...] = ()


def find_leftovers(node: Node, settings: Settings) -> Leftovers:
    """Return the leftovers: entries and files in the toolkit folder that no receipt records count as ours.

    Inspects the engines that the settings name, else all. An engine that cannot be read does not keep the others from
    being reverted: the error is logged, and is a failure only if the file names the toolkit.
    """
    folder = settings.toolkit.folder
    records: list[EngineRecord] = []
    replaced: list[str] = []
    failures: list[ConfigurationError] = []
    for adapter in map(get_adapter, settings.runtimes or registry.names()):
        try:
            target = _find_target(node, settings, adapter)
            inspection = adapter.inspect(node, target)
            record = _build_record(target, inspection, adapter, folder)
        except ConfigurationError as error:
            failures += _find_failures(node, folder, adapter, error)
        else:
            records += [] if record is None else [record]
            replaced += other_installer.describe_handlers(
                [(file.path, file.content) for file in inspection.files], folder
            )
    return Leftovers(_build_receipt(node, settings, tuple(records), replaced), tuple(failures))


def _find_failures(node: Node, folder: str, adapter: Engine, error: ConfigurationError) -> list[ConfigurationError]:
    """Return the error if its file names the toolkit; else log it and return none, as it does not concern us."""
    path = error.path
    if path is not None and any(
        each.file == path for each in files_naming.find_naming_files(node, folder, known=[path])
    ):
        return [error]
    log.get().warning(
        "Left the engine alone: its files cannot be read, and they do not name the toolkit",
        key="engine-left-alone",
        engine=adapter.name,
        file=path,
        line=error.line,
        reason=error.reason,
    )
    return []


def _build_receipt(
    node: Node, settings: Settings, engines: tuple[EngineRecord, ...], replaced: Sequence[str]
) -> Receipt | None:
    """Return a receipt for these engines and the files in the toolkit's folder, None if there are neither."""
    folder = settings.toolkit.folder
    names = layout.find_installer_files(node.files.list(folder))
    inner = [name for name in (wrappers.CONFIG_NAME,) if node.files.is_file(posixpath.join(folder, name))]
    specification = installed.recognize_specification(node, settings.toolkit.cdi.path, folder)
    if specification is not None and not engines and _is_left_by_us(node, folder):
        specification = None
    if not engines and not names and not inner and specification is None:
        return None
    created = node.files.folders_of_ours(posixpath.dirname(folder))
    folders = (*created, folder, *(posixpath.join(folder, place) for place in layout.FOLDERS))
    own = () if specification is None else (specification,)
    present = tuple(place for place in folders if node.files.status(place) is not None)
    return Receipt(
        state=State.REVERTING,
        installer=__version__,
        toolkit_folder=folder,
        toolkit_files=(*inner, *names),
        folders=present,
        pid_file=settings.pid_file,
        pid_folders=(),
        engines=engines,
        specifications=own,
        taken_over=(*replaced, *other_installer.describe_folder(folder, (*inner, *names))),
    )


def _is_left_by_us(node: Node, folder: str) -> bool:
    """Return whether the toolkit in `folder` is this installer's own.

    The caller has found no receipt and no engine that names it: then a finished cleanup left the toolkit on purpose,
    and had removed its own CDI specification. One that still names the toolkit was edited by another program, or is
    newer. A cleanup of NVIDIA's own installer leaves toolkit and specification alike.
    """
    path = posixpath.join(folder, RUNTIMES[0])
    content = node.files.content(path) if node.files.is_file(path) else None
    return content is not None and f"\n{wrappers.SIGNATURE}".encode() in content


def _find_target(node: Node, settings: Settings, adapter: Engine) -> EngineTarget:
    """Return where this engine's files are: a distribution may have them in unusual places."""
    try:
        return decide.locate_engines(node, settings, (adapter.name,))[0]
    except ConfigurationError as error:
        log.get().debug("Looking in the usual places", engine=adapter.name, reason=error.reason)
        return EngineTarget(adapter.name, settings.settings_of(adapter.name))


def _build_record(target: EngineTarget, inspection: Inspection, adapter: Engine, folder: str) -> EngineRecord | None:
    """Return a record of the engine's files that name something of ours, or None. Raises ConfigurationError."""
    if not any(folder.encode() in (file.content or b"") for file in inspection.files):
        for file in inspection.files:
            adapter.remove_ours(file, RecordedFile(), folder)  # raises for a broken file, although it is not ours
        return None
    recognised = adapter.find_unrecorded(inspection, folder)
    files = []
    for file in reversed(inspection.files):  # revert the importing files before the imported ones
        ownership = recognised.get(file.path, Ownership())
        if adapter.remove_ours(file, RecordedFile(ownership=ownership), folder).base != file.content:
            files.append(file_records.build_adopted_record(adapter, file, ownership))
    if not files:
        return None
    return EngineRecord(adapter.name, inspection.socket, target.settings.reload_mode, (), None, tuple(files))
