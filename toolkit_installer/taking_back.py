"""Taking back what a receipt records, or what was found without one, when nobody else works on the node."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from toolkit_installer import adopting, log, receipt_check, recovering
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError
from toolkit_installer.node.files import ChangedMeanwhileError
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.root import NodeError
from toolkit_installer.node.signals import Attention
from toolkit_installer.receipt import Receipt
from toolkit_installer.receipt_store import ReceiptStore
from toolkit_installer.reverting import Remainder, Reverter
from toolkit_installer.settings import Settings

_Result = TypeVar("_Result")
_ATTEMPTS = 3
"""How often a plan is made again because somebody else wrote the same file meanwhile."""


def take_back(settings: Settings, node: Node, store: ReceiptStore, pid_file: PidFile) -> None:
    """Finish what is left on the node when nobody else works on it."""
    held = locked(store)
    if held:
        store.take_order()
    receipt = receipt_check.load(settings, node, store) or adopting.leftovers(node, settings)
    if receipt is None:
        # what a run left that was killed before its receipt stood, or after it went
        if held:
            store.forget()
        else:  # without a lock, what is in the store is not ours to remove: it would be a run's that starts just now
            node.files.sweep(store.folder)
            for folder in reversed(node.files.folders_of_ours(os.path.dirname(store.folder))):
                node.files.remove_folder(folder)
        log.get().info("Nothing is installed", folder=settings.toolkit.folder)
        return
    store.prepare()
    remainder = revert(settings, node, store, receipt, Attention(), keep_toolkit=settings.keep_toolkit)
    if receipt.pid_file != pid_file.path:
        _remove_pid_file(node, receipt.pid_file)
    pid_file.adopt_folders(receipt.pid_folders)
    say_done(receipt, remainder)


def say_done(receipt: Receipt, remainder: Remainder) -> None:
    """Log how the node is after a cleanup that came to its end."""
    files = "The node's files are as they were" if remainder.unseen else "The node is as it was"
    toolkit = ", but for the toolkit's files, which stay" if remainder.toolkit_stays else ""
    engines = "; that the engine comes back is with systemd" if remainder.unseen else ""
    more = {"folder": receipt.toolkit_folder} if remainder.toolkit_stays else {}
    more |= {"engine": ", ".join(remainder.unseen)} if remainder.unseen else {}
    log.get().info(f"{files}{toolkit}{engines}", **more)


def _remove_pid_file(node: Node, path: str) -> None:
    """Remove the PID file of a dead run: only what could be locked as one is taken for one."""
    if node.files.own_status(path) is None:
        return
    try:
        PidFile.acquire(node.files, path).release()
    except ConfigurationError as error:
        log.get().warning("Left the PID file that the receipt names", file=path, reason=error.reason)
    except AlreadyRunningError as error:
        log.get().warning("Another run has started meanwhile", file=path, reason=error.reason)


def locked(store: ReceiptStore) -> bool:
    """Lock the receipt's folder; return False where there is none. Raises AlreadyRunningError, ConfigurationError."""
    try:
        store.lock()
    except NodeError as error:
        if error.number != errno.ENOENT:
            raise
        return False
    return True


def revert(  # what a cleanup depends on
    settings: Settings, node: Node, store: ReceiptStore, receipt: Receipt, attention: Attention, *, keep_toolkit: bool
) -> Remainder:
    """Take back what the receipt records.

    Raises as Reverter.revert does, but ChangedMeanwhileError.
    """
    recovering.refuse_strangers(node, receipt, receipt.file_paths())

    def work() -> Remainder:
        # an attempt before this one may have learnt something, and recorded it
        reverter = Reverter(node, store, attention, settings.reload_timeout)
        return reverter.revert(store.load() or receipt, keep_toolkit=keep_toolkit)

    return undisturbed(work)


def undisturbed(work: Callable[[], _Result]) -> _Result:
    """Do the work, and do it again if somebody else wrote the same file meanwhile; return what it returns.

    Raises ConfigurationError if that happens over and over.
    """
    for _ in range(1, _ATTEMPTS):
        try:
            return work()
        except ChangedMeanwhileError as error:
            log.get().warning("Somebody changed the file meanwhile: planning again", file=error.path)
    try:
        return work()
    except ChangedMeanwhileError as error:
        raise ConfigurationError(
            f"somebody else changed it {_ATTEMPTS} times while it was edited",
            path=error.path,
            hint="find out who writes it; then start again",
        ) from error
