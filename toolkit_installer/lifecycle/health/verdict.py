"""What is found on a node, judged: OK, DEGRADED or BROKEN, why, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from toolkit_installer.errors import ExitCode
from toolkit_installer.lifecycle.files.intact import Damage
from toolkit_installer.lifecycle.health.form import EngineHealth, Found, Health, Reason, Verdict
from toolkit_installer.lifecycle.last_run import LastRun
from toolkit_installer.receipt.schema import AS_WRITTEN

ABSENT, INSTALLED = "absent", "installed"
_REPAIR = "`toolkit-installer run`, or a HUP to the running instance, puts it right"
_PUT_BACK = "`plan` shows the difference; --on-drift repair, a HUP or a new `run` puts the handlers back"
_INSTALL = "`toolkit-installer plan` shows what `run` would do, `run` does it"
_WAITS = "the running instance makes it once that is over; one with `--reload-when now` makes it at once"
_AGAIN = "mend that, and start it again: a run that succeeds makes this go"
_CONNECTS = "it connects by itself once the engine serves NRI; its log, and the engine's, say more"
_ONE_OF_THEM = "stop one of the two: each would undo what the other does"
_FIND_RUNTIME = "install one of them, then `toolkit-installer run`, which writes down the path of the one it finds"
_LOOK_AT_LOG = "look at the log of the running instance"
SEVERITY = list(Verdict)
"""The better first; a verdict's place here is the exit code of `status --check`."""


def judged(found: Found) -> Health:
    """Return the verdict on what was found, the gravest reasons first."""
    reasons = sorted(_reasons(found), key=lambda reason: -SEVERITY.index(reason.verdict))
    verdict = reasons[0].verdict if reasons else Verdict.OK
    return Health(verdict=verdict, reasons=tuple(reasons), **msgspec.structs.asdict(found))


def _reasons(found: Found) -> Iterator[Reason]:
    """Yield what keeps a node from being OK."""
    if found.other_installer is not None:
        what = f"another installer is at work on this node: {found.other_installer}"
        yield Reason(Verdict.DEGRADED, what, _ONE_OF_THEM)
    if found.last_look is not None and found.last_look.failure:
        what = f"the running instance could not do its work at {found.last_look.at}: {found.last_look.failure}"
        yield Reason(Verdict.DEGRADED, what, _LOOK_AT_LOG)
    if found.pending_reload is not None:
        waits = found.pending_reload
        what = f"a reload of {', '.join(waits.engines)} is pending since {waits.since}: {waits.reason}"
        yield Reason(Verdict.DEGRADED, what, _WAITS)
    if found.last_run is not None and counts(found):
        what = f"the last `{found.last_run.command}` failed at {found.last_run.ended}: {said(found.last_run)}"
        yield Reason(Verdict.DEGRADED, what, found.last_run.remedy or _AGAIN)
    if found.state == ABSENT:
        yield from _not_installed(found)
    elif found.state != INSTALLED:
        yield _half_way(found)
    else:
        yield from _installed(found)


def counts(found: Found) -> bool:
    """Tell whether what the last run came to is a reason for the verdict.

    Not while another one is at work; nor on a node that is installed, if all it was is a mistyped command line.
    """
    ended = found.last_run
    mistyped = ended is not None and ended.exit_code == ExitCode.USAGE and found.state == INSTALLED
    return ended is not None and found.running_pid is None and not mistyped


def said(ended: LastRun) -> str:
    """Return in words what a run said last, with the place that it names."""
    place = "" if ended.file is None else ended.file if ended.line is None else f"{ended.file}:{ended.line}"
    return f"{place}: {ended.reason}" if place else ended.reason


def _not_installed(found: Found) -> Iterator[Reason]:
    if found.has_gpu is False or found.pending_reload is not None:
        return
    if found.running_pid is not None:
        what = f"nothing is installed, although an instance runs (PID {found.running_pid})"
        yield Reason(Verdict.DEGRADED, what, _LOOK_AT_LOG)
    else:
        gpu = "the node has a GPU, and nothing" if found.has_gpu else "nothing"
        yield Reason(Verdict.DEGRADED, f"{gpu} is installed", _INSTALL)


