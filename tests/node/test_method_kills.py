"""Killed before or after any call while the method changes: one of the two ways is whole, and each way on is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.conftest import in_memory
from tests.node.sweeps import matrix
from tests.node.sweeps.judging import Judge
from tests.node.sweeps.matrix import METHOD_DEEDS, METHOD_MAKES, Bench, Deed
from tests.node.test_every_instant import Count, report, tried

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
    both_ways: Bench, deed: Deed, count_instants: Count
) -> None:
    before = both_ways.after(both_ways.original, *deed.before)
    stages = [before, both_ways.after(before, deed.command), both_ways.after(both_ways.original, deed.finishing)]
    judge = Judge(both_ways, stages, deed.finishing)
    report(*tried(both_ways, before, deed.command, judge, killing=False), count_instants)


@pytest.mark.parametrize("deed", METHOD_DEEDS[1:4:2], ids=str)
def test_at_no_instant_of_a_change_of_the_method_is_neither_way_there(both_ways: Bench, deed: Deed) -> None:
    before = both_ways.after(both_ways.original, *deed.before)
    _, worlds = both_ways.instants(before, deed.command)
    ours = b"nvidia-cdi-hook"
    for world in worlds:
        assert world.served is not None
        handlers = "nvidia" in {name for name, _ in world.served.handlers}
        specification = world.tree[matrix.SPECIFICATION].content
        assert handlers or (isinstance(specification, bytes) and ours in specification)
