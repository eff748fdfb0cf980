"""What the sweeps run their thousands of commands in: it stays as small as it was."""

from __future__ import annotations

import gc
from unittest import mock

import pytest

from tests.node.sweeps.matrix import MAKES, METHOD_MAKES, Bench
from tests.node.sweeps.warm import quick

ALIVE = [make for make in (*MAKES, *METHOD_MAKES) if make.live is not None]


def mocks() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, mock.NonCallableMock)}


@pytest.mark.parametrize("made", ALIVE, ids=str, indirect=True)
def test_nothing_that_stands_in_for_the_node_remembers_the_calls(made: Bench) -> None:
    assert made.live is not None
    before = mocks()
    with quick(), made.live.inside():
        assert mocks() - before == set()
