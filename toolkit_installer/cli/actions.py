"""The commands, one function each: run, refresh, plan, uninstall, status, and so on.

Each function imports the modules that it alone needs: imports are most of the cost of a start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from toolkit_installer import log
from toolkit_installer.engines.detect import own_container
from toolkit_installer.errors import SIGNALLED, AlreadyRunningError, ExitCode, InstallerError
from toolkit_installer.node import signals
from toolkit_installer.node.locks import PidFile
from toolkit_installer.node.node import Node
from toolkit_installer.node.signals import Stopped
from toolkit_installer.settings import PID_FILES, DeletionSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from toolkit_installer.waiting import wait

_REFRESH_SECONDS, _RELOADS = 600.0, 8
"""How long `refresh` waits for an outcome, in seconds or reload timeouts: the wait ends at once if the run ends or is
stopped. Two engines may be reloaded, reloaded once more, and both again for the old files, each within the timeout."""
_GRACE_SECONDS = 30.0
"""Seconds that another instance may take to exit, in addition to its reload."""


def run(settings: Settings) -> int:
    """Install, wait, clean up; return the exit code. Raises InstallerError."""
    from toolkit_installer.node import programs
    from toolkit_installer.reporting import outcome, saved_state
    from toolkit_installer.run.build import build_instance
    from toolkit_installer.waiting import wait

    woken = wait.read_wake_up()
    programs.reap_children()
    node = _open_node(settings)
    if woken is None:
        own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
        log.get().info("Starting", key="starting", program=settings.program, node_root=settings.node_root)
        pid_file = _lock_pid_files(settings, node, besides=settings.pid_files_besides)
    else:
        pid_file = _resume_pid_file(settings, node, woken)
    try:
        instance = build_instance(settings, node, pid_file)
        try:
            if woken is None:
                code = instance.start()
            else:
                instance.store.lock_fd = woken.lock_fd
                if woken.lock_fd is None:
                    instance.store.lock_fd = wait.find_inherited(node.root.outside(instance.store.folder))
                code = instance.resume(woken.events, saved_state.parse(woken.state))
            if code == ExitCode.DONE:
                outcome.remove_record(node, pid_file.path, settings.ready_file)
            return code
        finally:
            # before the PID file is released: a process that waits for the PID file must find this lock free
            if instance.store.lock_fd is not None:
                os.close(instance.store.lock_fd)
    finally:
        pid_file.release()


def _open_node(settings: Settings) -> Node:
    """Return the node that the flags name. Raises UsageError if there is no such folder."""
    own_container.refuse_absent_root(settings)
    node = Node.open(settings.node_root, settings.host_root)
    node.given = settings.paths()
    return node


def _lock_pid_files(settings: Settings, node: Node, besides: Sequence[str] = ()) -> PidFile:
    """Lock the PID files, and remove half-written files of a killed run next to its own. Raises InstallerError."""
    from toolkit_installer.applying.reload_gate import ReloadBudget
    from toolkit_installer.planning import other_installer

    other_installer.refuse_running(node, settings.toolkit.install_dir)
    try:
        pid_file = PidFile.acquire(node.files, settings.pid_file, PID_FILES, besides)
    except AlreadyRunningError as error:
        raise other_installer.explain_lock(error) from error
    try:
        if not besides:
            other_installer.remove_plugin_pid_file(node)
        ReloadBudget(node.files, pid_file.path, settings.reload_budget).tidy()
    except InstallerError:
        pid_file.release()
        raise
    return pid_file


def _resume_pid_file(settings: Settings, node: Node, woken: wait.WakeUp) -> PidFile:
    """Return the PID file that this program held when it went idle, with the others. Raises InstallerError."""
    from toolkit_installer.waiting import wait

    if woken.pid_fd is not None:
        held = PidFile(node.files, woken.pid_path, woken.pid_fd, woken.pid_folders)
        held.others = tuple(PidFile(node.files, path, fd, folders) for fd, path, folders in woken.others)
    else:
        path = node.files.in_folder(settings.pid_file)
        fd = wait.find_inherited(node.root.outside(path))
        if fd is None:
            return _lock_pid_files(settings, node, besides=settings.pid_files_besides)
        held = PidFile(node.files, path, fd, ())
    try:
        held.hold_others(PID_FILES, settings.pid_files_besides)
    except InstallerError as error:
        log.get().warning(
            "The PID file of another installer cannot be locked as well",
            key="other-lock-missing",
            file=error.path,
            reason=error.reason,
        )
    return held


def plan(settings: Settings, *, as_json: bool) -> int:
    """Print what `run` would do; write nothing. Raises InstallerError, also the error that would stop `run`."""
    from toolkit_installer.cli import show_plan
    from toolkit_installer.run import dry_run

    signals.unblock()
    node = _open_node(settings)
    own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
    holds = dry_run.find_running_installer(settings, node)
    try:
        found = dry_run.simulate_run(settings, node)
    except InstallerError:
        if holds is not None:  # `run` would stop here, before it finds another error
            raise holds from None
        raise
    stops = holds or found.stops
    show_plan.show(node, settings, found.seen, stops, as_json=as_json)
    if stops is not None:
        raise stops
    return ExitCode.DONE


def status(settings: Settings, *, as_json: bool, check: bool) -> int:
    """Print the node's status; with `check` the exit code is its verdict: 0 OK, 1 DEGRADED, 2 BROKEN.

    Raises InstallerError.
    """
    from toolkit_installer.cli import show_status
    from toolkit_installer.receipt import trust
    from toolkit_installer.receipt.store import ReceiptStore
    from toolkit_installer.reporting import status as node_status
    from toolkit_installer.reporting import status_verdict

    signals.unblock()
    node = _open_node(settings)
    store = ReceiptStore(node, settings.toolkit.install_dir)
    health = status_verdict.judge_node(node_status.inspect_node(node, settings, store, trust.load(node, store)))
    show_status.show_status(health, as_json=as_json)
    return status_verdict.SEVERITY.index(health.verdict) if check else ExitCode.DONE


def refresh(settings: Settings, *, seconds: float | None) -> int:
    """Make the run that waits on the node inspect it again, and print the outcome; return its exit code.

    `seconds`: the time limit; None: longer than reloads that fail and are rolled back.
    Raises InstallerError, also the error with which the inspection failed.
    """
    from toolkit_installer.cli import output
    from toolkit_installer.receipt import trust
    from toolkit_installer.receipt.store import ReceiptStore
    from toolkit_installer.run import refresh as refreshing

    signals.unblock()
    node = _open_node(settings)
    receipt = trust.load_if_usable(node, ReceiptStore(node, settings.toolkit.install_dir))
    paths = (settings.pid_file, *((receipt.pid_file,) if receipt is not None else ()), *PID_FILES)
    limit = max(_REFRESH_SECONDS, _RELOADS * settings.reload_timeout) if seconds is None else seconds
    outcome = refreshing.refresh(node, paths, limit, installed=receipt is not None)
    output.show(outcome.lines)
    if outcome.error is not None:
        raise outcome.error
    output.show(["Done: the run has looked at the node again, and nothing failed"])
    return ExitCode.DONE


def wait_driver(settings: Settings, *, seconds: float | None, unless_installed: bool) -> int:
    """Wait until the driver is usable, for `seconds` (None: without a limit); return the exit code.

    `unless_installed`: do not wait on a node that has the toolkit. Raises DriverNotReadyError, and ConfigurationError
    for a receipt that cannot be read.
    """
    from toolkit_installer.driver import gpus
    from toolkit_installer.driver import waiting as driver_wait

    node = _open_node(settings)
    if unless_installed and _is_installed(settings, node):
        log.get().info(
            "The toolkit is installed: the driver is not waited for",
            key="driver-not-awaited",
            folder=settings.toolkit.folder,
        )
        return ExitCode.DONE
    try:
        found = driver_wait.wait_for_driver(node, settings, seconds)
    except Stopped as stopped:
        log.get().info(
            "Stopped before the driver was ready", key="stopped-waiting-for-driver", signal=stopped.number.name
        )
        return SIGNALLED + stopped.number
    if found is None:
        log.get().info(
            "This node shows no NVIDIA GPU: no driver is waited for",
            key="no-gpu-no-driver",
            gpu=str(gpus.find_gpus(node)),
        )
    else:
        log.get().info(
            "The driver is ready", key="driver-ready", root=found.root, dev_root=found.dev_root, version=found.version
        )
    return ExitCode.DONE


def _is_installed(settings: Settings, node: Node) -> bool:
    """Return whether a receipt says that the toolkit is installed, and not that a run was killed half-way.

    The paths in the receipt are not checked: that takes the flags of the run that wrote it (`--config`), which
    `wait-driver` does not get, and this command touches nothing that the receipt names.
    """
    from toolkit_installer.receipt import schema, trust
    from toolkit_installer.receipt.store import ReceiptStore

    store = ReceiptStore(node, settings.toolkit.install_dir)
    store.require_private()
    trust.require_ours(node, f"{store.folder}/{schema.FILE}")
    receipt = store.load()
    return receipt is not None and receipt.state is schema.State.INSTALLED


def detect(settings: Settings, *, as_json: bool) -> int:
    """Print which engine and distribution the node has, and why. Raises InstallerError."""
    from toolkit_installer.cli import show_detect
    from toolkit_installer.node import processes

    signals.unblock()
    with processes.cache_names():
        return show_detect.show(_open_node(settings), settings, as_json=as_json)


def diagnose(settings: Settings, *, as_json: bool) -> int:
    """Print the node's illnesses. Raises InstallerError."""
    from toolkit_installer.cli import show_status
    from toolkit_installer.reporting import diagnosis

    signals.unblock()
    node = _open_node(settings)
    own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
    node.root.only_looks = True
    show_status.show_diagnosis(diagnosis.diagnose(node, settings), as_json=as_json)
    return ExitCode.DONE


