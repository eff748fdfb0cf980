"""The fields of `status --json`, from which docs/status.schema.json is generated, and the verdict on a node. Pure.

The verdict is OK, DEGRADED or BROKEN, with its reasons, and what to do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

from toolkit_installer.errors import ExitCode
from toolkit_installer.planning.installed import Damage
from toolkit_installer.receipt.schema import AS_WRITTEN
from toolkit_installer.reporting.outcome import LastRun

SCHEMA = 1
"""Raised when a field is removed or changes its meaning; new fields do not raise it."""


class Verdict(enum.StrEnum):
    """The status of a node, the best first."""

    OK = "OK"
    """Everything works."""
    DEGRADED = "DEGRADED"
    """Containers with a GPU can be started, or none are wanted yet, and something needs attention."""
    BROKEN = "BROKEN"
    """Containers with a GPU cannot be started, or the node was left half-way."""


class Reason(msgspec.Struct, frozen=True):
    """Why the verdict is no better: the fault, and its remedy."""

    verdict: Verdict
    what: str
    remedy: str


class Places(msgspec.Struct, frozen=True):
    """The inspected places: the node's root as the installer sees it, and paths on the node."""

    node_root: str
    receipt: str
    pid_file: str


class LastLook(msgspec.Struct, frozen=True):
    """The waiting instance's last attempt to bring the node to the state that the settings describe."""

    at: str
    """RFC 3339, UTC."""
    failure: str | None
    """Why it failed, None if it did not."""
    exit_code: int | None = None
    """The exit code of that failure, None if there is none, or the run's release does not report it."""
    file: str | None = None
    """The file that the failure names."""


class PendingReload(msgspec.Struct, frozen=True):
    """A reload that the waiting instance may not make yet (`--reload-when`)."""

    engines: tuple[str, ...]
    reason: str
    since: str
    """When the instance began to wait: RFC 3339, UTC."""
    opens: str | None
    """When the next window opens: RFC 3339, UTC; None if the reload waits for no window."""


class ProcessState(enum.StrEnum):
    """Why a running process does nothing."""

    STOPPED = "stopped"
    """By a signal (SIGSTOP), or by a debugger."""
    IN_KERNEL = "in the kernel"
    """It waits for the kernel, which may hang (state D of proc_pid_stat(5))."""
    SILENT = "silent"
    """It accepted the request, and did not answer in time."""


class DriverHealth(msgspec.Struct, frozen=True):
    """The driver: its root on the node and its version, or in `wrong`, root by root, why none is usable."""

    usable: bool
    root: str | None
    version: str | None
    wrong: tuple[str, ...]
    meant_for: str | None
    """The root in the installed toolkit's config.toml: containers get the driver from there."""
    hangs: bool = False
    """Whether nvidia-smi did not end in time: the driver, or a GPU, hangs."""
    absent: bool = False
    """Whether no root has even nvidia-smi."""


class ToolkitHealth(msgspec.Struct, frozen=True):
    """The installed toolkit: its folder, its number of files, and which of them are missing or damaged."""

    folder: str
    files: int
    missing: tuple[str, ...]
    damaged: tuple[Damage, ...]
    version: str | None
    """Its release of NVIDIA's toolkit; None if unknown."""


class FileHealth(msgspec.Struct, frozen=True):
    """A managed file. `state` is a description; "as written" is the good one."""

    path: str
    state: str
    difference: str | None = None
    """The change that a run would make to it, found by the waiting instance: a unified diff with masked secrets.

    None if nothing was changed, or no instance waits.
    """
    lost: tuple[str, ...] = ()
    """Descriptions of our values that are missing or changed in the file."""


class LiveHealth(msgspec.Struct, frozen=True):
    """The running engine's answer. `served` is None if it did not answer."""

    answers: bool
    served: bool | None
    detail: tuple[str, ...] = ()
    """Descriptions of its faults."""
    default: str | None = None
    """Its default runtime, None if it does not report one."""
    version: str | None = None
    own: tuple[str, ...] = ()
    """Handlers that a distribution registered by itself."""
    pid: int | None = None
    since: str | None = None
    """When the process that answered was started: RFC 3339, UTC."""
    reads: str | None = None
    """The file that it reads, if it does not serve the handlers, and reads none of the files that have them."""


class MethodHealth(msgspec.Struct, frozen=True):
    """How containers get the GPU on this node, and whether one that requested it now would get it."""

    name: str
    """handlers or cdi."""
    why: str
    asked_by: str
    """How a container requests the GPU, as a description."""
    met: bool
    against: tuple[str, ...] = ()
    """Descriptions of why it would not get the GPU."""
    not_by: dict[str, str] = {}
    """Handlers that are served without giving a container the GPU; and why."""
    no_runtime: str | None = None
    """A message that NVIDIA's runtime finds no low-level runtime; None if it finds one."""


