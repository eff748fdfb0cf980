"""Any sequence of runs, edits, losses and another installer's work: the engine never has less than it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.node.sequences import ADMINISTRATOR, ENGINES, LOSS, PROGRAM, RESET, Engine, World, check_steps
from tests.support import payloads
from toolkit_installer.documents.changes import ABSENT

RUNS = settings(max_examples=24, derandomize=True, phases=(Phase.explicit, Phase.generate))
"""A failure has the steps in its message: to look for fewer takes long."""
PEER = ("configures default", "configures", "removes")
_STEP = st.sampled_from((*PROGRAM, *ADMINISTRATOR, *PEER, *LOSS))
STEPS = st.lists(_STEP, min_size=2, max_size=6)
FEW_STEPS = st.lists(_STEP, min_size=1, max_size=3)


@pytest.fixture(scope="module")
def releases(payload: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return payload, payloads.build(tmp_path_factory.mktemp("newer"), version="1.99.0")


EACH = pytest.mark.parametrize("engine", ENGINES, ids=str)


@EACH
@settings(RUNS, max_examples=6)
@given(first=st.sampled_from(PROGRAM[:2]), steps=FEW_STEPS)
def test_nothing_is_lost_by_a_few_steps(
    tmp_path_factory: pytest.TempPathFactory, releases: tuple[Path, Path], engine: Engine, first: str, steps: list[str]
) -> None:
    check_steps(World(engine, tmp_path_factory.mktemp("world"), releases), [first, *steps])


@EACH
@RUNS
@given(first=st.sampled_from(PROGRAM[:2]), steps=STEPS)
def test_nothing_is_lost_by_any_sequence_of_steps(
    tmp_path_factory: pytest.TempPathFactory, releases: tuple[Path, Path], engine: Engine, first: str, steps: list[str]
) -> None:
    check_steps(World(engine, tmp_path_factory.mktemp("world"), releases), [first, *steps])


def test_each_step_does_what_it_is_called_for(tmp_path: Path, releases: tuple[Path, Path]) -> None:
    for engine in ENGINES:
        world = World(engine, tmp_path, releases)
        for step in ("runs false", "configures default", "upgrades false", "removes", "loses all", "runs true"):
            world.do(step)
            if step == "configures default":
                assert world.default == "nvidia"
            if step == "removes":
                assert world.default == (RESET if engine.name == "docker" else ABSENT)
        world.do("uninstalls")
        assert engine.parse(world.node.read(engine.path)) == engine.parse(engine.content)
