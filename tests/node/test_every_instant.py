"""Killed before or after any call that changes the node: it works then, and after a boot, and each way on is whole.

`EVERY_INSTANT=all` in the environment kills on the nodes whose engine is down, too: they are looked at otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from tests.node.faults import Plan
from tests.node.sweeps.judging import Judge
from tests.node.sweeps.matrix import (
    CLEANUP,
    DEEDS,
    HALVES,
    INSTALL,
    UNINSTALL,
    Bench,
    Command,
    Deed,
    Half,
    World,
    interrupted,
)
from tests.support.quick import Few, all_of

Count = Callable[[int, Sequence[str]], None]
SIGKILLED = -9
ALL = os.environ.get("EVERY_INSTANT") == "all"


def tried(
    made: Bench, before: World, command: Command, judge: Judge, *, killing: bool, few: Few = all_of
) -> tuple[int, list[str]]:
    """Judge what a kill before each of the command's calls leaves, and after the last; return how many, what is wrong.

    The command is stopped at each, and looked at. With `killing` it is really killed there each time, from the start:
    that the two are the same is shown on the nodes whose engine lives. Of the calls, `few` are tried.
    """
    whole, worlds = made.instants(before, command)
    assert whole.outcome.code == 0, whole.outcome.output
    wrong = []
    attempts = few(list(enumerate(zip(worlds, whole.outcome.calls, strict=True))))
    for at, (world, call) in attempts:
        where = f"killed before call {at} of {len(worlds)}, {call}: "
        if killing:
            killed = made.do(before, command, Plan(at))
            assert killed.outcome.code == SIGKILLED, killed.outcome.output
            wrong += [where + difference for difference in killed.world.differences(world)]
        wrong += [where + problem for problem in judge.problems(world)]
    wrong += [f"killed after the last call: {problem}" for problem in judge.problems(whole.world)]
    return len(attempts) + 1, wrong


def report(instants: int, wrong: Sequence[str], count: Count) -> None:
    """Add to the sum that the end of the run shows, and fail if anything is wrong."""
    broken = sorted({problem.partition(": ")[0] for problem in wrong})
    count(instants, broken)
    shown = "\n".join(wrong[:60])
    assert not wrong, f"{len(broken)} of {instants} instants are broken:\n{shown}"


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_killed_at_any_instant_the_node_works_and_the_next_run_or_a_cleanup_is_whole(
    made: Bench, deed: Deed, count_instants: Count
) -> None:
    before = made.after(made.original, *deed.before)
    judge = Judge(made, [before, made.after(before, deed.command)], deed.finishing)
    report(*tried(made, before, deed.command, judge, killing=ALL or made.live is not None), count_instants)


def test_killed_at_any_instant_of_an_install_that_was_told_to_stop_the_node_works(
    made: Bench, count_instants: Count
) -> None:
    judge = Judge(made, [made.original, made.after(made.original, INSTALL)], INSTALL)
    report(*tried(made, made.original, interrupted(made), judge, killing=ALL or made.live is not None), count_instants)


@pytest.mark.parametrize("recovering", [INSTALL, UNINSTALL, CLEANUP], ids=["run", "uninstall", "cleanup"])
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_killed_at_any_instant_of_the_recovery_from_a_killed_run_the_node_works(
    made: Bench, half: Half, recovering: Command, count_instants: Count
) -> None:
    before = made.after(made.original, *half.deed.before)
    whole = made.whole(before, half.deed.command)
    killed = made.do(before, half.deed.command, Plan(half.at(made, whole.outcome.trace)))
    assert killed.outcome.code == SIGKILLED, killed.outcome.output
    if recovering == INSTALL:
        recovering = half.deed.finishing
    stages = [made.original, before, whole.world, made.after(made.original, half.deed.finishing)]
    judge = Judge(made, stages, half.deed.finishing)
    report(*tried(made, killed.world, recovering, judge, killing=False), count_instants)