class FileFault(msgspec.Struct, frozen=True):
    """A fault of an engine's files, or of the programs that run its containers, with its remedy."""

    what: str
    """A description, with file and line if the fault is in a file."""
    remedy: str
    stops: bool = False
    """Whether the engine does not start with it, or starts no container."""
    path: str | None = None
    """The file with the fault."""


class SilentEngine(msgspec.Struct, frozen=True):
    """Why an engine does not answer."""

    pid: int | None
    """Its process, None if none runs."""
    process: ProcessState | None
    unit: str | None
    """The systemd unit that runs it, None if unknown."""
    unit_state: str | None
    """masked, failed, inactive, activating, active or another state of systemd's; None if unknown."""
    result: str | None
    """How the unit's last start failed, such as exit-code; None if it did not."""
    log: tuple[str, ...] = ()
    """The last lines of its own log that report trouble."""


class EngineHealth(msgspec.Struct, frozen=True):
    """A configured engine: its handlers with their executables, its files, and its answer."""

    name: str
    socket: str
    handlers: dict[str, str]
    default: str | None
    files: tuple[FileHealth, ...]
    live: LiveHealth
    faults: tuple[FileFault, ...] = ()
    silent: SilentEngine | None = None
    """None if it answers."""


class PluginHealth(msgspec.Struct, frozen=True):
    """The NRI plugin that the waiting instance serves."""

    connected: bool
    """Whether the engine asks it about each container."""
    engine: str | None
    """The engine's name and version, None if not received yet."""
    reason: str | None
    """Why the engine does not ask it, None if it does."""


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node as plain values, before its verdict."""

    version: str
    """The version of this program."""
    looked_in: Places
    installed: bool
    state: str
    """The receipt's state: installed, applying, reverting, or absent."""
    changed: str | None
    """When the receipt was last written: RFC 3339, UTC."""
    running_pid: int | None
    running_state: ProcessState | None = None
    """Whether the running instance is stopped or waits in the kernel; None: neither."""
    receipt_gone: bool = False
    """Whether an instance runs and the toolkit is installed, but its receipt is gone."""
    killed_pid: int | None
    """The PID in a PID file that no process holds any more: its instance was killed."""
    other_installer: str | None = None
    """Another installer that is running on this node, with its PID; None if there is none."""
    refresh: str | None = None
    """The command that makes the running instance inspect the node again; None if none runs."""
    last_look: LastLook | None
    pending_reload: PendingReload | None
    last_run: LastRun | None
    """A run or uninstall that failed and ended; None if none failed in this boot, or one succeeded since."""
    gpus: tuple[str, ...]
    has_gpu: bool | None
    """None if unknown."""
    driver: DriverHealth | None
    """None if no driver is expected: the node shows no GPU, or that is unknown and there is no trace of a driver."""
    toolkit: ToolkitHealth | None
    engines: tuple[EngineHealth, ...]
    specifications: tuple[FileHealth, ...]
    method: MethodHealth | None = None
    """None if nothing is installed, or no engine was configured or found to read CDI specifications."""
    plugin: PluginHealth | None = None
    """None if no plugin is served, or no instance waits."""


class Health(NodeStatus, frozen=True, kw_only=True):
    """The answer of `status`: the node's status, and the verdict on it."""

    schema: int = SCHEMA
    verdict: Verdict
    reasons: tuple[Reason, ...]


ABSENT, INSTALLED = "absent", "installed"
_INSTALL = "`toolkit-installer plan` shows what `run` would do, `run` does it"
_WAITS = "the running instance makes it once that is over; one with `--reload-when now` makes it at once"
_AGAIN = "mend that, and start it again: a run that succeeds makes this go"
_CONNECTS = "it connects by itself once the engine serves NRI; its log, and the engine's, say more"
_NO_DRIVER = "install the driver, or look at the driver container's log"
_DRIVER_FAILS = "`modprobe nvidia` loads its module; `dmesg | grep -i nvrm`, or the driver container's log, has more"
_GPU_HANGS = "`dmesg | grep -iE 'nvrm|xid'` says why; a GPU that does not come back needs a reboot of the node"
_START_IT = "look at the engine's own log, and start it"
_ONE_OF_THEM = "stop one of the two, as each undoes what the other does: delete its pod, or `kill` its PID; then "
_FIND_RUNTIME = "install one of them, then `toolkit-installer run`, which writes down the path of the one it finds"
_LOOK_AT_LOG = "look at the log of the running instance"
SEVERITY = list(Verdict)
"""The verdicts, the best first; a verdict's index is the exit code of `status --check`."""


