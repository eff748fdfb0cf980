"""Killed before or after any call while the method changes: one of the two ways is whole, and each way on is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.conftest import in_memory
from tests.node.faults import Plan
from tests.node.sweeps import matrix
from tests.node.sweeps.judging import Judge
from tests.node.sweeps.matrix import (
    BY_CDI,
    INSTALL,
    METHOD_DEEDS,
    METHOD_HALVES,
    METHOD_MAKES,
    UNINSTALL,
    Bench,
    Command,
    Deed,
    Half,
)
from tests.node.test_every_instant import SIGKILLED, Count, report, tried
from tests.support.quick import Few

MAKES = [pytest.param(make, id=make.name, marks=pytest.mark.xdist_group(make.name)) for make in METHOD_MAKES]


@pytest.fixture(scope="module", params=MAKES)
def both_ways(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, images: tuple[Path, Path]
) -> Iterator[Bench]:
    with (
        in_memory(tmp_path_factory.mktemp("made")) as folder,
        matrix.bench(folder, request.param, images) as ready,
    ):
        yield ready


@pytest.mark.parametrize("deed", METHOD_DEEDS, ids=str)
def test_killed_at_any_instant_of_a_change_of_the_method_the_node_works(
    both_ways: Bench, deed: Deed, few: Few, count_instants: Count
) -> None:
    before = both_ways.after(both_ways.original, *deed.before)
    stages = [before, both_ways.after(before, deed.command), both_ways.after(both_ways.original, deed.finishing)]
    judge = Judge(both_ways, stages, deed.finishing)
    killing = both_ways.make is METHOD_MAKES[-1]
    report(*tried(both_ways, before, deed.command, judge, killing=killing, few=few), count_instants)


@pytest.mark.parametrize("recovering", [BY_CDI, INSTALL, UNINSTALL], ids=["by cdi", "by handlers", "uninstall"])
@pytest.mark.parametrize("half", METHOD_HALVES, ids=str)
def test_killed_amid_the_recovery_from_a_change_of_the_method_the_node_works(
    both_ways: Bench, half: Half, recovering: Command, few: Few, count_instants: Count
) -> None:
    before = both_ways.after(both_ways.original, *half.deed.before)
    whole = both_ways.whole(before, half.deed.command)
    killed = both_ways.do(before, half.deed.command, Plan(half.at(both_ways, whole.outcome.trace)))
    assert killed.outcome.code == SIGKILLED, killed.outcome.output
    finishing = half.deed.command if recovering == UNINSTALL else recovering
    ends = [both_ways.after(both_ways.original, command) for command in (BY_CDI, INSTALL)]
    judge = Judge(both_ways, [both_ways.original, before, whole.world, *ends], finishing)
    report(*tried(both_ways, killed.world, recovering, judge, killing=False, few=few), count_instants)


@pytest.mark.parametrize("deed", METHOD_DEEDS[1:4:2], ids=str)
def test_at_no_instant_of_a_change_of_the_method_is_neither_way_there(both_ways: Bench, deed: Deed) -> None:
    before = both_ways.after(both_ways.original, *deed.before)
    _, worlds = both_ways.instants(before, deed.command)
    ours = b"nvidia-cdi-hook"
    for world in worlds:
        assert world.served is not None
        handlers = "nvidia" in {name for name, _ in world.served.handlers}
        specification = world.tree[matrix.SPECIFICATION].content
        assert handlers or (world.served.cdi and isinstance(specification, bytes) and ours in specification)


@pytest.mark.parametrize("deed", METHOD_DEEDS[1:4:2], ids=str)
def test_a_change_of_the_method_is_one_engine_reload_and_one_write_of_each_file(both_ways: Bench, deed: Deed) -> None:
    before = both_ways.after(both_ways.original, *deed.before)
    done = both_ways.do(before, deed.command)
    assert done.outcome.output.count('"event": "reloading"') == 1
    written = [call for call in done.outcome.trace if matrix.brings(call, both_ways.outside(both_ways.make.path))]
    assert len(written) <= (2 if both_ways.make.engine == "docker" else 1)  # dockerd is signalled on a text of its own