def _half_way(found: Found) -> Reason:
    doing = "changed" if found.state == "applying" else "reverted"
    if found.running_pid is not None:
        return Reason(Verdict.DEGRADED, f"PID {found.running_pid} has the node {doing} right now", "ask again later")
    what = f"a run was killed, or failed, while the node was {doing}"
    return Reason(Verdict.BROKEN, what, "`toolkit-installer run` finishes the work, `uninstall` reverts it")


def _installed(found: Found) -> Iterator[Reason]:
    if found.killed_pid is not None and found.running_pid is None:
        what = f"the instance that waited here (PID {found.killed_pid}) was killed, and the node stays configured"
        yield Reason(Verdict.DEGRADED, what, "start it again, or `toolkit-installer uninstall` to revert the node")
    if found.toolkit is not None:
        if found.toolkit.missing:
            missing = ", ".join(found.toolkit.missing)
            yield Reason(Verdict.BROKEN, f"files are missing in {found.toolkit.folder}: {missing}", _REPAIR)
        for words, certain in together(found.toolkit.damaged):
            yield Reason(Verdict.BROKEN if certain else Verdict.DEGRADED, f"{found.toolkit.folder}/{words}", _REPAIR)
    for engine in found.engines:
        yield from _engine(engine)
    if found.method is not None and found.method.no_runtime is not None:
        yield Reason(Verdict.BROKEN, found.method.no_runtime, _FIND_RUNTIME)
    if found.plugin is not None and not found.plugin.connected:
        what = f"the NRI plugin is not connected, so containers get no devices from it: {found.plugin.reason}"
        yield Reason(Verdict.BROKEN, what, _CONNECTS)
    for specification in found.specifications:
        if specification.state != AS_WRITTEN:
            yield Reason(Verdict.DEGRADED, f"{specification.path}: {specification.state}", _REPAIR)
    yield from _driver(found)


def together(damaged: Iterable[Damage]) -> Iterator[tuple[str, bool]]:
    """Yield what became of files of the toolkit, those that became the same together, and whether that is certain."""
    names: dict[tuple[str, bool], list[str]] = {}
    for file in damaged:
        names.setdefault((file.what, file.certain), []).append(file.name)
    for (what, certain), each in names.items():
        yield f"{each[0] if len(each) == 1 else '{' + ','.join(each) + '}'}: {what}", certain


def _driver(found: Found) -> Iterator[Reason]:
    driver = found.driver
    if driver is None:
        return
    verdict = Verdict.BROKEN if found.has_gpu else Verdict.DEGRADED
    if not driver.usable:
        why = "; ".join(driver.wrong)
        yield Reason(
            verdict, f"no driver is usable: {why}", "install the driver, or look at the driver container's log"
        )

    elif driver.meant_for is not None and driver.meant_for != driver.root:
        what = f"the usable driver is in {driver.root}, and the toolkit takes it from {driver.meant_for}"
        yield Reason(verdict, what, "start `run` again, with --driver-root auto or the right one")


def _engine(engine: EngineHealth) -> Iterator[Reason]:
    detail = "; ".join(engine.live.detail)
    if not engine.live.answers:
        what = f"{engine.name} on {engine.socket}: {detail}"
        yield Reason(Verdict.BROKEN, what, "look at the engine's own log, and start it")
    elif engine.live.reads is not None:
        files = ", ".join(file.path for file in engine.files)
        what = f"the running {engine.name} (PID {engine.live.pid}) reads {engine.live.reads}, and not {files}"
        remedy = f"start it with its former configuration, or start `run` again, with --config for {engine.live.reads}"
        yield Reason(Verdict.BROKEN, what, remedy)
    elif not engine.live.served:
        what = f"{engine.name} does not serve what its files say: {detail}"
        yield Reason(Verdict.BROKEN, what, "it has to take its configuration over: restart it, or start `run` again")
    for fault in engine.faults:
        yield Reason(Verdict.DEGRADED, f"{engine.name}: {fault.what}", fault.remedy)
    for file in engine.files:
        if file.state != AS_WRITTEN:
            yield Reason(Verdict.DEGRADED, f"{file.path}: {file.state}", _PUT_BACK)