def judge_node(found: NodeStatus) -> Health:
    """Return the status with its verdict, the gravest reasons first."""
    reasons = list(_find_reasons(found))
    look = found.last_look
    if reasons or look is None or not _is_cause_gone(found, look.exit_code, look.file):
        reasons += _find_failed_inspection(found)
    reasons.sort(key=lambda reason: -SEVERITY.index(reason.verdict))
    verdict = reasons[0].verdict if reasons else Verdict.OK
    return Health(verdict=verdict, reasons=tuple(reasons), **msgspec.structs.asdict(found))


def _find_reasons(found: NodeStatus) -> Iterator[Reason]:
    """Yield the reasons why a node is not OK."""
    if found.other_installer is not None:
        what = f"another installer is at work on this node: {found.other_installer}"
        harmed = found.toolkit is not None and (found.toolkit.missing or found.toolkit.damaged)
        yield Reason(
            Verdict.BROKEN if harmed else Verdict.DEGRADED,
            what,
            f"{_ONE_OF_THEM}`{_repair_command(found)}` puts ours right",
        )
    if found.running_state is ProcessState.STOPPED:
        what = f"the running instance (PID {found.running_pid}) is stopped (SIGSTOP): it looks after nothing"
        yield Reason(Verdict.DEGRADED, what, f"`kill -CONT {found.running_pid}` lets it go on")
    if found.pending_reload is not None:
        waits = found.pending_reload
        what = f"a reload of {', '.join(waits.engines)} is pending since {waits.since}: {waits.reason}"
        yield Reason(Verdict.DEGRADED, what, _WAITS)
    if found.last_run is not None and is_failure_relevant(found):
        what = f"the last `{found.last_run.command}` failed at {found.last_run.ended}: {format_failure(found.last_run)}"
        yield Reason(Verdict.DEGRADED, what, found.last_run.remedy or _AGAIN)
    if found.state == ABSENT:
        yield from _judge_absent(found)
    elif found.state != INSTALLED:
        yield _judge_half_done(found)
    else:
        yield from _judge_installed(found)


def _find_failed_inspection(found: NodeStatus) -> Iterator[Reason]:
    """Yield a reason if the running instance's last inspection failed."""
    if found.last_look is not None and found.last_look.failure:
        what = f"the running instance could not do its work at {found.last_look.at}: {found.last_look.failure}"
        yield Reason(Verdict.DEGRADED, what, f"`{_repair_command(found)}` has it try again; its log says more")


def _repair_command(found: NodeStatus) -> str:
    """Return the command that repairs the node: by the running instance, or by a new one."""
    return found.refresh or "toolkit-installer run"


def _adapt_remedy(found: NodeStatus, remedy: str) -> str:
    """Return a remedy in which the command `refresh` is adapted to the place of the run."""
    return remedy.replace("`toolkit-installer refresh`", f"`{_repair_command(found)}`")


def _format_repair(found: NodeStatus) -> str:
    return f"`{_repair_command(found)}` puts it right"


def _restore_hint(found: NodeStatus) -> str:
    repairs = ", and so does --on-drift repair by itself" if found.refresh is not None else ""
    return f"`plan` shows the difference; `{_repair_command(found)}` puts the handlers back{repairs}"


def is_failure_relevant(found: NodeStatus) -> bool:
    """Return whether the last run's failure is a reason for the verdict.

    It is not while another run is at work; nor on an installed node if the command line was mistyped, or the failure's
    cause is gone.
    """
    ended = found.last_run
    mistyped = ended is not None and ended.exit_code == ExitCode.USAGE and found.state == INSTALLED
    return ended is not None and found.running_pid is None and not mistyped and not is_cause_gone(found)


def is_cause_gone(found: NodeStatus) -> bool:
    """Return whether the cause of the last run's failure is gone, on an installed node without faults.

    That is known only for an engine that was down, and for an engine's file that could not be used.
    """
    ended = found.last_run
    return ended is not None and _is_cause_gone(found, ended.exit_code, ended.file)


def _is_cause_gone(found: NodeStatus, exit_code: int | None, file: str | None) -> bool:
    if found.state != INSTALLED:
        return False
    managed = {file.path for engine in found.engines for file in engine.files}
    seen = exit_code == ExitCode.BAD_CONFIGURATION and file in managed
    return (seen or exit_code == ExitCode.ENGINE_DOWN) and next(_judge_installed(found), None) is None