def report(settings: Settings, *, file: str, looking: Settings) -> int:
    """Write a support bundle to `file`, which must not exist yet; `looking` are the settings of `status`.

    Raises InstallerError.
    """
    from toolkit_installer.cli import files

    signals.unblock()
    files.write_report(_open_node(settings), settings, looking, file)
    return ExitCode.DONE


def capture(
    settings: Settings,
    *,
    file: str,
    given: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    keep_secrets: bool,
    key_file: str | None,
) -> int:
    """Write a capture of the node to `file`, which must not exist yet; `given` and `environment` made the settings.

    Raises InstallerError.
    """
    from toolkit_installer.cli import files

    signals.unblock()
    node = _open_node(settings)
    node.root.only_looks = True
    files.write_capture(node, settings, file, given, environment, keep_secrets=keep_secrets, key_file=key_file)
    return ExitCode.DONE


def replay(  # noqa: PLR0913  # each is an option of the command
    settings: Settings,
    *,
    archive: Sequence[str],
    given: Mapping[str, Sequence[str]],
    payload: str | None,
    html: str | None,
    engine_versions: Sequence[str] | None,
    each: bool,
    as_json: bool,
) -> int:
    """Print what `run` would do on the nodes of these captures; return the exit code. Raises InstallerError."""
    from toolkit_installer.cli import replay as replays

    signals.unblock()
    versions = dict(text.split("=", 1) for text in engine_versions or ())
    folder, page = (os.path.abspath(path) if path is not None else None for path in (payload, html))
    how = replays.ReplayOptions(
        given, folder, each=each, as_json=as_json, debug=settings.debug, html=page, versions=versions
    )
    return replays.replay(archive, how)


