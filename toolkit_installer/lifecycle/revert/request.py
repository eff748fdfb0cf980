"""What `uninstall` tells a running instance: to clean up, whatever its own settings say, and to leave."""

from __future__ import annotations

import errno
import posixpath
import signal
import time

from toolkit_installer import log
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError
from toolkit_installer.node import locks, processes, signals
from toolkit_installer.node.disk.root import NodeError
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.receipt.store import ReceiptStore
from toolkit_installer.settings import Program

REMOVE = b"remove\n"
KEEP = b"keep\n"
"""The requests: clean up, and remove or keep the toolkit's files."""

_PAUSE_SECONDS = 0.1
_INTERPRETER = "python"
"""How the name of what executes this installer begins, asleep and awake."""
_PACKAGE = __name__.partition(".")[0]
_PROGRAMS = frozenset(Program)
"""Those of other installers that keep the same PID file, NVIDIA's own among them."""


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
        signals.rest(_PAUSE_SECONDS)


def _ask(node: Node, store: ReceiptStore, path: str, pid: int, *, keep_toolkit: bool) -> bool:
    """Leave the request and signal the instance; return False if it was ending, or becoming another program, just then.

    Raises AlreadyRunningError, ConfigurationError.
    """
    process = processes.inspect_process(pid)
    if process is None or not is_installer(node, path, process):
        if locks.holder(node.files, path) != pid:
            return False  # it left by itself
        raise AlreadyRunningError(
            f"PID {pid} holds the lock on the PID file, and is not seen here as an installer: it is not signalled",
            path=path,
            hint="run uninstall where it runs, in the same PID namespace (`hostPID: true`); or look at what that "
            "process is, and end it",
        )
    if store.exists():  # without that folder nothing is installed that the request could be about
        store.require_private()
        try:
            store.leave_request(KEEP if keep_toolkit else REMOVE)
        except NodeError as error:
            if error.number != errno.ENOENT:
                raise
            # the instance removed its folder just now: it cleans up already
    log.get().info("Asking the running instance to clean up and leave", key="asking-instance-to-leave", pid=pid)
    try:
        processes.send(node.calls, process, signal.SIGTERM)
    except ConfigurationError:
        if processes.inspect_process(process.pid) == process:
            raise
        return False  # it ended, or went to sleep or woke up, which makes another program of it
    return True


def is_python(process: Process) -> bool:
    """Tell whether a Python interpreter executes the process, as this program: NVIDIA's is a binary of that name."""
    return posixpath.basename(process.executable).startswith(_INTERPRETER)


def is_installer(node: Node, path: str, process: Process) -> bool:
    """Tell whether root's process that holds the lock is an installer: by what it executes, and its PID in the file.

    One that has the lock and has not written its PID yet is told by what it was started as. Its other arguments prove
    nothing: any program of root's may be called with words like ours.
    """
    if posixpath.basename(process.executable) not in _PROGRAMS and not is_python(process):
        return False
    started_as = next((word for word in process.arguments[1:] if not word.startswith("-")), "")
    ours = posixpath.basename(started_as) in _PROGRAMS or f"/{_PACKAGE}/" in started_as or started_as == _PACKAGE
    return ours or locks.named(node.files, path) == process.pid
