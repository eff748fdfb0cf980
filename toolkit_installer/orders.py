"""What `uninstall` tells a running instance: to clean up, whatever its own settings say, and to leave."""

from __future__ import annotations

import errno
import signal
import time

from toolkit_installer import log
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError
from toolkit_installer.node import locks, processes
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import NodeError
from toolkit_installer.receipt_store import ReceiptStore

REMOVE = b"remove\n"
KEEP = b"keep\n"
"""The orders: to clean up, and what is to become of the toolkit's files."""

_PAUSE_SECONDS = 0.1


def ask_to_leave(node: Node, store: ReceiptStore, path: str, *, keep_toolkit: bool, seconds: float) -> None:
    """Make whoever holds the PID file at `path` clean up and end, and wait for it up to `seconds`.

    Another one that takes its place meanwhile is asked as well. Raises AlreadyRunningError if somebody stays, or is
    not seen here as an installer.
    """
    asked: int | None = None
    deadline = time.monotonic() + seconds
    while (pid := locks.holder(node.files, path)) is not None:
        if pid != asked and _ask(node, store, path, pid, keep_toolkit=keep_toolkit):
            asked = pid
        if time.monotonic() > deadline:
            raise AlreadyRunningError(
                f"the running instance (PID {pid}) did not leave in time",
                path=path,
                hint="look at its log; a killed one is cleaned up by running uninstall again",
            )
        time.sleep(_PAUSE_SECONDS)


def _ask(node: Node, store: ReceiptStore, path: str, pid: int, *, keep_toolkit: bool) -> bool:
    """Leave the order and signal the instance; return False if it was ending, or becoming another program, just then.

    Raises AlreadyRunningError.
    """
    process = processes.look(pid)
    if process is None or not any("toolkit" in word or "waiter" in word for word in process.arguments):
        if locks.holder(node.files, path) != pid:
            return False  # it left by itself
        raise AlreadyRunningError(
            f"PID {pid} holds the PID file, and is not seen here as an installer",
            path=path,
            hint="run uninstall where it runs: in the same PID namespace (`hostPID: true`)",
        )
    _give(store, KEEP if keep_toolkit else REMOVE)
    log.get().info("Asking the running instance to clean up and leave", pid=pid)
    return _sent(node, process)


def _sent(node: Node, process: Process) -> bool:
    """Send SIGTERM; return False if the process is not the one that was seen any more. Raises ConfigurationError."""
    try:
        processes.send(node.calls, process, signal.SIGTERM)
    except ConfigurationError:
        if processes.look(process.pid) == process:
            raise
        return False  # it ended, or went to sleep or woke up, which makes another program of it
    return True


def _give(store: ReceiptStore, order: bytes) -> None:
    """Leave the order where there is a folder for it: without one, nothing is there that the order could be about."""
    if not store.exists():
        return
    store.check()
    try:
        store.give_order(order)
    except NodeError as error:
        if error.number != errno.ENOENT:
            raise
        # the instance removed its folder just now: it cleans up already