def compare(settings: Settings, *, before: str, after: str, as_json: bool) -> int:
    """Print what changed on nodes between two sets of captures; return the exit code. Raises InstallerError."""
    from toolkit_installer.cli import compare as comparisons

    signals.unblock()
    return comparisons.compare(before, after, as_json=as_json, debug=settings.debug)


def delete_daemonset(_settings: Settings, *, deletion: DeletionSettings, seconds: float) -> int:
    """Delete a DaemonSet, and wait until its pods are gone; return the exit code. Raises NotDeletedError."""
    from toolkit_installer.kubernetes import deletion as deletions

    try:
        deletions.delete_daemon_set(deletion, seconds)
    except Stopped as stopped:
        log.get().info(
            "Stopped before the DaemonSet was gone", key="stopped-deleting-daemonset", signal=stopped.number.name
        )
        return SIGNALLED + stopped.number
    return ExitCode.DONE


def uninstall(settings: Settings) -> int:
    """Revert what a running or a killed instance installed; return the exit code. Raises InstallerError."""
    from toolkit_installer.receipt import trust
    from toolkit_installer.receipt.store import ReceiptStore
    from toolkit_installer.reporting import outcome
    from toolkit_installer.revert import uninstall as uninstall_request
    from toolkit_installer.revert.uninstall import finish_uninstall
    from toolkit_installer.run import preload
    from toolkit_installer.waiting.readiness import ReadyFile

    try:
        node = _open_node(settings)
        own_container.refuse_own_container(node, settings, own_container.list_requested_folders(settings))
        store = ReceiptStore(node, settings.toolkit.install_dir)
        receipt = trust.load(node, store)
        preload.import_all()
        # a run under another of the program's names has another PID file
        for path in dict.fromkeys([settings.pid_file, *([receipt.pid_file] if receipt is not None else [])]):
            seconds = settings.reload_timeout + _GRACE_SECONDS
            uninstall_request.request_cleanup(node, store, path, keep_toolkit=settings.keep_toolkit, seconds=seconds)
        pid_file = _lock_pid_files(settings, node)
        try:
            ReadyFile(settings.ready_file, node.calls).clear_before_cleanup()
            finish_uninstall(settings, node, store, pid_file)
            outcome.remove_record(node, pid_file.path, settings.ready_file)
        finally:
            pid_file.release()
    except Stopped as stopped:
        log.get().info(
            "Stopped before the work was begun",
            key="stopped-before-work",
            signal=stopped.number.name,
        )
        return SIGNALLED + stopped.number
    return ExitCode.DONE
