"""daemonset/base on a real cluster is deleted while it starts: no node stays configured, and none is half-way."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.e2e.cluster.rollout import RealCluster

pytestmark = pytest.mark.cluster
ROUNDS = int(os.environ.get("E2E_ROUNDS", "3"))
"""How often it is tried; E2E_ROUNDS=100 is for whoever changes what is asked of the API server."""
_SEED = int(os.environ.get("E2E_SEED", "1"))
_BEYOND = 1.2
"""The longest delay, as a part of the time that it takes here until every node is ready: some rounds come too late."""


def starts(cluster: RealCluster) -> list[int]:
    """Return how often each node's engine was started; docker, which is signalled, tells nothing by that."""
    return [node.engine_starts() for node in cluster.nodes.values()]


def test_deleted_at_any_time_while_it_starts_it_leaves_no_node_configured(cluster: RealCluster) -> None:
    started = time.monotonic()
    cluster.apply()
    cluster.wait_until_ready()
    longest = _BEYOND * (time.monotonic() - started)
    cluster.remove_installation()
    delays = random.Random(_SEED)  # noqa: S311  # moments, not secrets
    configured = 0
    for number in range(ROUNDS):
        delay = delays.uniform(0, longest)
        before = starts(cluster)
        cluster.apply()
        time.sleep(delay)
        cluster.delete()
        try:
            cluster.assert_as_before()
        except AssertionError as failure:
            raise AssertionError(f"round {number}, deleted after {delay:.2f} s of {longest:.2f} s") from failure
        configured += starts(cluster) != before
    assert configured, (
        f"no engine was restarted in any round: each of them was deleted too soon, within {longest:.2f} s"
    )
    cluster.assert_undisturbed()