def format_failure(ended: LastRun) -> str:
    """Return a run's failure as text, with the place that it names."""
    place = "" if ended.file is None else ended.file if ended.line is None else f"{ended.file}:{ended.line}"
    return f"{place}: {ended.reason}" if place else ended.reason


def _judge_absent(found: NodeStatus) -> Iterator[Reason]:
    if found.receipt_gone:
        receipt = found.looked_in.receipt
        what = f"{receipt} is gone, the record of what PID {found.running_pid} has installed: it cannot be reverted"
        yield Reason(Verdict.DEGRADED, what, f"`{_repair_command(found)}` rebuilds it")
        return
    if found.has_gpu is False or found.pending_reload is not None:
        return
    if found.running_pid is not None:
        what = f"nothing is installed, although an instance runs (PID {found.running_pid})"
        yield Reason(Verdict.DEGRADED, what, _LOOK_AT_LOG)
    else:
        gpu = "the node has a GPU, and nothing" if found.has_gpu else "nothing"
        yield Reason(Verdict.DEGRADED, f"{gpu} is installed", _INSTALL)


def _judge_half_done(found: NodeStatus) -> Reason:
    doing = "changed" if found.state == "applying" else "reverted"
    if found.running_pid is not None:
        return Reason(Verdict.DEGRADED, f"PID {found.running_pid} has the node {doing} right now", "ask again later")
    what = f"a run was killed, or failed, while the node was {doing}"
    return Reason(Verdict.BROKEN, what, "`toolkit-installer run` finishes the work, `uninstall` reverts it")


def _judge_installed(found: NodeStatus) -> Iterator[Reason]:
    if found.killed_pid is not None and found.running_pid is None:
        what = f"the instance that waited here (PID {found.killed_pid}) was killed, and the node stays configured"
        yield Reason(Verdict.DEGRADED, what, "start it again, or `toolkit-installer uninstall` to revert the node")
    if found.toolkit is not None:
        if found.toolkit.missing:
            missing = ", ".join(found.toolkit.missing)
            yield Reason(
                Verdict.BROKEN, f"files are missing in {found.toolkit.folder}: {missing}", _format_repair(found)
            )
        for words, certain in group_damage(found.toolkit.damaged):
            verdict = Verdict.BROKEN if certain else Verdict.DEGRADED
            yield Reason(verdict, f"{found.toolkit.folder}/{words}", _format_repair(found))
    for engine in found.engines:
        yield from _judge_engine(found, engine)
    if found.method is not None and found.method.no_runtime is not None:
        yield Reason(Verdict.BROKEN, found.method.no_runtime, _FIND_RUNTIME)
    if found.plugin is not None and not found.plugin.connected:
        what = f"the NRI plugin is not connected, so containers get no devices from it: {found.plugin.reason}"
        yield Reason(Verdict.BROKEN, what, _CONNECTS)
    for specification in found.specifications:
        if specification.state != AS_WRITTEN:
            yield Reason(Verdict.DEGRADED, f"{specification.path}: {specification.state}", _format_repair(found))
    yield from _judge_driver(found)


def group_damage(damaged: Iterable[Damage]) -> Iterator[tuple[str, bool]]:
    """Yield descriptions of damaged files, grouped by equal damage, and whether the damage is certain."""
    names: dict[tuple[str, bool], list[str]] = {}
    for file in damaged:
        names.setdefault((file.what, file.certain), []).append(file.name)
    for (what, certain), each in names.items():
        yield f"{each[0] if len(each) == 1 else '{' + ','.join(each) + '}'}: {what}", certain


def _judge_driver(found: NodeStatus) -> Iterator[Reason]:
    driver = found.driver
    if driver is None:
        return
    verdict = Verdict.BROKEN if found.has_gpu else Verdict.DEGRADED
    if not driver.usable:
        why = "; ".join(driver.wrong)
        what = "nvidia-smi hangs, so the driver or a GPU does" if driver.hangs else "no driver is usable"
        remedy = _GPU_HANGS if driver.hangs else _NO_DRIVER if driver.absent else _DRIVER_FAILS
        yield Reason(verdict, f"{what}: {why}", remedy)
    elif driver.meant_for is not None and driver.meant_for != driver.root:
        what = f"the usable driver is in {driver.root}, and the toolkit takes it from {driver.meant_for}"
        yield Reason(verdict, what, "start `run` again, with --driver-root auto or the right one")


