"""The e2e tests' watch of nodes: what goes wrong in its thread is an error of the test, not of nobody."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e.cluster.node_states import watching

NODE = {"metadata": {"name": "node1"}, "spec": {}, "status": {"conditions": []}}
LISTED = json.dumps({"items": [NODE], "metadata": {"resourceVersion": "1"}})


def plane(*command: str) -> Any:
    """Return a control plane that lists one node, and runs this in place of a watching kubectl."""
    return SimpleNamespace(kubectl=lambda *_: SimpleNamespace(stdout=LISTED), kubectl_command=lambda *_: list(command))


def test_a_watch_that_ends_well_tells_the_states() -> None:
    with watching(plane("sleep", "0.01")) as watch:
        assert watch.of("node1") == [("", "")]


def test_an_error_in_its_thread_is_raised_to_whoever_asks_for_states() -> None:
    # it is raised at the end once more
    with contextlib.suppress(AssertionError), watching(plane("false")) as watch:
        assert watch.reading is not None
        watch.reading.exception(timeout=60)  # it is there by then
        with pytest.raises(AssertionError, match="false"):
            watch.of("node1")


def test_an_error_in_its_thread_is_raised_at_the_end_where_nobody_asked() -> None:
    with (
        pytest.raises(AssertionError, match="example"),
        watching(plane("echo", '{"type": "ERROR", "object": {"code": 500, "example": 1}}')),
    ):
        pass
