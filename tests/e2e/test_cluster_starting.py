"""daemonset/base on a real cluster is deleted while it starts: no node stays configured, and none is half-way."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.e2e.rollout import RealCluster

pytestmark = pytest.mark.cluster
ROUNDS = int(os.environ.get("E2E_ROUNDS", "6"))
"""How often it is tried; E2E_ROUNDS=100 is for whoever changes what is asked of the API server."""
_SEED = int(os.environ.get("E2E_SEED", "1"))
_LONGEST_SECONDS = 8.0
"""By then every node has been configured."""


def test_deleted_at_any_time_while_it_starts_it_leaves_no_node_configured(cluster: RealCluster) -> None:
    delays = random.Random(_SEED)  # noqa: S311  # moments, not secrets
    for number in range(ROUNDS):
        delay = delays.uniform(0, _LONGEST_SECONDS)
        cluster.apply()
        time.sleep(delay)
        cluster.delete()
        try:
            cluster.assert_as_before()
        except AssertionError as failure:
            raise AssertionError(f"round {number}, deleted after {delay:.2f} s") from failure
    cluster.assert_undisturbed()