def _judge_engine(found: NodeStatus, engine: EngineHealth) -> Iterator[Reason]:
    for fault in engine.faults:
        if fault.stops:
            starts = "" if engine.live.answers else f", then `systemctl restart {_name_unit(engine)}`"
            why = f"; {engine.name} cannot start with it" if fault.path is not None else ""
            remedy = f"{_adapt_remedy(found, fault.remedy)}{starts}"
            yield Reason(Verdict.BROKEN, f"{engine.name}: {fault.what}{why}", remedy)
    detail = "; ".join(engine.live.detail)
    # a run refuses a file that cannot be parsed, so it restores nothing there
    faulty = {fault.path for fault in engine.faults if fault.stops}
    changed = [file for file in engine.files if file.state != AS_WRITTEN and file.path not in faulty]
    if not engine.live.answers:
        yield _judge_silent_engine(engine, detail)
    elif engine.live.reads is not None:
        files = ", ".join(file.path for file in engine.files)
        what = f"the running {engine.name} (PID {engine.live.pid}) reads {engine.live.reads}, and not {files}"
        remedy = f"start it with its former configuration, or start `run` again, with --config for {engine.live.reads}"
        yield Reason(Verdict.BROKEN, what, remedy)
    elif not engine.live.served and changed:
        # the engine reads the changed file, so a restart does not help
        yield Reason(
            Verdict.BROKEN,
            f"{engine.name}: {detail}; {'; '.join(map(_describe_change, changed))}",
            _restore_hint(found),
        )
    elif not engine.live.served:
        what = f"{engine.name} does not serve what its files say: {detail}"
        yield Reason(Verdict.BROKEN, what, "it has to take its configuration over: restart it, or start `run` again")
    for fault in engine.faults:
        if not fault.stops:
            yield Reason(Verdict.DEGRADED, f"{engine.name}: {fault.what}", _adapt_remedy(found, fault.remedy))
    if engine.live.served is not False or engine.live.reads is not None:
        yield from (Reason(Verdict.DEGRADED, _describe_change(file), _restore_hint(found)) for file in changed)


def _describe_change(file: FileHealth) -> str:
    """Return the description of a file that was changed by others."""
    return f"{file.path}: {file.state}{': ' if file.lost else ''}{', '.join(file.lost)}"


def _name_unit(engine: EngineHealth) -> str:
    return engine.name if engine.silent is None or engine.silent.unit is None else engine.silent.unit


def _judge_silent_engine(engine: EngineHealth, detail: str) -> Reason:
    """Return why an engine does not answer, and the command that starts it."""
    seen = engine.silent
    if seen is None:
        return Reason(Verdict.BROKEN, f"{engine.name} on {engine.socket}: {detail}", _START_IT)
    unit = _name_unit(engine)
    if seen.process is ProcessState.STOPPED:
        what = f"{engine.name} (PID {seen.pid}) is stopped (SIGSTOP): it answers nobody"
        return Reason(Verdict.BROKEN, what, f"`kill -CONT {seen.pid}` lets it go on")
    if seen.process is not None:
        hangs = " and hangs in the kernel" if seen.process is ProcessState.IN_KERNEL else ""
        what = f"{engine.name} (PID {seen.pid}) runs{hangs} and does not answer on {engine.socket}: {detail}"
        return Reason(
            Verdict.BROKEN, what, f"`journalctl -u {unit}` is its log; `systemctl restart {unit}` ends a hang"
        )
    if seen.unit is None or seen.unit_state is None or seen.pid is not None:
        return Reason(Verdict.BROKEN, f"{engine.name} on {engine.socket}: {detail}", _START_IT)
    log = f"; its log says: {' | '.join(seen.log)}" if seen.log else ""
    result = f" ({seen.result})" if seen.result is not None else ""
    what = f"{engine.name} does not run: {unit} {_STATES.get(seen.unit_state, f'is {seen.unit_state}')}{result}{log}"
    return Reason(Verdict.BROKEN, what, _STARTS.get(seen.unit_state, _LOG_AND_START).format(unit=unit))


_STATES = {
    "masked": "is masked, so that nothing starts it",
    "failed": "has failed",
    "inactive": "is inactive: it was stopped, or never started",
    "activating": "is activating: systemd starts it again and again, or it takes its time",
}
"""Explanations of systemd's unit states."""
_STARTS = {
    "masked": "`systemctl unmask {unit} && systemctl start {unit}`",
    "inactive": "`systemctl start {unit}`",
}
_LOG_AND_START = "`journalctl -u {unit}` has all of it; end the cause, then `systemctl restart {unit}`"
