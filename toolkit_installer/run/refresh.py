"""The request of `refresh` to the run that waits on the node: inspect the node again, and report the outcome."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

from toolkit_installer import log
from toolkit_installer.errors import AlreadyRunningError, ConfigurationError
from toolkit_installer.node import locks, machine, processes, signals, trust
from toolkit_installer.node.node import Node
from toolkit_installer.node.processes import Process
from toolkit_installer.node.root import NodeError
from toolkit_installer.reporting import saved_state
from toolkit_installer.reporting.outcome import InspectionOutcome
from toolkit_installer.revert import uninstall
from toolkit_installer.waiting import wait

_PAUSE_SECONDS = 0.05
_INTERPRETER = "python"
"""Prefix of the name of this installer's executable, idle or at work; NVIDIA's installer is an executable of its own.
"""
_ELSEWHERE = (
    "`toolkit-installer run` starts one; one in another container is seen only from the same PID namespace: "
    "`kubectl exec` into its pod, or `docker exec` into its container; and --node-root has to be the one of that run"
)


class NoWaitingRunError(ConfigurationError):
    """No waiting run on the node could inspect it."""


def refresh(node: Node, paths: Iterable[str], seconds: float, *, installed: bool) -> InspectionOutcome:
    """Make the run that holds one of the PID files at `paths` inspect the node; return the outcome.

    The inspection began after this request. Raises NoWaitingRunError if no run waits, or if it ends meanwhile;
    AlreadyRunningError if the holder of the file is another program, is stopped, or does not answer within `seconds`.
    """
    deadline = machine.monotonic() + seconds
    path, pid = _find_holder(node, paths, installed=installed)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise _ended_error(pid, path) from error
    except OSError as error:
        raise NodeError.of(error, path, "open the process that holds it") from error
    try:
        # the descriptor pins the PID: no other process can take it from here on
        requested_at = machine.now()
        before = wait.read_saved(pid)
        requested = _request(node, path, pid, pidfd, deadline)
        while True:
            saved = saved_state.of_run(pid)
            outcome = saved.inspection if saved is not None else None
            if outcome is not None and outcome.began >= requested:
                return outcome
            reports_none = saved is not None and saved.inspection is None and saved.converged_at > requested_at
            if reports_none or (saved is not None and not saved.parsed and wait.read_saved(pid) not in (before, None)):
                raise AlreadyRunningError(
                    f"the waiting run (PID {pid}) has inspected the node, and its release reports no outcome",
                    path=path,
                    hint="its log has the outcome; `toolkit-installer status` shows how the node is now",
                )
            if _has_ended(pidfd):
                raise _ended_error(pid, path)
            _refuse_stopped(pid, path)
            _refuse_late(pid, path, deadline)
            signals.sleep(_PAUSE_SECONDS)
    finally:
        os.close(pidfd)


def _find_holder(node: Node, paths: Iterable[str], *, installed: bool) -> tuple[str, int]:
    """Return the path of the PID file that is held, and its holder's PID. Raises NoWaitingRunError, NodeError."""
    tried = list(dict.fromkeys(paths))
    for path in tried:
        if (pid := locks.find_instance(node.files, path)) is not None:
            return path, pid
    what = "no run waits here" if installed else "no run waits here, and nothing is installed"
    raise NoWaitingRunError(what, path=tried[0], hint=_ELSEWHERE)


def _request(node: Node, path: str, pid: int, pidfd: int, deadline: float) -> float:
    """Signal the run; return the time of the signal, in seconds since the boot. Raises as `refresh` does."""
    while True:
        process = processes.inspect_process(pid)
        if _has_ended(pidfd) or locks.find_instance(node.files, path) != pid:
            raise _ended_error(pid, path)
        if process is not None:
            _require_own_run(node, path, process)
            _refuse_stopped(pid, path)
            log.get().info("Asking the waiting run to look again", key="requesting-look", pid=pid)
            requested = machine.boot_seconds()
            if processes.inspect_process(pid) != process:
                continue  # the run became idle or woke up, which changes its program
            try:
                # by the descriptor, also for PID 1, which a run is in its own container: the checks above identified it
                node.calls.signal(pidfd, signal.SIGHUP)
            except ProcessLookupError as error:
                raise _ended_error(pid, path) from error
            except OSError as error:
                raise NodeError.of(error, path, "send SIGHUP to the process that holds it") from error
            return requested
        if trust.find_trust_level(pid) is trust.TrustLevel.UNSEEN:
            raise AlreadyRunningError(
                f"PID {pid} holds the lock on the PID file, and cannot be inspected: it is not signalled",
                path=path,
                hint="run this as root",
            )
        _refuse_late(pid, path, deadline)
        signals.sleep(_PAUSE_SECONDS)


def _require_own_run(node: Node, path: str, process: Process) -> None:
    """Raise AlreadyRunningError unless the lock's holder is a run of this program that takes SIGHUP as a request."""
    name = os.path.basename(process.executable)
    if not uninstall.is_installer(node, path, process):
        what = f"PID {process.pid} holds the lock on the PID file, and is not seen here as an installer"
    elif not name.startswith(_INTERPRETER):
        what = f"another installer, {name}, is running with PID {process.pid}, and would end at a SIGHUP"
    elif not _takes_signal(process.pid):
        what = f"PID {process.pid} holds the lock on the PID file, and would end at a SIGHUP"
    elif not trust.shares_clock(process.pid):
        what = f"the waiting run (PID {process.pid}) has a time namespace of its own, so that its answer is not known"
    else:
        return
    raise AlreadyRunningError(f"{what}: it is not signalled", path=path, hint="inspect that process")


def _takes_signal(pid: int) -> bool:
    """Return whether a run takes SIGHUP as a request: it blocks the signal at work, and awaits it while idle.

    A signal that is awaited does not count as blocked (sigtimedwait(2)). The state is checked twice: a run that is at
    work at the first check may be idle at the second.
    """
    is_idle = wait.read_saved
    return is_idle(pid) is not None or trust.is_signal_blocked(pid, signal.SIGHUP) or is_idle(pid) is not None


def _refuse_stopped(pid: int, path: str) -> None:
    if trust.state_of(pid) == "T":
        raise AlreadyRunningError(
            f"the waiting run (PID {pid}) is stopped (SIGSTOP), and does nothing",
            path=path,
            hint=f"`kill -CONT {pid}` lets it go on",
        )


def _refuse_late(pid: int, path: str, deadline: float) -> None:
    if machine.monotonic() > deadline:
        raise AlreadyRunningError(
            f"the waiting run (PID {pid}) did not report an outcome in time",
            path=path,
            hint="its log says what it does; --timeout waits longer",
        )


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _ended_error(pid: int, path: str) -> NoWaitingRunError:
    return NoWaitingRunError(f"the run (PID {pid}) ended meanwhile", path=path, hint="its log says why")
