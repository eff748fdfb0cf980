"""Any call that changes the node fails: it is said, the node is as before or as recorded, each way on is whole."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.node.faults import Fault, Plan
from tests.node.sweeps import soundness, trees
from tests.node.sweeps.judging import Judge
from tests.node.sweeps.matrix import (
    CLEANUP,
    CONVERGE,
    INSTALL,
    MAKES,
    REINSTALL,
    UNINSTALL,
    Bench,
    Deed,
    Done,
    World,
    deed_of,
)
from tests.support.quick import Few
from toolkit_installer.errors import ExitCode

ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM, errno.EINTR)
REFUSALS = (ExitCode.BAD_CONFIGURATION, ExitCode.ENGINE_REJECTED, ExitCode.ENGINE_DOWN)
"""What a command may end with that the node, or its engine, did not let do its work."""
COMMANDS = [deed_of(command) for command in (INSTALL, REINSTALL, CONVERGE, CLEANUP, UNINSTALL)]
LASTING = {Fault.FULL: errno.ENOSPC, Fault.READ_ONLY: errno.EROFS}

# both engines, alive: reloading and waiting are among what can fail; xdist runs each in one process, as it remembers
LIVE = pytest.mark.parametrize(
    "made",
    [pytest.param(make, id=make.name, marks=pytest.mark.xdist_group(make.name)) for make in MAKES if make.live],
    indirect=True,
)

Count = Callable[[int, Sequence[str]], None]


def unclear(output: str, number: int, *, of_engine: bool) -> list[str]:
    """Return what is wrong with how a failure was told: one line has file, the kernel's reason and a remedy.

    What the engine does not do is told of the engine, and of no file.
    """
    lines: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    wrong = ["it says more than its log"] if len(lines) != len(output.splitlines()) else []
    errors = [line for line in lines if line["level"] == "error"]
    if not errors:
        return [*wrong, "no error is logged"]
    last = errors[-1]
    if "this is a bug" in last["msg"] or "Traceback" in output:
        wrong.append("it takes it for a bug")
    fields = ("hint",) if of_engine else ("file", "hint")
    wrong += [f"no {field} is named: {last}" for field in fields if not last.get(field)]
    if os.strerror(number) not in last["msg"]:
        wrong.append(f"the reason is not named: {last['msg']}")
    return wrong


def wrong_with(made: Bench, done: Done, whole: World, plan: Plan) -> list[str]:
    """Return what is wrong with what a command said that met the fault, with its exit code, with what it left."""
    if done.outcome.code == 0:
        # it could do without the call: then nothing is missing
        return done.world.differences(whole)
    wrong = [] if done.outcome.code in REFUSALS else [f"exit {done.outcome.code}: {done.outcome.output}"]
    of_engine = done.outcome.code in (ExitCode.ENGINE_REJECTED, ExitCode.ENGINE_DOWN)
    wrong += unclear(done.outcome.output, LASTING.get(plan.fault, plan.error), of_engine=of_engine)
    if plan.fault is Fault.ONCE:
        met = done.outcome.trace[plan.at]
        if met.name not in ("unlink", "rmdir"):  # else it is the removal that failed
            wrong += [f"{path} is left over" for path in soundness.leftovers(done.world.tree)]
        if soundness.state(done.world.tree) is None and met.name not in ("unlink", "rmdir", "fsync"):
            lasting = World(trees.rebooted(done.world.tree), done.world.served)
            wrong += lasting.differences(World(trees.rebooted(made.original.tree), made.original.served))
    return wrong


def try_calls(made: Bench, deed: Deed, fault: Fault, number: int, count: Count, few: Few) -> None:
    before = made.after(made.original, *deed.before)
    whole = made.whole(before, deed.command)
    assert whole.outcome.code == 0, whole.outcome.output
    judge = Judge(made, [made.original, before, whole.world], deed.finishing)
    wrong = []
    broken = set()
    tried = few(list(enumerate(whole.outcome.calls)), 40)
    for at, call in tried:
        plan = Plan(at, fault, number)
        done = made.do(before, deed.command, plan)
        problems = wrong_with(made, done, whole.world, plan) + judge.problems(done.world)
        wrong += [f"call {at} of {len(whole.outcome.calls)}, {call}: {problem}" for problem in problems]
        if problems:
            broken.add(str(at))
    count(len(tried), sorted(broken))
    shown = "\n".join(wrong[:60])
    assert not wrong, f"{len(broken)} of {len(tried)} calls that fail break something:\n{shown}"


@LIVE
@pytest.mark.parametrize("deed", COMMANDS, ids=str)
@pytest.mark.parametrize("number", ERRORS, ids=[errno.errorcode[number] for number in ERRORS])
def test_whichever_call_fails_it_is_said_and_the_node_is_as_before_or_as_recorded(
    made: Bench, deed: Deed, number: int, count_instants: Count, few: Few
) -> None:
    try_calls(made, deed, Fault.ONCE, number, count_instants, few)


@LIVE
@pytest.mark.parametrize("deed", COMMANDS, ids=str)
@pytest.mark.parametrize("fault", list(LASTING), ids=["full", "read-only"])
def test_from_whichever_call_on_the_disk_is_full_or_read_only_the_node_works(
    made: Bench, deed: Deed, fault: Fault, count_instants: Count, few: Few
) -> None:
    try_calls(made, deed, fault, errno.EIO, count_instants, few)
